"""Two queries of one session read one topic, each with a group of its own.

With a group for both, the slower of the two would be what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import shop
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ARCHIVE, ALARMS = "orders-archive-2", "orders-alarms"
LARGE = 190


def main() -> None:
    """Archive all orders, and pick out the large ones, side by side."""
    given = shop.arguments(__doc__)
    spark = shop.session(given.master)
    shop.place_orders(spark, given.brokers, given.topic, given.orders)
    with (
        OffsetClient(given.service, name="two-queries") as client,
        commit_offsets(spark, client, group=ARCHIVE, query_name="archive") as archive,
        commit_offsets(spark, client, group=ALARMS, query_name="alarms") as alarms,
    ):
        orders = read(spark, client, given, ARCHIVE)
        large = read(spark, client, given, ALARMS).where(F.col("amount") >= LARGE)
        queries = [
            (archive, start(orders, given, "archive")),
            (alarms, start(large, given, "alarms")),
        ]
        for commits, query in queries:
            query.awaitTermination()
            commits.flush(query)
        for group in (ARCHIVE, ALARMS):
            shop.report_lag(client, group, given.topic)
    for name in ("archive", "alarms"):
        print(f"{spark.read.parquet(str(given.folder / name)).count():,} orders in {name}")


def read(
    spark: SparkSession, client: OffsetClient, given: argparse.Namespace, group: str
) -> DataFrame:
    """The orders, from where the group stands."""
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.brokers)
        .option("subscribe", given.topic)
        .option("startingOffsets", starting_offsets(client, group, [given.topic]))
        .load()
    )
    return shop.as_orders(messages)


def start(orders: DataFrame, given: argparse.Namespace, name: str) -> StreamingQuery:
    """Write orders as Parquet, until there are no more."""
    return (
        orders.writeStream.queryName(name)
        .option("checkpointLocation", str(given.folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start(str(given.folder / name), format="parquet")
    )


if __name__ == "__main__":
    main()
