# pip install 'offsetmgr[spark]'
"""The revenue of each product: a Spark job that starts at its group's offsets and commits them."""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient
from offsetmgr.spark import batch_ranges, commit_offsets, starting_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from offsetmgr import TopicPartition
    from offsetmgr.spark import OffsetRange

GROUP = "shop-revenue"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--service", default="http://127.0.0.1:8741")
parser.add_argument("--folder", type=Path, default=Path("shop-data"), help="for all results")
parser.add_argument("--available-now", action="store_true", help="stop once all orders are read")
options = parser.parse_args()
checkpoint = str(options.folder / "revenue-checkpoint")
database = options.folder / "revenue.db"

options.folder.mkdir(exist_ok=True)
with sqlite3.connect(database) as table:
    columns = "first INT, product TEXT, orders INT, amount REAL"
    table.execute(f"CREATE TABLE IF NOT EXISTS revenue ({columns})")


@batch_ranges(checkpoint)
def write(batch: DataFrame, batch_id: int, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    """Store the sums of a batch, in place of those of an earlier run from the same offsets on."""
    first = sum(offsets.start for offsets in ranges.values())
    sums = batch.groupBy("product").agg(F.count("*"), F.sum("amount")).collect()
    with sqlite3.connect(database) as table:  # one transaction
        rows = [(first, *row) for row in sums]
        table.execute("DELETE FROM revenue WHERE first >= ?", [first])
        table.executemany("INSERT INTO revenue VALUES (?, ?, ?, ?)", rows)
        orders, amount = table.execute("SELECT SUM(orders), SUM(amount) FROM revenue").fetchone()
    print(f"batch {batch_id}: {orders or 0:,} orders so far, {amount or 0:,.2f} in all", flush=True)


scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
builder = SparkSession.builder.config("spark.jars.packages", connector)
spark = builder.config("spark.sql.shuffle.partitions", 4).getOrCreate()
order = F.from_json(F.col("value").cast("string"), "product STRING, amount DOUBLE").alias("order")
trigger = {"availableNow": True} if options.available_now else {"processingTime": "5 seconds"}

with (
    OffsetClient(options.service, name=GROUP) as client,
    commit_offsets(spark, client, group=GROUP, query_name="revenue") as commits,
):
    start = starting_offsets(client, GROUP, ["orders"], checkpoint=checkpoint)
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("subscribe", "orders")
        .option("startingOffsets", start)
        .load()
    )
    query = (
        messages.select(order)
        .select("order.*")
        .writeStream.queryName("revenue")
        .foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()
    commits.flush(query)
