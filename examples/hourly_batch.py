"""A batch job as cron runs it every hour: what is new for its group, up to the full hour.

Here it runs twice, with new orders in between; no order is in both reports. A run that fails
commits nothing, and the next one reads the same again. So that there is something to see, the hours
here are the next two; under cron `until` is the hour that has just ended.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import shop
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient
from offsetmgr.spark import kafka_batch

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

GROUP = "orders-hourly"


def main() -> None:
    """Two runs, an hour apart in the eyes of Kafka."""
    given = shop.arguments(__doc__)
    spark = shop.session(given.master)
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    half = given.orders // 2
    with OffsetClient(given.service, name=GROUP) as client:
        for number in range(2):
            count = half if number == 0 else given.orders - half
            shop.place_orders(spark, given.brokers, given.topic, count)
            run(spark, client, given, hour + timedelta(hours=1 + number))
        shop.report_lag(client, GROUP, given.topic)
    reader = spark.read.option("basePath", str(given.folder))
    reports = reader.parquet(str(given.folder / "hour=*"))
    total = sum(row.orders for row in reports.collect())
    print(f"{total:,} orders in {given.folder}")


def run(
    spark: SparkSession, client: OffsetClient, given: argparse.Namespace, until: datetime
) -> None:
    """Write what is new of an hour, in a folder named by where the batch begins.

    A run after one that failed begins at the same offsets and writes its folder anew; a run after
    one that succeeded begins further on and leaves its folder alone.
    """
    with kafka_batch(client, GROUP, [given.topic], until=until) as batch:
        if batch.is_empty:
            print(f"nothing new before {until:%H:%M}")
            return
        messages = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", given.brokers)
            .options(**batch.options)
            .load()
        )
        report = (
            shop.as_orders(messages)
            .groupBy("product")
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
            .orderBy("product")
        )
        begin = sum(each.start for each in batch.ranges.values())
        folder = given.folder / f"hour={until:%Y-%m-%dT%H}" / f"begin={begin}"
        report.write.mode("overwrite").parquet(str(folder))
        print(f"{batch.records:,} orders before {until:%H:%M}")
        report.show()


if __name__ == "__main__":
    main()
