"""Groups of every kind on Spark and in the tester, and what happens when their world changes."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from offsetmgr.retry_headers import CUT, ERROR, OFFSET
from offsetmgr.streams import Tester, TopicManager, visitor
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.graph import define_group, input, inputs, join, lookup, loop, output, persist
from tests.secured import allow, user_login
from tests.spark.lab import NUMBER, TEXT, Lab, messages
from tests.tables import Transactional, delete, grow, send
from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from offsetmgr.streams import Context
    from offsetmgr.streams.graph import Edge


def stateless(one: str, two: str, rows: str, out: str) -> list[Edge]:
    def first(context: Context, value: str) -> None:
        if value != "drop":
            context.emit(out, context.key, f"{value}/{context.lookup(rows, 'all')}")
            context.loopback(context.key, len(value))

    def again(context: Context, number: int) -> None:
        context.emit(out, context.key, str(number))
        if number > 4:
            context.loopback(context.key, 4)

    edges = [*inputs([one, two], TEXT, first), loop(NUMBER, again)]
    return [*edges, lookup(rows, TEXT), output(out, TEXT)]


def alone(one: str, two: str, _rows: str, _out: str) -> list[Edge]:
    def see(context: Context, value: str) -> None:
        assert context.key
        assert value

    return inputs([one, two], TEXT, see)


def joining(one: str, two: str, rows: str, out: str) -> list[Edge]:
    def look(context: Context, value: str) -> None:
        if value != "drop":
            joined = f"{context.join(rows)}/{context.join(one)}"
            context.emit(out, context.key, f"{value}/{joined}")

    edges = [*inputs([one, two], TEXT, look), join(rows, TEXT), join(one, TEXT)]
    return [*edges, output(out, TEXT)]


@pytest.mark.parametrize("edges", [stateless, alone, joining])
def test_a_group_without_a_table_does_the_same_on_spark_as_in_the_tester(
    lab: Lab, edges: Callable[..., list[Edge]]
) -> None:
    """Tasks that emit nothing, lone tombstones, and topics of any number of partitions."""
    one, two, rows, out = lab.topics(one=1, two=2, rows=1, out=3)
    graph = define_group(lab.group, edges(one, two, rows, out))
    tester = Tester()
    tester.add_processor(graph)
    tracker = tester.queue_tracker(out)
    for key, value in (("all", "77"), ("a", "Ann")):
        lab.send(rows, (key, value.encode()))
        if rows in graph.joins or rows in graph.lookups:
            tester.set_table_value(rows, key, value)
    for topic, key, text in (
        *((one, "a", "drop"), (one, "b", None), (one, "a", "keep 1"), (one, "c", "keep 2")),
        *((one, "d", "drop"), (two, "a", "keep 3"), (two, "e", None)),
    ):
        lab.send(topic, (key, None if text is None else text.encode()))
        tester.consume(topic, key, text)
    with lab.processor(graph, buckets=5) as processor:
        lab.drain(processor)
    expected: dict[str, list[str]] = defaultdict(list)
    for message in tracker:
        expected[message.key].append(message.value)
    # Tasks of two inputs run at once.
    found = {key: sorted(map(str, values)) for key, values in lab.values(out).items()}
    assert found == {key: sorted(values) for key, values in expected.items()}


def faulty(out: str) -> Callable[[Context, str], None]:
    # Executors cannot import this module: what is defined here goes there by value.
    def leave() -> None:
        raise SystemExit(3)

    def fail(context: Context, value: str) -> None:
        context.set_value("written by a message that fails")
        faults: dict[str, Callable[[], object]] = {
            "exit": leave,
            "surrogate": lambda: context.fail("\ud800 on\ntwo lines"),
            "large row": lambda: context.set_value("x" * 1_048_576),
            "large emit": lambda: context.emit(out, "k", "x" * 20_000),
            LONG: lambda: context.fail("too long"),
        }
        faults.get(value, lambda: context.set_value(value))()

    return fail


LONG = "v" * 990_000
FAULTS = ("exit", "surrogate", "large row", "large emit", LONG)


def test_an_exception_or_a_large_record_is_the_failure_of_its_message(
    lab: Lab,
) -> None:
    """Exceptions that end a process, and too large records, fail alone.

    A time that Spark cannot hold fails before a callback, and is the cause in one sentence.
    """
    orders, letters, out = (f"{lab.group}-{name}" for name in ("orders", "letters", "out"))
    with TopicManager(lab.brokers) as topics:
        topics.ensure_topic(orders, 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
        topics.ensure_topic(letters, 1, {"max.message.bytes": "900000"})
        topics.ensure_topic(out, 1, {"max.message.bytes": "10000"})
    edges = [input(orders, TEXT, faulty(out)), persist(TEXT), output(out, TEXT)]
    for number, value in enumerate(FAULTS):
        lab.send(orders, (f"k{number}", value.encode()), (f"k{number}", b"good"))
    lab.send(orders, ("undecodable", b"\xff"))
    lab.run(*edges, dead_letters=letters)
    assert lab.table() == {f"k{number}": b"good" for number in range(len(FAULTS))}
    assert lab.values(out) == {}
    found = {letter.key().decode(): letter for letter in messages(lab.brokers, letters)}
    assert len(found) == len(FAULTS) + 1
    assert b"UnicodeDecodeError" in dict(found["undecodable"].headers())[ERROR]
    for number, value in enumerate(FAULTS):
        letter = found[f"k{number}"]
        assert letter.value() == (None if len(value) > 1_000 else value.encode())
        headers = dict(letter.headers())
        assert headers.get(CUT) == (b"%d" % len(value) if len(value) > 1_000 else None)
        assert headers[OFFSET] == b"%d" % (2 * number)
        assert f"key 'k{number}'".encode() in headers[ERROR]
    texts = [dict(found[f"k{number}"].headers())[ERROR] for number in range(4)]
    assert b"SystemExit: 3" in texts[0]
    assert rb"ContextError: \ud800 on\ntwo lines" in texts[1]
    assert b"for " + lab.group.encode() + b"-table" in texts[2]
    assert b"larger than the 10,000 bytes that Kafka takes" in texts[3]
    producer = Producer({"bootstrap.servers": lab.brokers})
    producer.produce(orders, b"late", "k", timestamp=2**62)
    assert producer.flush(WAIT_S) == 0
    with pytest.raises(ProcessorError, match=r"^group .*: a message has a timestamp beyond"):
        lab.run(*edges, dead_letters=letters)


def test_messages_of_aborted_transactions_are_not_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as messages, nor as rows of a joined, looked-up or recovered table.

    A table is not recovered while an open transaction hides rows that are committed.
    """
    orders, names, rates, out = lab.topics(orders=1, names=1, rates=1, out=1)
    (own,) = lab.topics(table=1)

    def count(context: Context, value: str) -> None:
        context.set_value((context.value() or 0) + 1)
        rate = context.lookup(rates, context.key)
        context.emit(out, context.key, f"{value}/{context.join(names)}/{rate}")

    for topic in (names, rates):
        lab.send(topic, ("k", b"real"))
    lab.send(own, ("k", b"7"))
    aborting = Transactional(lab.kafka, lab.group)
    aborting.write(*((topic, "k", "100") for topic in (orders, names, rates, own)))
    lab.send(own, ("behind", b"3"))
    monkeypatch.setattr("offsetmgr.streams.planning.TRANSACTION_S", 0.0)
    edges = [input(orders, TEXT, count), join(names, TEXT), lookup(rates, TEXT)]
    edges += [output(out, TEXT), persist(NUMBER)]
    with pytest.raises(ProcessorError, match=f"hides the rows of {own}/0 from offset 1 on; abort"):
        lab.run(*edges)
    aborting.end(commits=False)
    monkeypatch.undo()
    lab.send(orders, ("k", b"real"), ("behind", b"real"))
    lab.run(*edges)
    assert lab.table() == {"k": b"8", "behind": b"4"}
    assert lab.values(out) == {"k": ["real/real/real"], "behind": ["real/None/None"]}


