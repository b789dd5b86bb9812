"""Processors on Spark: the same tables and outputs as in the tester, and nothing lost."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from offsetmgr.errors import InvalidValueError
from offsetmgr.local import LocalOffsets
from offsetmgr.streams import (
    Tester,
    codecs,
    define_group,
    input,
    join,
    lookup,
    loop,
    output,
    persist,
    visitor,
)
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.planning import ProcessorSettings
from offsetmgr.streams.processor import Processor
from offsetmgr.types import TopicPartition as Partition
from tests.conftest import create_topic
from tests.spark.support import WAIT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.streams import Context, GroupGraph
    from tests.conftest import TopicFactory

PARTITIONS = 3


class Names(NamedTuple):
    """Topics of one group that does everything."""

    group: str
    operations: str
    prices: str
    blocked: str
    results: str


def everything(names: Names) -> GroupGraph:  # noqa: C901 -- each of six operations is a case
    """Return a group whose operations say what the callback is to do."""
    # Executors cannot import this module: callbacks may refer to plain values alone.
    group, operations, prices, blocked, results = names

    def operate(context: Context, operation: dict[str, Any]) -> None:
        number = operation["number"]
        match operation["do"]:
            case "add":
                context.set_value((context.value() or 0) + number)
            case "delete":
                context.delete()
            case "emit":
                context.emit(results, context.key, number, {"from": context.topic.encode()})
            case "loop":
                # Rows of their own: when a loop is processed depends on the batch.
                context.loopback(f"{context.key}/loop", number)
            case "join":
                context.emit(results, context.key, context.join(prices))
            case "lookup":
                context.emit(results, context.key, context.lookup(blocked, "all"))

    def again(context: Context, number: int) -> None:
        context.set_value((context.value() or 0) + number)
        if number > 1:
            context.loopback(context.key, number - 1)

    def double(context: Context, factor: int) -> None:
        context.set_value(context.value() * factor)

    return define_group(
        group,
        input(operations, codecs.Json(), operate),
        join(prices, codecs.Int64()),
        lookup(blocked, codecs.Int64()),
        loop(codecs.Int64(), again),
        output(results, codecs.Int64()),
        persist(codecs.Int64()),
        visitor("multiply", double),
    )


class Everything:
    """The group on Spark, with what it reads and writes."""

    def __init__(self, spark: SparkSession, kafka: DevKafka, checkpoint: str, name: str) -> None:
        self.brokers = kafka.bootstrap_servers
        self.names = Names(*(f"{name}-{part}" for part in ("group", "ops", "prices", "no", "out")))
        for topic in self.names[1:]:
            create_topic(kafka, topic, PARTITIONS)
        self.graph = everything(self.names)
        self.processor = Processor(
            spark,
            self.graph,
            self.brokers,
            checkpoint=checkpoint,
            settings=ProcessorSettings(missing="earliest", buckets=4, record_ids=True),
        )

    def send(self, topic: str, rows: Iterable[tuple[str, bytes | None]]) -> None:
        """Produce rows to the partitions of their keys."""
        send(self.brokers, topic, rows)

    def drained(self) -> None:
        """Wait until everything is processed, the loop included."""
        query = self.processor.query
        assert query is not None
        eventually(self._left, 0)

    def _left(self) -> int:
        query = self.processor.query
        assert query is not None
        query.processAllAvailable()
        consumer = Consumer({"bootstrap.servers": self.brokers, "group.id": "ends"})
        stats = self.processor.stats()
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT_S)[1]
                - stats.read.get(Partition(topic, number), 0)
                for topic in (self.names.operations, self.graph.loop_topic)
                for number in range(PARTITIONS)
            )
        finally:
            consumer.close()


def send(brokers: str, topic: str, rows: Iterable[tuple[str, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": brokers, "partitioner": "fnv1a"})
    for key, value in rows:
        producer.produce(topic, value, key=key)
    assert producer.flush(WAIT_S) == 0


def messages(brokers: str, topic: str) -> list[Any]:
    """Return all messages of a topic, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "reads-all", "enable.partition.eof": False}
    )
    found = []
    try:
        parts = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        for number in sorted(parts):
            start, end = consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=WAIT_S
            )
            consumer.assign([TopicPartition(topic, number, start)])
            while start < end:
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None, message.error()
                found.append(message)
                start = (message.offset() or 0) + 1
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


