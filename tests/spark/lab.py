"""Groups of streams on Spark: their topics, what is sent to them, and what they write."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING

from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.streams import Processor, ProcessorSettings, TopicManager, codecs, define_group
from offsetmgr.types import TopicPartition
from tests.conftest import create_topic
from tests.tables import send
from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
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
        self.kafka = kafka
        self.path = path
        self.brokers = kafka.bootstrap_servers
        self.group = group

    def topics(self, **partitions: int) -> list[str]:
        """Create topics, and return their names in the same order."""
        names = [f"{self.group}-{name}" for name in partitions]
        for name, number in zip(names, partitions.values(), strict=True):
            create_topic(self.kafka, name, number)
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
        with TopicManager(self.brokers) as topics:
            logs = topics.logs(processor.graph.consumed)
        return sum(
            ends.high_watermark - read.get(TopicPartition(topic, number), 0)
            for topic, log in logs.items()
            for number, ends in log.partitions.items()
        )

    def send(self, topic: str, *rows: tuple[str, bytes | None]) -> None:
        send(self.kafka, topic, *rows)

    def values(self, topic: str) -> dict[str, list[str | None]]:
        """Return the values of a topic by key, in their order."""
        found: dict[str, list[str | None]] = defaultdict(list)
        for message in messages(self.brokers, topic):
            value = message.value()
            found[message.key().decode()].append(None if value is None else value.decode())
        return dict(found)

    def table(self) -> dict[str, bytes]:
        return table(self.brokers, f"{self.group}-table")


def messages(brokers: str, topic: str) -> list[Any]:
    """Return all messages of a topic, by partition and offset."""
    with TopicManager(brokers) as topics:
        numbers = topics.partitions([topic])[topic]
    starts = [{TopicPartition(topic, number): OFFSET_BEGINNING} for number in numbers]
    return [message for start in starts for message in read_to_end(brokers, start, WAIT_S)]


def table(brokers: str, topic: str) -> dict[str, bytes]:
    """Return the rows of a table's topic."""
    rows: dict[str, bytes] = {}
    for message in messages(brokers, topic):
        key = message.key().decode()
        rows.pop(key, None)
        if message.value() is not None:
            rows[key] = message.value()
    return rows
