"""Processors on Spark: the same tables and outputs as in the tester, and nothing lost."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from offsetmgr.errors import InvalidValueError
from offsetmgr.local import LocalOffsets
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.streams import Processor, Tester, View, codecs, visitor
from offsetmgr.streams.errors import ProcessorError, TopicsError
from offsetmgr.streams.graph import define_group, input, join, lookup, loop, output, persist
from offsetmgr.streams.kafka import request_visit
from offsetmgr.streams.messages import partition_of
from tests.spark.lab import NUMBER, TEXT, Lab, messages
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.streams import Context, GroupGraph

JSON = codecs.Json()
RESULTS = 4
"""Partitions of the output; the input has two."""
SEEDS = range(1, 9)
KEYS = [f"k{number}" for number in range(8)]


class Names(NamedTuple):
    """Topics of one group that does everything."""

    operations: str
    prices: str
    blocked: str
    results: str


def graph_of(group: str, names: Names) -> GroupGraph:  # noqa: C901 -- an operation is a case
    """Return a group whose operations say what the callback is to do."""
    # Executors cannot import this module: callbacks may refer to plain values alone.
    operations, prices, blocked, results = names

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
                context.emit(results, context.key, context.lookup(blocked, str(number)))
            case "wait":
                while not Path(operation["path"]).exists():
                    time.sleep(0.05)

    def again(context: Context, number: int) -> None:
        context.set_value((context.value() or 0) + number)
        if number > 1:
            context.loopback(context.key, number - 1)

    def multiply(context: Context, factor: int) -> None:
        context.set_value(context.value() * factor)

    return define_group(
        group,
        input(operations, codecs.Json(), operate),
        join(prices, codecs.Int64()),
        lookup(blocked, codecs.Int64()),
        loop(codecs.Int64(), again),
        output(results, codecs.Int64()),
        persist(codecs.Int64()),
        visitor("multiply", multiply),
    )


class Everything(Lab):
    """The group on Spark, with what it reads and writes."""

    def __init__(self, spark: SparkSession, kafka: DevKafka, path: Path) -> None:
        super().__init__(spark, kafka, "processor-everything", path)
        self.names = Names(*self.topics(operations=2, prices=1, blocked=3, results=RESULTS))
        self.graph = graph_of(self.group, self.names)
        self.store = path / "view"
        views = {self.names.blocked: str(self.store)}
        self.running = self.processor(self.graph, record_ids=True, lookup_views=views)

    def operate(self, *rows: tuple[str, dict[str, Any]]) -> None:
        """Send operations to keys, and wait until they are processed."""
        self.send(self.names.operations, *((key, JSON.encode(row)) for key, row in rows))
        self.drain(self.running)


@pytest.fixture(scope="class")
def everything(
    spark: SparkSession, kafka: DevKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Everything]:
    """The group; of its lookup table it has the rows of a view, which has two of three."""
    made = Everything(spark, kafka, tmp_path_factory.mktemp("all"))
    made.send(made.names.blocked, ("1", b"77"), ("2", b"78"), ("3", b"79"))
    made.send(made.names.prices, *((f"example-{n}/k{n % 8}", b"%d" % n) for n in SEEDS))
    with View(made.brokers, made.names.blocked, NUMBER, made.store) as view:
        view.wait_until_running(WAIT_S)
        view.evict("3")
        with made.running:
            made.running.wait_until_ready(2 * WAIT_S)  # the first batch, with all that it imports
            yield made


class TestOneTruth:
    @pytest.mark.parametrize(
        "seed", [1, *(pytest.param(number, marks=pytest.mark.chaos) for number in SEEDS[1:])]
    )
    def test_spark_and_the_tester_agree(self, everything: Everything, seed: int) -> None:
        """Tables, outputs, headers, and the partition of each key."""
        chance = random.Random(seed)  # noqa: S311 -- the same operations in every run
        example = f"example-{seed}"
        tester = Tester()
        processor = tester.add_processor(everything.graph)
        results = tester.queue_tracker(everything.names.results)
        for key, value in (("1", 77), ("2", 78)):
            tester.set_table_value(everything.names.blocked, key, value)
        tester.set_table_value(everything.names.prices, f"{example}/k{seed % 8}", seed)
        # Each hop of a loop is a batch.
        for kinds in ("add delete emit loop join lookup", "add delete emit join lookup"):
            rows = [
                (
                    f"{example}/{chance.choice(KEYS)}",
                    {"do": chance.choice(kinds.split()), "number": chance.randint(1, 2)},
                )
                for _ in range(60)
            ]
            for key, operation in rows:
                tester.consume(everything.names.operations, key, operation)
            everything.operate(*rows)
        keys = tester.table_keys(everything.graph.table_topic)
        assert {
            key: int(row) for key, row in everything.table().items() if key.startswith(example)
        } == {key: processor.get(key) for key in keys}  # fmt: skip
        expected = defaultdict(list)
        while (message := results.next()) is not None:
            expected[message.key].append((message.value, dict(message.headers)))
        emitted = defaultdict(list)
        for record in messages(everything.brokers, everything.names.results):
            key = record.key().decode()
            assert record.partition() == partition_of(record.key(), RESULTS)
            if key.startswith(example):
                headers = dict(record.headers() or [])
                del headers["offsetmgr-id"]
                number = None if record.value() is None else int(record.value())
                emitted[key].append((number, headers))
        assert emitted == expected

    def test_a_visit_calls_the_visitor_for_each_row(self, everything: Everything) -> None:
        """Seen by a view in the process of the processor."""
        keys = [f"visited-{number:02}" for number in range(20)]
        everything.operate(*((key, {"do": "add", "number": 7}) for key in keys))
        everything.running.visit("multiply", 3)
        everything.drain(everything.running)
        with everything.running.view() as view:
            view.wait_until_running(WAIT_S)
            assert list(view.items("visited-")) == [(key, 21) for key in keys]
            assert [part.lag for part in view.stats().partitions] == [0] * 2

    def test_a_slow_callback_is_reported_as_stalled(
        self,
        everything: Everything,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Once in the log, however long a batch takes."""
        monkeypatch.setattr("offsetmgr.streams.processor._STALL_S", 0.1)
        monkeypatch.setattr("offsetmgr.streams.processor.STALLED_S", 0.5)
        released = tmp_path / "released"
        waiting = {"do": "wait", "number": 0, "path": str(released)}
        everything.send(everything.names.operations, ("slow", JSON.encode(waiting)))
        eventually(lambda: everything.running.state, "stalled")

        def times_reported() -> int:
            assert not everything.running.await_end(1.0)
            return caplog.text.count("has been at one batch for over")

        assert until(times_reported) == 1
        # The time before the start does not count.
        with monkeypatch.context() as patched:
            patched.setattr(everything.running, "_started_s", time.time() + WAIT_S)
            assert everything.running.state == "running"
        released.touch()
        everything.running.wait_until_ready(WAIT_S)


