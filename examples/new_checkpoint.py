"""A running job moves to a new checkpoint without losing or repeating an order.

Spark refuses a checkpoint after some changes of a query: another number of sources, other keys of
an aggregation, another store. The group knows how far the job was, and there the new one goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import shop

from offsetmgr import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

GROUP = "orders-archive"


def main() -> None:
    """Run the job with its old checkpoint, then with a new one, with orders before each."""
    given = shop.arguments(__doc__)
    if (given.folder / "checkpoint-new").exists():
        # From its old checkpoint it would read again what it has read with its new one.
        raise SystemExit(f"the job of {given.folder} has moved already: give another --folder")
    spark = shop.session(given.master)
    half = given.orders // 2
    with OffsetClient(given.service, name=GROUP) as client:
        shop.place_orders(spark, given.brokers, given.topic, half)
        run(spark, client, given, "old")
        shop.place_orders(spark, given.brokers, given.topic, given.orders - half)
        run(spark, client, given, "new")
        shop.report_lag(client, GROUP, given.topic)
    archive = spark.read.parquet(str(given.folder / "old"), str(given.folder / "new"))
    total, distinct = archive.count(), archive.select("order_id").distinct().count()
    print(f"{total:,} orders in the archive, {total - distinct} of them twice")


def run(
    spark: SparkSession, client: OffsetClient, given: argparse.Namespace, checkpoint: str
) -> None:
    """Archive what there is. Each checkpoint has a folder of its own: file sinks keep theirs."""
    location = str(given.folder / f"checkpoint-{checkpoint}")
    start = starting_offsets(client, GROUP, [given.topic], checkpoint=location)
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.brokers)
        .option("subscribe", given.topic)
        .option("startingOffsets", start)
        .load()
    )
    with commit_offsets(spark, client, group=GROUP, query_name=f"archive-{checkpoint}") as commits:
        query = (
            shop.as_orders(messages)
            .writeStream.queryName(f"archive-{checkpoint}")
            .option("checkpointLocation", location)
            .trigger(availableNow=True)
            .start(str(given.folder / checkpoint), format="parquet")
        )
        query.awaitTermination()
        left = commits.flush(query).uncommitted
        if left:
            # The next checkpoint would begin too early; offsetmgr spark reconcile puts it right.
            raise SystemExit(f"do not move yet, these are not committed: {left}")
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    print(f"with the {checkpoint} checkpoint: {read:,} orders")


if __name__ == "__main__":
    main()
