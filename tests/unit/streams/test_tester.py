"""The tester: processors, views and emitters together, without a broker."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import Context, EmitterClosedError, ProcessorError, Tester, codecs, visitor
from offsetmgr.streams.errors import ContextError, ProcessingError
from offsetmgr.streams.graph import define_group, input, inputs, join, lookup, loop, output, persist

if TYPE_CHECKING:
    from offsetmgr.streams import GroupGraph
    from offsetmgr.streams.tester import TesterProcessor

TEXT = codecs.String()
INT = codecs.Int64()


def add(ctx: Context, value: int) -> None:
    ctx.set_value((ctx.value() or 0) + value)


def sums(*edges: Any) -> GroupGraph:
    return define_group("sums", input("numbers", INT, add), persist(INT), *edges)


def added(graph: GroupGraph, **options: Any) -> tuple[Tester, TesterProcessor]:
    tester = Tester()
    return tester, tester.add_processor(graph, **options)


def refuse(_record: object) -> NoReturn:
    raise ConnectionError("broker away")


def test_tables_are_read_and_set() -> None:
    """Rows of a processor can be set before and read after."""
    tester, processor = added(sums())
    assert tester.table_value("sums-table", "bob") is None
    tester.set_table_value("sums-table", "bob", 10)
    tester.consume("numbers", "bob", 2)
    tester.consume("numbers", "ann", 1)
    assert tester.table_value("sums-table", "bob") == processor.get("bob") == 12
    assert tester.table_keys("sums-table") == ["ann", "bob"]
    tester.clear_values()
    assert tester.table_keys("sums-table") == []


def test_outputs_are_tracked() -> None:
    """A tracker begins at the end, decodes, shows headers and tombstones, and can go back."""
    seen: list[object] = []

    def forward(ctx: Context, value: str) -> None:
        seen.append((ctx.offset, ctx.timestamp, ctx.headers))
        ctx.emit("out", ctx.key, value or None, headers={"a": b"1"})

    graph = define_group("g", input("in", TEXT, forward), output("out", TEXT))
    tester, _ = added(graph, default_headers={"a": b"0", "b": b"0"})
    tester.consume("in", "bob", "before")
    tracker = tester.queue_tracker("out")
    assert tracker.next() is None
    at = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
    tester.consume("in", "bob", "hello", headers={"c": b"2"}, timestamp=at)
    tester.consume("in", "bob", "")
    assert seen[1] == (1, at, {"c": b"2"})
    assert tracker.next() == ("bob", "hello", {"a": b"1", "b": b"0"}, 1)
    message = tracker.next()
    assert message
    assert message.value is None
    assert tracker.next_raw() is None
    assert (tracker.next_offset, tracker.high_watermark) == (3, 3)
    tracker.seek(0)
    assert [message.value for message in tracker] == ["before", "hello", None]
    tracker.seek(1)
    message = tracker.next_raw()
    assert message
    assert message.value == b"hello"
    with pytest.raises(InvalidValueError, match="offset -1 is negative"):
        tracker.seek(-1)


def test_messages_are_processed_in_the_order_of_their_writing() -> None:
    """A partition is serial: a loop's message comes after what was written before it."""
    seen: list[str] = []

    def callback(ctx: Context, value: str) -> None:
        seen.append(f"{ctx.topic} {value}")
        if ctx.topic == "a":
            ctx.loopback(ctx.key, "1")
            ctx.emit("b", ctx.key, "2")
            ctx.loopback(ctx.key, "3")

    edges = [*inputs(["a", "b"], TEXT, callback), loop(TEXT, callback), output("b", TEXT)]
    tester, _ = added(define_group("g", edges))
    tester.consume("a", "k", "0")
    assert seen == ["a 0", "g-loop 1", "b 2", "g-loop 3"]


def test_processors_take_turns() -> None:
    """The oldest message is the next, whichever processor reads it."""

    def relay(ctx: Context, value: int) -> None:
        ctx.emit("log", ctx.group, value)
        if value:
            ctx.loopback(ctx.key, value - 1)

    tester = Tester()
    for group in ("a", "b"):
        edges = [input("in", INT, relay), loop(INT, relay), output("log", INT)]
        tester.add_processor(define_group(group, edges))
    log = tester.queue_tracker("log")
    tester.consume("in", "k", 2)
    assert [f"{each.key}{each.value}" for each in log] == ["a2", "b2", "a1", "b1", "a0", "b0"]


def test_a_loop_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not run forever."""
    monkeypatch.setattr("offsetmgr.streams.tester.MAX_MESSAGES", 100)

    def again(ctx: Context, value: str) -> None:
        ctx.loopback(ctx.key, value)

    tester, _ = added(define_group("g", input("in", TEXT, again), loop(TEXT, again)))
    with pytest.raises(ProcessingError, match="one message caused 100: does a loop never end"):
        tester.consume("in", "k", "v")


def test_joins_and_lookups_see_other_tables() -> None:
    """A joined table is consumed or set; another group's table is looked up."""
    seen: list[object] = []

    def callback(ctx: Context, value: str) -> None:
        seen.append((ctx.join("names"), ctx.lookup("sums-table", value)))

    edges = [input("in", TEXT, callback), join("names", TEXT), lookup("sums-table", INT)]
    tester, _ = added(sums())
    tester.add_processor(define_group("g", edges))
    tester.consume("in", "bob", "ann")
    tester.consume("names", "bob", "Bob")
    tester.consume("numbers", "ann", 7)
    tester.consume("in", "bob", "ann")
    tester.consume("names", "bob", None)
    tester.consume("in", "bob", "bob")
    assert seen == [(None, None), ("Bob", 7), (None, None)]