def test_a_group_is_committed_and_recovers_from_its_table(
    lab: Lab, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter of clicks, as a user writes it; also with another number of buckets."""

    def double(context: Context, _value: object) -> None:
        context.set_value(2 * context.value())

    def increment(context: Context, value: str) -> None:
        context.set_value((context.value() or 0) + 1)
        if value == "twice":
            context.loopback(context.key, "")

    (clicks,) = lab.topics(clicks=2)
    edges = [input(clicks, TEXT, increment), loop(TEXT, increment), persist(NUMBER)]
    graph = define_group(group, edges, visitor("double", double))
    lab.send(clicks, *((f"user-{number % 10}", b"") for number in range(100)))
    lab.send(clicks, ("user-0", b"twice"))
    with LocalOffsets(lab.brokers) as offsets:

        def processor(checkpoint: str, buckets: int) -> Processor:
            return lab.processor(graph, checkpoint, offsets=offsets, buckets=buckets)

        with processor("first", 4) as first:
            lab.drain(first)
            first.stop(WAIT_S)
        assert sum(offset.offset for offset in offsets.committed(group).values()) == 102
        rows = {f"user-{number}": b"10" for number in range(10)} | {"user-0": b"12"}
        assert lab.table() == rows
        # A new checkpoint, with another number of buckets, has the rows of the table's topic,
        # and processes no message again, those of the loop included.  A visit waits there.
        request_visit({"bootstrap.servers": lab.brokers}, graph, "double", None)
        lab.send(clicks, *((f"user-{number % 20}", b"") for number in range(100)))
        second = processor("second", 7)
        second.start(available_now=True).await_end(WAIT_S)
        second.stop(WAIT_S)
        assert sum(offset.offset for offset in offsets.committed(group).values()) == 203
        rows = {f"user-{n}": b"30" if n < 10 else b"10" for n in range(20)} | {"user-0": b"34"}
        assert lab.table() == rows
        # What it reads back of its own table changes nothing.
        lab.send(clicks, ("user-0", b""))
        with pytest.raises(InvalidValueError, match="buckets 8 is not that of the checkpoint"):
            processor("second", 8).start()
        lab.drain(second.start())
        assert lab.table() == rows | {"user-0": b"35"}
        # A session that is stopped ends no query.
        with monkeypatch.context() as stopped:
            stopped.setattr(second._spark, "_sc", SimpleNamespace(_jsc=None))
            with pytest.raises(ProcessorError, match=f"^group {group}: its Spark session was stop"):
                second.wait_until_ready()
            assert second.state == "failed"
            second.stop()
        second.stop()


def test_a_failed_callback_stops_the_processor_and_commits_nothing(lab: Lab, group: str) -> None:
    """The error has one line, with the message and what was raised, SystemExit included.

    Of one that ends its process it names the likely causes; it had pages of Java.
    """

    def check(context: Context, value: str) -> None:
        if value == "bad":
            raise SystemExit("\ud800 is\nbad")
        if value == "crash":
            os._exit(1)
        context.set_value(value)

    topic, crashing = lab.topics(orders=1, crashing=1)
    lab.send(topic, ("a", b"good"), ("b", b"bad"))
    lab.send(crashing, ("c", b"crash"))
    graph = define_group(group, input(topic, TEXT, check), persist(TEXT))
    with LocalOffsets(lab.brokers) as offsets:
        made = lab.processor(graph, offsets=offsets)
        with pytest.raises(ProcessorError) as raised:
            made.run(available_now=True)
        made.stop()
        assert f"({topic}/0 at offset 1, key 'b')" in str(raised.value)
        assert "SystemExit: \\ud800 is\\nbad" in str(raised.value)
        assert "\n" not in str(raised.value)
        assert made.state == "failed"
        assert offsets.committed(group) == {}
    graph = define_group(group, input(crashing, TEXT, check))
    with pytest.raises(ProcessorError, match=f"^group {group}: a Python worker has en") as raised:
        lab.processor(graph, "second").run(available_now=True)
    assert "\n" not in str(raised.value)


def test_a_stop_in_a_signal_handler_and_ctrl_c_leave_no_query(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop takes over the connection to Java, so that a wait ended with py4j's error.

    A stop in the middle of a start was forgotten, and ``run`` went on.
    """

    def taken_over(_: Checkpoint | DataStreamWriter) -> NoReturn:
        processor.stop()
        raise OSError("the connection was closed")

    (topic,) = lab.topics(orders=1)
    with lab.processor(define_group(lab.group, input(topic, TEXT, print))) as processor:
        before = signal.signal(signal.SIGUSR1, lambda *_: processor.stop())
        try:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert processor.await_end(WAIT_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
    with processor:
        monkeypatch.setattr(Checkpoint, "last_begun", taken_over)
        processor.wait_until_ready(WAIT_S)
        assert processor.state == "stopped"
    monkeypatch.undo()

    def interrupted(writer: DataStreamWriter) -> None:
        start(writer)
        raise KeyboardInterrupt

    start = DataStreamWriter.start
    with monkeypatch.context() as patched:
        patched.setattr(DataStreamWriter, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            processor.start()
    with processor:  # whose query ran on, and could not be stopped
        processor.wait_until_ready(WAIT_S)

    def stopped(writer: DataStreamWriter) -> object:
        processor.stop()
        return start(writer)

    for begin in (stopped, taken_over):
        monkeypatch.setattr(DataStreamWriter, "start", begin)
        processor.run()
    assert not processor._spark.streams.active


def test_missing_topics_are_named(lab: Lab) -> None:
    (one,) = lab.topics(one=1)
    with pytest.raises(TopicsError, match="no-such-output"):
        lab.run(input(one, TEXT, print), output("no-such-output", TEXT))
    with pytest.raises(ProcessorError, match=r"does not start its query: .*auto\.offset\.reset"):
        lab.run(input(one, TEXT, print), kafka_options={"kafka.auto.offset.reset": "latest"})
    with pytest.raises(InvalidValueError, match=r"lookup_views .* is not a lookup table; add look"):
        lab.run(input(one, TEXT, print), lookup_views={one: "/"})


def unconnected(spark: SparkSession, checkpoint: str = "unused") -> Processor:
    """Return a processor whose brokers are never asked."""
    edges = [input("orders", TEXT, lambda *_: None), persist(TEXT)]
    graph = define_group("orders", *edges)
    return Processor(spark, graph, "127.0.0.1:9", checkpoint=checkpoint)


def test_a_table_that_gets_partitions_in_a_run_has_to_be_copied(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Its next start is refused, so the advice is another one than for an output."""
    assert not unconnected(spark)._lost({"orders-table": 1}, {"orders-table": [0, 1]}, set())
    assert "copy the table (streams copy-table), as its next start is refused" in caplog.text


def test_an_unusable_checkpoint_is_an_error_of_the_processor(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file of it that cannot be read is named in one sentence, also while its query runs."""
    (tmp_path / "metadata").mkdir()
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    processor = unconnected(spark, str(tmp_path))
    text = "group orders {}: its checkpoint cannot be used .*{}.*: make it readable, or give"
    with pytest.raises(ProcessorError, match=text.format("cannot start", "metadata")):
        processor.start()
    processor.query = Mock(isActive=True, lastProgress=None)
    for look in (processor.stats, processor.wait_until_ready, lambda: processor.state):
        with pytest.raises(ProcessorError, match=text.format("is in an unknown state", "offsets")):
            look()


JAVA = "org.apache.kafka.common.errors."
PAGES = {
    "missing module": (
        "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'a'\n",
        r"an executor cannot import .* \(ModuleNotFoundError: No module named 'a'\)",
    ),
    "another error of a worker": (
        "Traceback (most recent call last):\n  File x\n    ^^^\npyarrow.lib.ArrowInvalid: odd\n",
        "pyarrow.lib.ArrowInvalid: odd",
    ),
    "lowered limit": (
        f"(TID 12): {JAVA}RecordTooLargeException: Too large.\n\nDriver stacktrace:",
        r"a record is larger than its topic takes: .* \(RecordTooLargeException: Too large\.\)",
    ),
    "another refusal of Kafka": (
        f"(TID 18): {JAVA}InvalidTimestampException: Timestamp 1.\n\nDriver stacktrace:",
        "InvalidTimestampException: Timestamp 1.",
    ),
    "changed checkpoint": (
        "[STREAM_FAILED] assertion failed: There are [1] sources in the checkpoint offsets and now",
        "another processor uses its checkpoint, or files of the checkpoint were deleted: .*",
    ),
    "deleted checkpoint": (
        "[STREAM_FAILED] terminated with exception: File file:/c/commits does not exist",
        "another processor uses its checkpoint, or files of the checkpoint were deleted: .*",
    ),
    "full disk": ("[STREAM_FAILED] No space left on device", r"\[STREAM_FAILED\] No space .*"),
}


@pytest.mark.parametrize(("page", "sentence"), PAGES.values(), ids=PAGES)
def test_a_page_of_spark_is_one_sentence(spark: SparkSession, page: str, sentence: str) -> None:
    """The kind: a failure that only Java's or Python's stack explained."""
    processor = unconnected(spark)
    processor.query = Mock(
        awaitTermination=Mock(side_effect=StreamingQueryException(f"{page}\n\tat x"))
    )
    with pytest.raises(ProcessorError) as raised:
        processor.await_end()
    assert re.fullmatch(f"group orders: {sentence}", str(raised.value))


def test_a_processor_fails_with_its_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that the system has killed for memory: each call raised py4j's error."""
    processor = unconnected(spark)
    away = Mock(side_effect=[Py4JNetworkError("closed"), ConnectionRefusedError()])
    processor.query = Mock(awaitTermination=away)
    with pytest.raises(ProcessorError, match=r"^group orders: .* or Spark's JVM has ended"):
        processor.run()
    with Popen(["true"]) as jvm:
        jvm.wait(WAIT_S)
    gateway = SimpleNamespace(proc=jvm)
    monkeypatch.setattr(processor._spark, "_sc", SimpleNamespace(_jsc=Mock(), _gateway=gateway))
    assert processor.state == processor.stats().state == "failed"
    with pytest.raises(InvalidValueError, match=r"spark .* is stopped"):
        processor.start()
    processor.stop()