def test_a_checkpoint_goes_on_with_a_changed_graph(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Joins are read from their beginning, inputs where ``missing`` says; the table stays."""
    orders, refunds, names, prices, out = lab.topics(orders=1, refunds=1, names=1, prices=2, out=1)
    lab.send(names, ("k", b"Ann"))
    lab.send(prices, ("k", b"9"))
    lab.send(refunds, *[("k", b"old")] * 5)
    admin = AdminClient({"bootstrap.servers": lab.brokers})
    (cut,) = admin.delete_records([TopicPartition(refunds, 0, 3)]).values()
    cut.result(WAIT_S)

    def run(joins: Sequence[str], sources: Iterable[str] = (orders,), **settings: Any) -> list[Any]:
        def count(context: Context, value: str) -> None:
            context.set_value((context.value() or 0) + 1)
            rows = [str(context.join(table)) for table in joins]
            context.emit(out, context.key, "/".join([value, str(context.value()), *rows]))

        before = len(lab.values(out).get("k", []))
        lab.run(
            inputs(sources, TEXT, count),
            *(join(table, TEXT) for table in joins),
            output(out, TEXT),
            persist(NUMBER),
            **settings,
        )
        return lab.values(out)["k"][before:]

    lab.send(orders, ("k", b"one"), ("other", b"one"))
    assert run([names]) == ["one/1/Ann"]
    lab.send(names, ("k", b"Bob"))
    lab.send(orders, ("k", b"two"))
    with caplog.at_level(logging.WARNING, "offsetmgr.streams"):
        assert run([], [orders, refunds], missing="latest") == ["two/2"]
    assert f"topic {refunds} was added; it is read from {{0: 5}} on" in caplog.text
    assert f"topic {names} is no longer read" in caplog.text
    lab.send(refunds, ("k", b"four"))
    grow(lab.kafka, orders, 3)
    for partition in range(3):
        send(lab.kafka, orders, ("k", b"three"), partition=partition)
    own = f"{lab.group}-table"
    if lab.spark.version >= "4":  # it reads the state of a query
        delete(lab.kafka, own)
    threes = [f"three/{number}/9/Bob" for number in range(3, 6)]
    assert run([prices, names], [orders, refunds]) == [*threes, "four/6/9/Bob"]
    assert lab.table() == {"k": b"6", "other": b"1"}
    with pytest.raises(ProcessorError, match="has a table or a join, and the graph has none now"):
        lab.run(input(orders, TEXT, print))


def test_a_topic_that_changes_in_a_run_is_named_in_one_sentence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind: Spark passes over messages of a new log, and has pages of Java for a lost one.

    It waits for minutes to write a partition that is no longer there.  One that was added gets no
    record until the next start.
    """
    monkeypatch.setattr("offsetmgr.streams.processor.LOOK_S", 0.2)
    orders, out = lab.topics(orders=1, out=2)
    begun = lab.path / "begun"

    def copy(context: Context, value: str) -> None:
        context.emit(out, context.key, value)
        if value == "last":
            begun.touch()
            time.sleep(10 * WAIT_S)  # until the query is stopped

    edges = [input(orders, TEXT, copy), output(out, TEXT)]
    lab.send(orders, ("k", b"one"))
    processor = lab.processor(define_group(lab.group, edges))
    with processor:
        lab.drain(processor)
        grow(lab.kafka, out, 3)
        grown = f"the first 2 of 3 partitions of {out}, as that topic got more while it ran: start"
        eventually(lambda: grown in caplog.text, expected=True)
        lab.send(orders, ("k", b"last"))
        eventually(begun.exists, expected=True)
        delete(lab.kafka, orders)
        lab.topics(orders=1)
        lab.send(orders, *[("k", b"new")] * 3)
        text = f"topics were deleted and recreated while it ran: {orders}; start the processor"
        with pytest.raises(ProcessorError, match=text):
            processor.await_end(WAIT_S)
        assert processor.state == "failed"
    assert caplog.text.count(grown) == 1
    with processor:
        lab.drain(processor)
        assert lab.values(out) == {"k": ["one", "new", "new", "new"]}
        delete(lab.kafka, orders)
        text = r"^group .*: .*a topic was deleted.*: start"
        with pytest.raises(ProcessorError, match=text) as why:
            processor.await_end(WAIT_S)
    assert "\n" not in str(why.value)
    lab.topics(orders=1)
    with processor:
        lab.drain(processor)
        for checkpoint, text in (("first", "runs with checkpoint"), ("new", "of the group reads")):
            with pytest.raises(ProcessorError, match=f"another processor {text}"):
                lab.processor(processor.graph, checkpoint).start()
        delete(lab.kafka, out)
        lab.topics(out=1)
        with pytest.raises(ProcessorError, match=rf"fewer partitions: {out} \([01] of 3 part"):
            processor.await_end(WAIT_S)


def test_tls_and_a_password_are_set_once(lab: Lab) -> None:
    """For Spark's clients as for librdkafka's: what it reads and writes, and its lookups.

    The right to see the settings of its table is not needed.
    """
    orders, rates, out, _own = lab.topics(orders=1, rates=1, out=1, table=1)
    for right in (AclOperation.READ, AclOperation.WRITE):
        allow(lab.kafka, ResourceType.TOPIC, lab.group, right, prefixed=True)

    def look_up(context: Context, value: str) -> None:
        context.set_value(1)
        context.emit(out, context.key, f"{value}/{context.lookup(rates, 'r')}")

    edges = [input(orders, TEXT, look_up), lookup(rates, TEXT), output(out, TEXT)]
    graph = define_group(lab.group, edges, persist(NUMBER))
    lab.send(rates, ("r", b"7"))
    lab.send(orders, ("k", b"x"))
    made = lab.processor(graph, kafka=user_login(lab.kafka))
    made.run(available_now=True)
    assert lab.values(out) == {"k": ["x/7"]}
    # The table is read in the same way, by a view that is not started yet.
    with made.view() as rows:
        rows.wait_until_running(WAIT_S)
        assert dict(rows) == {"k": 1}
    visited = define_group(lab.group, edges, persist(NUMBER), visitor("v", print))
    with pytest.raises(ProcessorError, match="does not run: visit while it does"):
        lab.processor(visited).visit("v")
    with pytest.raises(ProcessorError, match="is stateless and has no rows"):
        lab.processor(define_group(lab.group, edges)).view()
