# pip install 'offsetmgr[spark]'
"""Two queries of one session read one topic, each with a group of its own.

With a group for both, the slower of the two would be what is committed.
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
    from pyspark.sql.streaming import StreamingQuery

    from offsetmgr import Offsets

SCHEMA = "order_id BIGINT, placed_at TIMESTAMP, country STRING, product STRING, amount DOUBLE"
ARCHIVE, ALARMS = "orders-archive-2", "orders-alarms"
LARGE = 190


def main() -> None:
    """Archive all orders, and pick out the large ones, side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--service", default="http://127.0.0.1:8741")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--folder", type=Path, default=Path("two-queries"))
    given = parser.parse_args()
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
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
            show_group(client, group, given.topic)
    for name in ("archive", "alarms"):
        found = spark.read.schema(SCHEMA).parquet(str(given.folder / name))
        print(f"{found.count():,} orders in {name}")


def read(
    spark: SparkSession, client: OffsetClient, given: argparse.Namespace, group: str
) -> DataFrame:
    """The orders, from where the group stands."""
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.bootstrap_servers)
        .option("subscribe", given.topic)
        .option("startingOffsets", starting_offsets(client, group, [given.topic]))
        .load()
    )
    return as_orders(messages)


def start(orders: DataFrame, given: argparse.Namespace, name: str) -> StreamingQuery:
    """Write orders as Parquet, until there are no more."""
    return (
        orders.writeStream.queryName(name)
        .option("checkpointLocation", str(given.folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start(str(given.folder / name), format="parquet")
    )


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