def test_a_failure_stops_the_processor_and_commits_nothing() -> None:
    """The error shows at every consume until a restart; others go on; the message comes again."""
    broken = True

    def fragile(ctx: Context, value: int) -> None:
        add(ctx, value)
        ctx.emit("out", ctx.key, value)
        if broken and value == 2:
            ctx.fail("told to")

    edges = [input("numbers", INT, fragile), persist(INT), output("out", INT)]
    tester, processor = added(define_group("fragile", edges))
    tester.add_processor(sums())
    out = tester.queue_tracker("out")
    tester.consume("numbers", "bob", 1)
    for _ in range(2):
        with pytest.raises(ProcessingError, match=r"told to .numbers/0 at offset 1, key 'bob'"):
            tester.consume("numbers", "bob", 2)
    assert processor.error
    assert (processor.committed("numbers"), processor.get("bob")) == (1, 1)
    assert [message.value for message in out] == [1]
    assert tester.table_value("sums-table", "bob") == 5
    broken = False
    processor.restart()
    assert (processor.committed("numbers"), processor.get("bob")) == (3, 5)
    assert [message.value for message in out] == [2, 2]


def test_a_stopped_processor_reads_nothing() -> None:
    """It cannot be visited either, as on Spark.  After a restart it goes on where it was."""
    tester, processor = added(sums(visitor("keep", print)))
    processor.stop()
    with pytest.raises(ProcessorError, match="sums does not run"):
        processor.visit_all("keep")
    tester.consume("numbers", "bob", 2)
    assert processor.get("bob") is None
    processor.restart()
    assert processor.get("bob") == 2


def test_deferred_commits() -> None:
    """The committed offset waits for the lowest unfinished message, however late it is done.

    A message that comes again changes its row once.
    """
    contexts: list[Context] = []
    dones: list[Any] = []

    def defer(context: Context, _value: str) -> None:
        contexts.append(context)
        dones.append(context.defer_commit())
        context.set_value((context.value() or 0) + 1)

    tester, processor = added(define_group("g", input("in", TEXT, defer), persist(INT)))
    for number in range(3):
        tester.consume("in", "k", str(number))
    dones[1]()
    assert processor.committed("in") == 0
    dones[0]()
    dones[0](ValueError("only the first call counts"))
    assert processor.committed("in") == 2
    processor.restart()
    assert len(dones) == 4, "the third message comes again"
    assert processor.get("k") == 3
    dones[3]()
    assert processor.committed("in") == 3
    tester.consume("in", "k", "3")
    dones[4]("a text")
    with pytest.raises(ProcessingError, match="deferred commit failed: ContextError: a text"):
        tester.catch_up()
    assert processor.committed("in") == 3
    with pytest.raises(ContextError, match=r"the message does not wait for a late defer_commit"):
        contexts[0].defer_commit()


def test_visits() -> None:
    """Each row is visited once; what visits cause is drained."""

    def reset(ctx: Context, meta: int) -> None:
        ctx.emit("out", ctx.key, ctx.value())
        ctx.delete()
        ctx.loopback(ctx.key, meta)

    graph = sums(loop(INT, add), output("out", INT), visitor("reset", reset))
    tester, processor = added(graph)
    out = tester.queue_tracker("out")
    with pytest.raises(InvalidValueError, match="visitor 'unknown' is not defined"):
        processor.visit_all("unknown")  # also of a table without rows
    tester.consume("numbers", "bob", 1)
    tester.consume("numbers", "ann", 2)
    assert processor.visit_all("reset", 15) == 2
    assert [(message.key, message.value) for message in out] == [("ann", 2), ("bob", 1)]
    assert processor.get("ann") == processor.get("bob") == 15
    with pytest.raises(ProcessingError, match="reset/0 at offset 0, key 'ann'"):
        processor.visit_all("reset", "text")
    processor.restart()
    # A visit that is not written, once its row is deleted.
    tester.replace_emit_handler(lambda record: record.topic != "sums-loop" or refuse(record))
    with pytest.raises(ProcessingError, match="writing to sums-loop failed"):
        processor.visit_all("reset", 1)
    assert processor.get("ann") == processor.get("bob") == 15


