# pip install 'offsetmgr[spark]'
"""A windowed aggregation: the revenue of each hour, kept up to date while orders come in.

Its sink is a table that is written by ``foreachBatch``: rows and the batch's number in one
transaction, so that a batch that Spark runs again after a crash changes nothing twice.

Spark drops an order that comes when its window is closed, here an hour after it, and does not say
so. The table keeps how many orders each batch has read, so the end tells how many were dropped.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient, TopicPartition
from offsetmgr.spark import batch_ranges, commit_offsets, starting_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from offsetmgr import Offsets
    from offsetmgr.spark import OffsetRange

SCHEMA = "order_id BIGINT, placed_at TIMESTAMP, country STRING, product STRING, amount DOUBLE"
GROUP = "revenue-by-hour"


def main() -> None:
    """Keep the revenue of each hour."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--service", default="http://127.0.0.1:8741")
    parser.add_argument("--topic", default="orders")
    parser.add_argument(
        "--folder", type=Path, default=Path("revenue-by-hour"), help="for all results"
    )
    parser.add_argument("--batch-size", type=int, default=5_000, help="orders at a time")
    given = parser.parse_args()
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
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
            .option("kafka.bootstrap.servers", given.bootstrap_servers)
            .option("subscribe", given.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", given.batch_size)
            .load()
        )
        hours = (
            as_orders(messages)
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
        show_group(client, GROUP, given.topic)
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
