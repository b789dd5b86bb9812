"""A windowed aggregation: the revenue of each hour, kept up to date while orders come in.

Its sink is a table that is written by ``foreachBatch``: rows and the batch's number in one
transaction, so that a batch that Spark runs again after a crash changes nothing twice.

Spark drops an order that comes when its window is closed, here an hour after it, and does not say
so. The table keeps how many orders each batch has read, so the end tells how many were dropped.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import shop
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient
from offsetmgr.spark import batch_ranges, commit_offsets, starting_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from offsetmgr import TopicPartition
    from offsetmgr.spark import OffsetRange

GROUP = "revenue-by-hour"


def main() -> None:
    """Produce orders over some hours and keep the revenue of each."""
    given = shop.arguments(__doc__)
    spark = shop.session(given.master)
    shop.place_orders(spark, given.brokers, given.topic, given.orders)
    checkpoint = str(given.folder / "checkpoint")
    database = given.folder / "revenue.db"
    create(database)

    @batch_ranges(checkpoint)
    def write(
        hours: DataFrame, batch_id: int, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        read = sum(each.size for each in ranges.values())
        rows = [(str(row.hour), row.orders, row.revenue) for row in hours.collect()]
        with sqlite3.connect(database) as table:  # one transaction
            seen = table.execute("SELECT 1 FROM batches WHERE id = ?", (batch_id,)).fetchone()
            if seen is None:
                table.executemany("REPLACE INTO revenue VALUES (?, ?, ?)", rows)
                table.execute("INSERT INTO batches VALUES (?, ?)", (batch_id, read))
        print(f"batch {batch_id}: {read:,} orders changed {len(rows)} hours")

    with OffsetClient(given.service, name=GROUP) as client:
        start = starting_offsets(client, GROUP, [given.topic], checkpoint=checkpoint)
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.brokers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", max(1, given.orders // 2))
            .load()
        )
        hours = (
            shop.as_orders(messages)
            .withWatermark("placed_at", "1 hour")
            .groupBy(F.window("placed_at", "1 hour").alias("window"))
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
            .select(F.col("window.start").alias("hour"), "orders", "revenue")
        )
        with commit_offsets(spark, client, group=GROUP, query_name="revenue") as commits:
            query = (
                hours.writeStream.queryName("revenue")
                .outputMode("update")
                .foreachBatch(write)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            commits.flush(query)
        shop.report_lag(client, GROUP, given.topic)
    show(database)


def create(database: Path) -> None:
    """The tables, where they are not there yet."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(database) as table:
        table.execute(
            "CREATE TABLE IF NOT EXISTS revenue (hour TEXT PRIMARY KEY, orders INT, revenue REAL)"
        )
        table.execute("CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, read INT)")


def show(database: Path) -> None:
    """Print what is in the table."""
    total = 0
    with sqlite3.connect(database) as table:
        for hour, orders, revenue in table.execute("SELECT * FROM revenue ORDER BY hour"):
            print(f"{hour}  {orders:>5,} orders  {revenue:>10,.2f}")
            total += orders
        (read,) = table.execute("SELECT COALESCE(SUM(read), 0) FROM batches").fetchone()
    print(f"{total:,} orders in {database}, {read - total:,} more came too late for their hour")


if __name__ == "__main__":
    main()
