# pip install 'offsetmgr[spark]'
"""A streaming ETL job writes orders to Parquet, and every lag tool sees its group.

Run it again with the same --folder: it goes on from its checkpoint and reads the new orders alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient, TopicPartition
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetmgr import Offsets

SCHEMA = "order_id BIGINT, placed_at TIMESTAMP, country STRING, product STRING, amount DOUBLE"
GROUP = "orders-parquet"


def main() -> None:
    """Write new orders as Parquet, in a folder for each country."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--service", default="http://127.0.0.1:8741")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--folder", type=Path, default=Path("orders-parquet"))
    given = parser.parse_args()
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
    with OffsetClient(given.service, name=GROUP) as client:
        checkpoint = str(given.folder / "checkpoint")
        start = starting_offsets(client, GROUP, [given.topic], checkpoint=checkpoint)
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.bootstrap_servers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", 5_000)
            .load()
        )
        with commit_offsets(spark, client, group=GROUP, query_name="etl") as commits:
            query = (
                as_orders(messages)
                .writeStream.queryName("etl")
                .partitionBy("country")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start(str(given.folder / "orders"), format="parquet")
            )
            query.awaitTermination()
            for progress in query.recentProgress:
                print(f"batch {progress['batchId']}: {progress['numInputRows']:,} orders")
            commits.flush(query)
        show_group(client, GROUP, given.topic)
    written = spark.read.schema(SCHEMA).parquet(str(given.folder / "orders"))
    print(f"{written.count():,} orders in {given.folder / 'orders'}")
    written.groupBy("country").count().orderBy("country").show()


def show_group(client: Offsets, group: str, topic: str) -> None:
    """Print how far the group is, as every lag tool sees it now."""
    committed = client.committed(group)
    for partition, log in client.topics([topic])[topic].items():
        entry = committed.get(TopicPartition(topic, partition))
        offset = "nothing" if entry is None else entry.offset
        print(f"{group}: {topic}/{partition}: {offset} committed of {log.high_watermark}")


def as_orders(messages: DataFrame) -> DataFrame:
    """Return Kafka's messages as orders."""
    order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")
    return messages.select(order).select("order.*")


if __name__ == "__main__":
    main()
