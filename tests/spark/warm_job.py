"""A job that uses what most tests use of Spark, so that Java can keep those classes."""

from __future__ import annotations

from pyspark.sql import SparkSession


def main() -> None:
    """Stream rows from files to files, to a function, and through a state."""
    setting = "spark.sql.shuffle.partitions"
    spark = SparkSession.builder.master("local[2]").config(setting, "1").getOrCreate()
    rows = spark.range(100).selectExpr("id", "CAST(id % 3 AS STRING) AS name")
    rows.write.mode("overwrite").parquet("rows")
    stream = spark.readStream.schema(rows.schema).parquet("rows")
    counts = stream.groupBy("name").count().writeStream.outputMode("update")
    for name, writer in {
        "files": stream.writeStream.format("parquet").option("path", "files"),
        "function": stream.writeStream.foreachBatch(lambda batch, _id: print(batch.collect())),  # noqa: T201
        "counts": counts.format("noop"),
    }.items():
        checkpoint = writer.option("checkpointLocation", f"checkpoint-{name}")
        checkpoint.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet("files").groupBy("name").count().orderBy("name").show()
    spark.stop()


if __name__ == "__main__":
    main()
