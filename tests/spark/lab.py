"""Groups of streams on Spark: their topics, what is sent to them, and what they write."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.streams import codecs, define_group
from offsetmgr.streams.planning import ProcessorSettings
from offsetmgr.streams.processor import Processor
from offsetmgr.types import TopicPartition
from tests.conftest import create_topic
from tests.spark.support import WAIT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.streams import GroupGraph
    from offsetmgr.streams.graph import Edge

TEXT = codecs.String()
NUMBER = codecs.Int64()


class Lab:
    """Topics of one test, and the processors of one group and checkpoint."""

    def __init__(self, spark: SparkSession, kafka: DevKafka, group: str, path: Path) -> None:
        self.spark = spark
        self._kafka = kafka
        self.path = path
        self.brokers = kafka.bootstrap_servers
        self.group = group

    def topics(self, **partitions: int) -> list[str]:
        """Create topics, and return their names in the same order."""
        names = [f"{self.group}-{name}" for name in partitions]
        for name, number in zip(names, partitions.values(), strict=True):
            create_topic(self._kafka, name, number)
        return names

    def processor(self, graph: GroupGraph, checkpoint: str = "first", **given: Any) -> Processor:
        kafka, offsets = given.pop("kafka", self.brokers), given.pop("offsets", None)
        # Without an interval, a query asks Kafka for new messages without a pause.
        usual = {"missing": "earliest", "buckets": 3, "parallelism": 1, "trigger_interval_s": 0.5}
        settings: dict[str, Any] = usual | given
        return Processor(
            self.spark, graph, kafka, checkpoint=str(self.path / checkpoint), offsets=offsets,
            settings=ProcessorSettings(**settings),
        )  # fmt: skip

    def run(self, *edges: Edge | list[Edge], **settings: Any) -> None:
        """Process all that the topics hold."""
        graph = define_group(self.group, *edges)
        self.processor(graph, **settings).run(available_now=True)

    def drain(self, processor: Processor) -> None:
        """Wait until a processor has read all, the messages of its loop included."""
        eventually(lambda: self._unread(processor), 0)

    def _unread(self, processor: Processor) -> int:
        assert processor.query is not None
        processor.query.processAllAvailable()
        read = processor.stats().read
        return sum(
            end - read.get(TopicPartition(topic, number), 0)
            for topic in processor.graph.consumed
            for number, (_, end) in enumerate(ranges(self.brokers, topic))
        )

    def send(self, topic: str, *rows: tuple[str, bytes | None]) -> None:
        send(self.brokers, topic, rows)

    def values(self, topic: str) -> dict[str, list[str | None]]:
        """Return the values of a topic by key, in their order."""
        found: dict[str, list[str | None]] = defaultdict(list)
        for message in messages(self.brokers, topic):
            value = message.value()
            found[message.key().decode()].append(None if value is None else value.decode())
        return dict(found)

    def table(self) -> dict[str, bytes]:
        return table(self.brokers, f"{self.group}-table")


def send(brokers: str, topic: str, rows: Iterable[tuple[str, bytes | None]]) -> None:
    """Produce rows to the partitions of their keys."""
    producer = Producer({"bootstrap.servers": brokers, "partitioner": "fnv1a"})
    for key, value in rows:
        producer.produce(topic, value, key=key)
    assert producer.flush(WAIT_S) == 0


def ranges(brokers: str, topic: str) -> list[tuple[int, int]]:
    """Return the first offset and the end of each partition."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "ends"})
    try:
        numbers = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        parts = [KafkaPartition(topic, number) for number in sorted(numbers)]
        return [consumer.get_watermark_offsets(part, timeout=WAIT_S) for part in parts]
    finally:
        consumer.close()


def messages(brokers: str, topic: str) -> list[Any]:
    """Return all messages of a topic, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "reads-all"})
    found = []
    try:
        for number, (start, end) in enumerate(ranges(brokers, topic)):
            consumer.assign([KafkaPartition(topic, number, start)])
            position = start
            while position < end:
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None, message.error()
                found.append(message)
                position = (message.offset() or 0) + 1
        return found
    finally:
        consumer.close()


def table(brokers: str, topic: str) -> dict[str, bytes]:
    """Return the rows of a table's topic."""
    rows: dict[str, bytes] = {}
    for message in messages(brokers, topic):
        key = message.key().decode()
        rows.pop(key, None)
        if message.value() is not None:
            rows[key] = message.value()
    return rows