@pytest.mark.parametrize(("meta", "found"), [((1, 2), [1, 2]), ({1: b"a"}, {"1": "YQ=="})])
def test_the_argument_of_a_visit_is_as_in_json(meta: object, found: object) -> None:
    """As on Spark, where the request for a visit is a message."""
    metas: list[object] = []
    tester, processor = added(sums(visitor("keep", lambda _, meta: metas.append(meta))))
    tester.consume("numbers", "bob", 1)
    processor.visit_all("keep", meta)
    assert metas == [found]
    with pytest.raises(InvalidValueError, match=r"meta .* cannot be sent"):
        processor.visit_all("keep", object())


def test_views_show_tables() -> None:
    """Tables of a group or any topic, in the order of keys, as a range or a prefix."""
    tester, _ = added(sums())
    view, names = tester.add_view("sums-table", INT), tester.add_view("names", TEXT)
    for number, key in enumerate(["b", "aa", "a", "c", "ab"]):
        tester.consume("numbers", key, number)
    tester.consume("names", "bob", "Bob")
    assert (view.get("aa"), view.get("x"), names.get("bob")) == (1, None, "Bob")
    assert list(view.items()) == [("a", 2), ("aa", 1), ("ab", 4), ("b", 0), ("c", 3)]
    assert [key for key, _ in view.items("aa", "c")] == ["aa", "ab", "b"]
    assert [key for key, _ in view.items("a")] == ["a", "aa", "ab"]
    tester.consume("names", "bob", None)
    assert (view.has("aa"), names.has("bob")) == (True, False)


def test_emitters_write_for_processors() -> None:
    """All effects of a message are complete when emit returns; emit after finish raises."""
    tester, _ = added(sums())
    tracker = tester.queue_tracker("numbers")
    with tester.add_emitter("numbers", INT, default_headers={"app": b"test"}) as emitter:
        promise = emitter.emit("bob", 3, headers={"a": b"1"})
        assert promise.result(0) == (0, 0)
        assert emitter.emit_sync("bob", 4).offset == 1
        assert tester.table_value("sums-table", "bob") == 7
    app = {"app": b"test"}
    assert [message.headers for message in tracker] == [app | {"a": b"1"}, app]
    with pytest.raises(InvalidValueError, match="header a 'text' is not bytes; encode it"):
        emitter.emit("bob", 5, headers={"a": "text"})  # type: ignore[dict-item]
    with pytest.raises(InvalidValueError, match=r"headers .* is not a mapping"):
        emitter.emit("bob", 5, headers=[("a", b"1")])  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="header app 1 is not bytes"):
        tester.add_emitter("numbers", INT, default_headers={"app": 1})  # type: ignore[dict-item]
    with pytest.raises(EmitterClosedError, match="numbers is finished, so key 'bob'"):
        emitter.emit("bob", 5)
    emitter.finish()


def test_emit_handlers_can_be_replaced() -> None:
    """The handler gets the records in the place of the topics; its errors are failed writes."""
    records: list[Any] = []
    tester, processor = added(sums())
    tracker = tester.queue_tracker("sums-table")
    tester.replace_emit_handler(records.append)
    tester.consume("numbers", "bob", 3)
    assert [tuple(record)[:3] for record in records] == [("sums-table", b"bob", b"3")]
    assert tracker.next() is None
    assert processor.get("bob") == 3
    tester.replace_emit_handler(lambda _record: sys.exit())
    with pytest.raises(ProcessingError, match=r"writing to sums-table failed: SystemExit"):
        tester.consume("numbers", "bob", 3)
    assert processor.committed("numbers") == 1
    tester.replace_emit_handler(None)
    processor.restart()
    assert processor.get("bob") == 6

    tester.replace_emit_handler(refuse)
    emitter = tester.add_emitter("names", TEXT)
    promise = emitter.emit("bob", "Bob")
    assert isinstance(promise.exception(0), ConnectionError)
    with pytest.raises(ConnectionError, match="broker away"):
        emitter.finish()


def test_a_codec_that_returns_no_bytes_deletes_no_row() -> None:
    """None would be a tombstone."""

    class Forgetful(codecs.String):
        def encode(self, value: str) -> Any:
            return None if value == "forgotten" else super().encode(value)

    tester = Tester()
    emitter = tester.add_emitter("names", Forgetful())
    emitter.emit("k", "Ann")
    consume = partial(tester.consume, "names")
    for write in (emitter.emit, consume, partial(tester.set_table_value, "names")):
        with pytest.raises(TypeError, match="Forgetful returned NoneType, not bytes"):
            write("k", "forgotten")
    assert tester.table_value("names", "k") == "Ann"


def test_conflicts_are_errors() -> None:
    """Two codecs of one topic, a group added twice, and a topic that nothing uses."""
    tester, _ = added(sums())
    with pytest.raises(InvalidValueError, match="topic 'numbers' has two codecs, Int64 and String"):
        tester.add_processor(define_group("g", inputs(["other", "numbers"], TEXT, print)))
    with pytest.raises(InvalidValueError, match="two codecs"):
        tester.add_view("sums-table", TEXT)
    with pytest.raises(InvalidValueError, match="'sums' has a processor in this tester"):
        tester.add_processor(sums())
    with pytest.raises(InvalidValueError, match=r"'other' has no codec; .*known: numbers, sums"):
        tester.consume("other", "k", "v")