@pytest.fixture(scope="class")
def running(
    spark: SparkSession, kafka: DevKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Everything]:
    made = Everything(spark, kafka, str(tmp_path_factory.mktemp("all")), "processor-everything")
    made.send(made.names.blocked, [("all", b"77")])
    made.send(made.names.prices, [("k0", b"10"), ("k1", b"11")])
    with made.processor:
        made.processor.wait_until_ready(2 * WAIT_S)  # the first batch, with all that it imports
        yield made


OPERATIONS = ("add", "delete", "emit", "loop", "join", "lookup")


class TestOneTruth:
    @pytest.mark.parametrize(
        "seed", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in range(2, 9))]
    )
    def test_spark_and_the_tester_agree(self, running: Everything, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 -- the same operations in every run
        batches = [
            [
                (chance.choice(["k0", "k1", "k2"]), chance.choice(OPERATIONS), chance.randint(1, 3))
                for _ in range(40)
            ]
            for _ in range(2)
        ]
        example = f"example-{seed}"
        tester = Tester()
        processor = tester.add_processor(running.graph)
        results = tester.queue_tracker(running.names.results)
        tester.set_table_value(running.names.blocked, "all", 77)
        prices = [(f"{example}/k0", b"10"), (f"{example}/k1", b"11")]
        running.send(running.names.prices, prices)
        for key, price in prices:
            tester.set_table_value(running.names.prices, key, int(price))
        running.drained()
        for batch in batches:
            rows = []
            for key, do, number in batch:
                operation = {"do": do, "number": number}
                tester.consume(running.names.operations, f"{example}/{key}", operation)
                rows.append((f"{example}/{key}", codecs.Json().encode(operation)))
            running.send(running.names.operations, rows)
            running.drained()
        found = table(running.brokers, running.graph.table_topic)
        keys = tester.table_keys(running.graph.table_topic)
        assert {key: int(row) for key, row in found.items() if key.startswith(example)} == {
            key: processor.get(key) for key in keys
        }
        expected = defaultdict(list)
        while (message := results.next()) is not None:
            expected[message.key].append((message.value, dict(message.headers)))
        emitted = defaultdict(list)
        for record in messages(running.brokers, running.names.results):
            key = record.key().decode()
            if key.startswith(example):
                headers = dict(record.headers() or [])
                del headers["offsetmgr-id"]
                value = None if record.value() is None else int(record.value())
                emitted[key].append((value, headers))
        assert emitted == expected

    def test_a_visit_calls_the_visitor_for_each_row(self, running: Everything) -> None:
        keys = [f"visited-{number}" for number in range(20)]
        add = codecs.Json().encode({"do": "add", "number": 7})
        running.send(running.names.operations, [(key, add) for key in keys])
        running.drained()
        running.processor.visit("multiply", 3)
        running.drained()
        found = table(running.brokers, running.graph.table_topic)
        assert {key: found[key] for key in keys} == dict.fromkeys(keys, b"21")

    def test_a_view_in_the_process_has_its_rows(self, running: Everything) -> None:
        add = codecs.Json().encode({"do": "add", "number": 3})
        running.send(running.names.operations, [(f"viewed-{number}", add) for number in range(9)])
        running.drained()
        with running.processor.view() as view:
            view.wait_until_running(WAIT_S)
            expected = [(f"viewed-{number}", 3) for number in range(9)]
            assert list(view.items("viewed-")) == expected
            assert [part.lag for part in view.stats().partitions] == [0] * PARTITIONS

    def test_emits_have_the_partition_of_their_key(self, running: Everything) -> None:
        emit = codecs.Json().encode({"do": "emit", "number": 1})
        keys = [f"partition-{number}" for number in range(20)]
        running.send(running.names.operations, [(key, emit) for key in keys])
        running.drained()
        inputs = {
            message.key(): message.partition()
            for message in messages(running.brokers, running.names.operations)
        }
        outputs = {
            message.key(): message.partition()
            for message in messages(running.brokers, running.names.results)
        }
        written = {
            message.key(): message.partition()
            for message in messages(running.brokers, running.graph.table_topic)
        }
        assert len(set(outputs.values())) == PARTITIONS
        assert outputs == {key: inputs[key] for key in outputs}
        assert all(inputs.get(key, number) == number for key, number in written.items())


class TestCounter:
    """A counter of clicks, as a user writes it."""

    @pytest.fixture
    def clicks(self, new_topic: TopicFactory) -> str:
        return new_topic(PARTITIONS)

    @staticmethod
    def counter(group: str, clicks: str) -> GroupGraph:
        def increment(context: Context, value: bytes) -> None:
            context.set_value((context.value() or 0) + 1)
            if value == b"twice":
                context.loopback(context.key, b"")

        return define_group(
            group,
            input(clicks, codecs.Bytes(), increment),
            loop(codecs.Bytes(), increment),
            persist(codecs.Int64()),
        )

    def test_commits_the_group_and_recovers_from_its_table(
        self, spark: SparkSession, kafka: DevKafka, clicks: str, group: str, tmp_path: Path
    ) -> None:
        brokers = kafka.bootstrap_servers
        graph = self.counter(group, clicks)
        send(brokers, clicks, [(f"user-{number % 10}", b"") for number in range(100)])
        with LocalOffsets(brokers) as offsets:

            def processor(checkpoint: str, buckets: int) -> Processor:
                chosen = ProcessorSettings(missing="earliest", buckets=buckets)
                return Processor(
                    spark,
                    graph,
                    brokers,
                    checkpoint=str(tmp_path / checkpoint),
                    offsets=offsets,
                    settings=chosen,
                )

            first = processor("first", 4)
            first.run(available_now=True)
            send(brokers, clicks, [("user-0", b"twice")])
            for _ in range(2):  # the loop's message, and what it has caused
                first.run(available_now=True)
            first.stop()
            assert sum(offset.offset for offset in offsets.committed(group).values()) == 102
            rows = {f"user-{number}": b"10" for number in range(10)} | {"user-0": b"12"}
            assert table(brokers, graph.table_topic) == rows
            # A new checkpoint, with another number of buckets, has the rows of the table's topic,
            # and processes no message again, those of the loop included.
            send(brokers, clicks, [(f"user-{number % 20}", b"") for number in range(100)])
            second = processor("second", 7)
            second.run(available_now=True)
            second.stop()
            rows = {f"user-{n}": b"15" if n < 10 else b"5" for n in range(20)}
            rows["user-0"] = b"17"
            assert table(brokers, graph.table_topic) == rows
            assert second.recovered
            # What it reads back of its own table changes nothing.
            send(brokers, clicks, [("user-0", b"")])
            second.run(available_now=True)
            second.stop()
            assert table(brokers, graph.table_topic) == rows | {"user-0": b"18"}
            with pytest.raises(InvalidValueError, match="buckets 8 is not that of the checkpoint"):
                processor("second", 8).start()

    def test_a_bucket_that_grows_too_large_is_an_error(
        self, spark: SparkSession, kafka: DevKafka, clicks: str, group: str, tmp_path: Path
    ) -> None:
        brokers = kafka.bootstrap_servers
        send(brokers, clicks, [(f"user-{number}", b"") for number in range(200)])
        graph = self.counter(group, clicks)
        settings = ProcessorSettings(missing="earliest", buckets=1, bucket_bytes=1_000)
        made = Processor(spark, graph, brokers, checkpoint=str(tmp_path), settings=settings)
        with pytest.raises(ProcessorError, match="more buckets than 1"):
            made.run(available_now=True)
        assert made.state == "failed"
        assert table(brokers, graph.table_topic) == {}


class TestErrors:
    @staticmethod
    def failing(group: str, topic: str) -> GroupGraph:
        def check(context: Context, value: str) -> None:
            if value == "bad":
                raise ValueError("this value is bad")
            context.set_value(value)

        return define_group(group, input(topic, codecs.String(), check), persist(codecs.String()))

    def test_a_callback_that_raises_stops_it_and_commits_nothing(
        self, spark: SparkSession, kafka: DevKafka, new_topic: TopicFactory, group: str,
        tmp_path: Path,
    ) -> None:  # fmt: skip
        topic, brokers = new_topic(1), kafka.bootstrap_servers
        send(brokers, topic, [("a", b"good"), ("b", b"bad")])
        graph = self.failing(group, topic)
        with LocalOffsets(brokers) as offsets:
            made = Processor(
                spark, graph, brokers, checkpoint=str(tmp_path), offsets=offsets,
                settings=ProcessorSettings(missing="earliest", buckets=2),
            )  # fmt: skip
            with pytest.raises(ProcessorError) as raised:
                made.run(available_now=True)
            made.stop()
            assert f"{topic}/0 at offset 1, key 'b'" in str(raised.value)
            assert "this value is bad" in str(raised.value)
            assert offsets.committed(group) == {}

    def test_failed_messages_become_dead_letters(
        self, spark: SparkSession, kafka: DevKafka, new_topic: TopicFactory, group: str,
        tmp_path: Path,
    ) -> None:  # fmt: skip
        topic, letters, brokers = new_topic(1), new_topic(1), kafka.bootstrap_servers
        send(brokers, topic, [("a", b"good"), ("b", b"bad"), ("c", b"\xff")])
        graph = self.failing(group, topic)
        made = Processor(
            spark, graph, brokers, checkpoint=str(tmp_path),
            settings=ProcessorSettings(missing="earliest", buckets=2, dead_letters=letters),
        )  # fmt: skip
        made.run(available_now=True)
        assert table(brokers, graph.table_topic) == {"a": b"good"}
        found = {letter.value(): dict(letter.headers()) for letter in messages(brokers, letters)}
        assert found.keys() == {b"bad", b"\xff"}
        assert b"this value is bad" in found[b"bad"]["offsetmgr-error"]
        assert found[b"bad"]["offsetmgr-origin-offset"] == b"1"

    def test_a_slow_callback_is_reported_as_stalled(
        self, spark: SparkSession, kafka: DevKafka, new_topic: TopicFactory, group: str,
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        topic, brokers, released = new_topic(1), kafka.bootstrap_servers, tmp_path / "released"

        def wait(context: Context, value: str) -> None:
            while not released.exists():
                time.sleep(0.05)
            context.set_value(value)

        send(brokers, topic, [("a", b"1")])
        graph = define_group(group, input(topic, codecs.String(), wait), persist(codecs.String()))
        made = Processor(
            spark, graph, brokers, checkpoint=str(tmp_path / "checkpoint"),
            settings=ProcessorSettings(missing="earliest", buckets=2),
        )  # fmt: skip
        monkeypatch.setattr("offsetmgr.streams.processor.STALLED_S", 0.5)
        with made:
            eventually(lambda: made.state, "stalled")
            released.touch()
            made.wait_until_ready(WAIT_S)
        assert table(brokers, graph.table_topic) == {"a": b"1"}

    def test_missing_topics_are_named(
        self, spark: SparkSession, kafka: DevKafka, new_topic: TopicFactory, group: str,
        tmp_path: Path,
    ) -> None:  # fmt: skip
        def nothing(_context: Context, _value: bytes) -> None: ...

        brokers, code = kafka.bootstrap_servers, codecs.Bytes()
        one = new_topic(1)
        wrong = {
            "no-such-input": [input("no-such-input", code, nothing)],
            "no-such-topic": [input(one, code, nothing), lookup("no-such-topic", code)],
            "no-such-output": [input(one, code, nothing), output("no-such-output", code)],
        }
        for told, edges in wrong.items():
            made = Processor(spark, define_group(group, *edges), brokers, checkpoint=str(tmp_path))
            with pytest.raises(TopicsError, match=told):
                made.start()
