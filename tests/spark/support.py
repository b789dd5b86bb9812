"""Topics that Spark reads, what it read of them, and who is watching."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from offsetmgr.devkafka import spark_kafka_jars
from offsetmgr.spark import commit_offsets
from offsetmgr.spark.progress import read_snapshot
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from offsetmgr.client import OffsetClient
    from offsetmgr.devkafka import DevKafka
    from offsetmgr.spark import OffsetCommits
    from offsetmgr.types import OffsetAndMetadata

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options with which a JVM of a few minutes needs less of the processors."""

WAIT_S = 120.0
"""A guard against what never comes, not a measure."""


def new_session(master: str, scratch: Path, settings: Mapping[str, str] = {}) -> SparkSession:
    """A Spark with the Kafka connector, which keeps its own files in ``scratch``."""
    builder = (
        SparkSession.builder.master(master)
        .appName("tests")
        .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.shuffle.partitions", "1")
        # It plans each query again after each of its shuffles, which a few rows do not need.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # A query without new data looks for some a hundred times a second else.
        .config("spark.sql.streaming.pollingDelay", "50ms")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Tasks in Python run by this very one: from scratch they would find nothing to import.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The JVM starts in scratch, where Spark leaves a folder named artifacts.
    here = Path.cwd()
    os.chdir(scratch)
    try:
        session = builder.getOrCreate()
    finally:
        os.chdir(here)
    session.sparkContext.setLogLevel("ERROR")
    return session


class Topic(NamedTuple):
    """A topic of a Kafka, as tests write it and Spark reads it."""

    kafka: DevKafka
    name: str
    partitions: int

    def produce(self, count: int, first: int = 0, at: datetime | None = None) -> None:
        """Produce the numbers from ``first``, over the partitions in turn; at a time, or now."""
        timestamp = 0 if at is None else int(at.timestamp() * 1_000)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(first, first + count):
            partition = number % self.partitions
            producer.produce(self.name, str(number), partition=partition, timestamp=timestamp)
        assert producer.flush(WAIT_S) == 0

    def stream(self, spark: SparkSession, **options: object) -> DataFrame:
        """The topic as a stream from its beginning, or as ``options`` say."""
        reader = spark.readStream.format("kafka").option("startingOffsets", "earliest")
        if "subscribePattern" not in options:
            reader = reader.option("subscribe", self.name)
        given = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, **options}
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    def read(self, spark: SparkSession, start: str, batch: int = 1_000) -> DataFrame:
        """The topic as a stream of its numbers, from ``start``, ``batch`` records at a time."""
        stream = self.stream(spark, startingOffsets=start, maxOffsetsPerTrigger=batch)
        return numbers(stream)

    def described(self, group: str) -> dict[int, int]:
        """Return the committed offsets by partition, read without our own code."""
        partitions = [KafkaPartition(self.name, number) for number in range(self.partitions)]
        asked = ConsumerGroupTopicPartitions(group, partitions)
        answers = _admin(self.kafka.bootstrap_servers).list_consumer_group_offsets([asked])
        found = answers[group].result(WAIT_S).topic_partitions
        return {each.partition: each.offset for each in found if each.offset >= 0}


def numbers(stream: DataFrame) -> DataFrame:
    return stream.selectExpr("CAST(CAST(value AS STRING) AS INT) AS number")


@cache
def _admin(bootstrap_servers: str) -> AdminClient:
    """Return one client for all that tests ask: some ask fifty times a second."""
    return AdminClient({"bootstrap.servers": bootstrap_servers})


def ends(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the end of the query's last finished batch."""
    snapshot = read_snapshot(query.lastProgress)
    return dict(snapshot.sources[0])


def offsets_of(
    committed: Mapping[ManagerKey, OffsetAndMetadata] | Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    """Committed entries as bare offsets by partition."""
    return {
        key.topic_partition if isinstance(key, ManagerKey) else key: entry.offset
        for key, entry in committed.items()
    }


class Collected:
    """A sink that keeps what it is given, batch by batch."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, batch: DataFrame, _batch_id: int) -> None:
        self.numbers += [row.number for row in batch.collect()]


def start(
    stream: DataFrame,
    checkpoint: str,
    sink: Callable[[DataFrame, int], None] | None = None,
    name: str | None = None,
    *,
    once: bool = False,
) -> StreamingQuery:
    """Start a query that goes on until it is stopped, or with ``once`` until all is read.

    Without a sink, its records go nowhere.
    """
    writer = stream.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
    writer = writer if name is None else writer.queryName(name)
    return (writer.trigger(availableNow=True) if once else writer).start()


def run(
    stream: DataFrame, checkpoint: str, sink: Callable[[DataFrame, int], None] | None = None
) -> StreamingQuery:
    """Run a query over what there is, to its end."""
    query = start(stream, checkpoint, sink, once=True)
    assert query.awaitTermination(int(WAIT_S))
    return query


class Job(NamedTuple):
    """A query over a topic, its checkpoint, and the group that it is committed to."""

    spark: SparkSession
    client: OffsetClient
    topic: Topic
    group: str
    checkpoint: str

    def commits(self) -> OffsetCommits:
        return commit_offsets(self.spark, self.client, group=self.group)

    def read(self, batch: int = 1_000) -> DataFrame:
        return self.topic.read(self.spark, "earliest", batch)

    def run(self, batch: int = 1_000) -> StreamingQuery:
        return run(self.read(batch), self.checkpoint)

    def start(self, stream: DataFrame | None = None) -> StreamingQuery:
        """Start the query, or another one instead; it goes on until it is stopped."""
        return start(self.read() if stream is None else stream, self.checkpoint)

    @contextmanager
    def running(self, stream: DataFrame | None = None) -> Iterator[StreamingQuery]:
        query = self.start(stream)
        try:
            yield query
        finally:
            query.stop()

    def described(self) -> dict[int, int]:
        """Return the committed offsets by partition, read without our own code."""
        return self.topic.described(self.group)

    def committed(self) -> dict[TopicPartition, int]:
        return offsets_of(self.client.committed(self.group, timeout=WAIT_S))
