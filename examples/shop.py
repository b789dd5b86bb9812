"""A web shop's orders, and what every example needs: arguments, a session, a topic, its lag."""

from __future__ import annotations

import argparse
import atexit
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr import OffsetClient, OffsetManagerError, Offsets, TopicPartition
from offsetmgr.devkafka import spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA = "order_id BIGINT, placed_at TIMESTAMP, country STRING, product STRING, amount DOUBLE"
COUNTRIES = ("DE", "FR", "IT", "NL", "PL")
WAIT_S = 10.0
PRODUCTS = ("bicycle", "helmet", "lamp", "lock", "pump", "saddle", "tyre")


def arguments(description: str | None) -> argparse.Namespace:
    """Addresses of Kafka and the service, and the number of orders."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--service", default="http://127.0.0.1:8741")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--orders", type=int, default=1_000, help="how many to produce")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    parser.add_argument("--folder", type=Path, help="for results and checkpoints; else a new one")
    parser.add_argument(
        "--database", default="postgresql+psycopg:///orders", help="for database_batches.py"
    )
    given = parser.parse_args()
    given.folder = given.folder or Path(tempfile.mkdtemp(prefix="offsetmgr-example-"))
    check_they_answer(given.brokers, given.service)
    return given


def check_they_answer(brokers: str, service: str) -> None:
    """End with a word on what to do where Kafka or the service is not there."""
    try:
        AdminClient({"bootstrap.servers": brokers, "log_level": 0}).list_topics(timeout=WAIT_S)
    except KafkaException as error:
        why = error.args[0].str()
        raise SystemExit(
            f"no Kafka answers at {brokers} ({why})\nStart one: offsetmgr dev-kafka"
        ) from None
    with OffsetClient(service) as client:
        try:
            client.topic_names(timeout=WAIT_S)
        except OffsetManagerError as error:
            start = f"offsetmgr serve --bootstrap-servers {brokers}"
            raise SystemExit(f"{error}\nStart it: {start}") from None


def session(master: str) -> SparkSession:
    """A Spark with its Kafka connector; one that is there already is used."""
    mine = SparkSession.getActiveSession() is None
    if mine:
        print("Spark starts, which takes a while; its own lines go to standard error")
    spark = (
        SparkSession.builder.master(master)
        # A job of yours names it in spark.jars.packages; the local Kafka's tools have fetched it.
        .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    if mine:
        atexit.register(spark.stop)
    return spark


def orders_placed(spark: SparkSession, brokers: str, topic: str) -> int:
    """Return the number of orders in the topic, which is created where it is not there yet."""
    admin = AdminClient({"bootstrap.servers": brokers})
    if topic not in admin.list_topics(timeout=WAIT_S).topics:
        admin.create_topics([NewTopic(topic, num_partitions=3)])[topic].result()
        return 0
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers)
    return reader.option("subscribe", topic).load().count()


def place_orders(spark: SparkSession, brokers: str, topic: str, count: int) -> None:
    """Produce ``count`` orders more, numbered on, one every twenty seconds.

    They come in order, as from a shop: several tasks at once would mix orders of hours ago with
    those of now, and a window's watermark drops what comes too late.
    """
    first = orders_placed(spark, brokers, topic)

    def one_of(names: tuple[str, ...], factor: int) -> Column:
        return F.array(*map(F.lit, names))[(F.col("id") * factor % len(names)).cast("int")]

    orders = spark.range(first, first + count, numPartitions=1).select(
        F.col("id").alias("order_id"),
        F.timestamp_seconds(F.lit(1_767_225_600) + F.col("id") * 20).alias("placed_at"),
        one_of(COUNTRIES, 7).alias("country"),
        one_of(PRODUCTS, 11).alias("product"),
        (F.lit(5) + F.col("id") * 37 % 200).cast("double").alias("amount"),
    )
    message = F.to_json(F.struct("*")).alias("value")
    key = F.col("order_id").cast("string").alias("key")
    writer = orders.select(key, message).write.format("kafka")
    writer.option("kafka.bootstrap.servers", brokers).option("topic", topic).save()
    print(f"{count:,} orders were placed, numbers {first:,} to {first + count - 1:,}")


def as_orders(messages: DataFrame) -> DataFrame:
    """Kafka's messages as orders."""
    order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")
    return messages.select(order).select("order.*")


def report_lag(client: Offsets, group: str, topic: str) -> None:
    """Print how far a group is behind its topic, as any lag tool sees it."""
    committed = client.committed(group)
    lag = 0
    for number, held in client.topics([topic])[topic].items():
        entry = committed.get(TopicPartition(topic, number))
        lag += held.high_watermark - (held.log_start_offset if entry is None else entry.offset)
    print(f"group {group} is {lag:,} orders behind")
