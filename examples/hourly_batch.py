# pip install 'offsetmgr[kafka,spark]'
"""A batch job as cron runs it every hour: what is new for its group, up to the full hour.

Here it runs twice, with new orders in between; no order is in both reports. A run that fails
commits nothing, and the next one reads the same again. So that there is something to see, the hours
here are the next two; under cron `until` is the hour that has just ended.
"""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient, TopicPartition
from offsetmgr.spark import kafka_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetmgr import Offsets

SCHEMA = "order_id BIGINT, product STRING, amount DOUBLE"
PRODUCTS = ("bicycle", "helmet", "lamp")
GROUP = "orders-hourly"


def main() -> None:
    """Two runs, an hour apart in the eyes of Kafka."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--service", default="http://127.0.0.1:8741")
    parser.add_argument("--topic", default="orders")
    parser.add_argument(
        "--folder", type=Path, default=Path("orders-hourly"), help="for all results"
    )
    parser.add_argument("--orders", type=int, default=1_000, help="how many to write")
    given = parser.parse_args()
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    half = given.orders // 2
    with OffsetClient(given.service, name=GROUP) as client:
        for number in range(2):
            numbers = range(half) if number == 0 else range(half, given.orders)
            place_orders(given.bootstrap_servers, given.topic, numbers)
            run(spark, client, given, hour + timedelta(hours=1 + number))
        show_group(client, GROUP, given.topic)
    reader = spark.read.option("basePath", str(given.folder))
    reports = reader.parquet(str(given.folder / "hour=*"))
    total = sum(row.orders for row in reports.collect())
    print(f"{total:,} orders in {given.folder}")


def place_orders(servers: str, topic: str, numbers: range) -> None:
    """Write orders of these numbers to the topic."""
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        order = {"order_id": number, "product": PRODUCTS[number % 3], "amount": 5.0 + number % 200}
        producer.produce(topic, json.dumps(order), str(number))
    producer.flush()
    print(f"orders {numbers.start:,} to {numbers.stop - 1:,} were placed")


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
            .option("kafka.bootstrap.servers", given.bootstrap_servers)
            .options(**batch.options)
            .load()
        )
        report = (
            as_orders(messages)
            .groupBy("product")
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
        )
        begin = sum(each.start for each in batch.ranges.values())
        folder = str(given.folder / f"hour={until:%Y-%m-%dT%H}" / f"begin={begin}")
        report.write.mode("overwrite").parquet(folder)
        print(f"{batch.records:,} orders before {until:%H:%M}")
        spark.read.parquet(folder).orderBy("product").show()


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
