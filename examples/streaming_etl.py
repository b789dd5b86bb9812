"""A streaming ETL job: orders from Kafka to Parquet, its group where every lag tool sees it.

Run it again with the same --folder: it goes on from its checkpoint and reads the new orders alone.
"""

from __future__ import annotations

import shop

from offsetmgr import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

GROUP = "orders-etl"


def main() -> None:
    """Produce some orders, and write what is new as Parquet, a folder for each country."""
    given = shop.arguments(__doc__)
    spark = shop.session(given.master)
    shop.place_orders(spark, given.brokers, given.topic, given.orders)
    with OffsetClient(given.service, name=GROUP) as client:
        checkpoint = str(given.folder / "checkpoint")
        start = starting_offsets(client, GROUP, [given.topic], checkpoint=checkpoint)
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.brokers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", max(1, given.orders // 2))
            .load()
        )
        with commit_offsets(spark, client, group=GROUP, query_name="etl") as commits:
            query = (
                shop.as_orders(messages)
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
        shop.report_lag(client, GROUP, given.topic)
    written = spark.read.parquet(str(given.folder / "orders"))
    print(f"{written.count():,} orders in {given.folder / 'orders'}")
    written.groupBy("country").count().orderBy("country").show()


if __name__ == "__main__":
    main()
