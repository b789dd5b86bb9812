"""A callback's context and what comes of a message: the rules for tester and Spark."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import batch_ranges
from offsetmgr.streams import NO_TIME, Context, ProcessingError, codecs, visitor
from offsetmgr.streams.engine import Effects, Engine, Tables
from offsetmgr.streams.graph import define_group, input, join, lookup, loop, output, persist
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.messages import Message, Record, kafka_bytes
from offsetmgr.streams.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT = codecs.String()
MESSAGE = Message("in", b"bob", b"5", 3, 42, 1_000, [("a", b"1"), ("a", b"2"), ("b", None)])


def run(
    callback: Any,
    message: Message = MESSAGE,
    tables: Tables | None = None,
    codec: Any = TEXT,
    **options: Any,
) -> Effects:
    """Process a message in a group that has every kind of edge."""
    graph = define_group(
        "group",
        input("in", codec, callback),
        loop(TEXT, callback),
        persist(codecs.Int64()),
        output("out", TEXT),
        join("names", TEXT),
        lookup("rates", codecs.Int64()),
        visitor("reset", callback),
    )
    return Engine(graph, **options).process(message, Tables({}) if tables is None else tables)


def failure(callback: Any, **options: Any) -> str:
    with pytest.raises(ProcessingError) as failed:
        run(callback, **options)
    return str(failed.value)


def test_a_context_has_its_message() -> None:
    """The last of a header given twice; without headers an empty mapping, without time year 1."""
    seen: list[object] = []

    def callback(ctx: Context, value: str) -> None:
        seen.append((ctx.key, ctx.topic, ctx.partition, ctx.offset, ctx.group, value))
        seen.append((ctx.timestamp, ctx.headers))

    assert run(callback) == Effects([], [])
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert seen == [("bob", "in", 3, 42, "group", "5"), (at, {"a": b"2", "b": None})]
    run(callback, Message("in", b"", b""))
    run(callback, Message("in", b"", b"", timestamp_ms=2**62))  # beyond all years
    assert seen[3::2] == [(NO_TIME, {})] * 2
    assert datetime.now(timezone.utc) - timedelta(days=365) > NO_TIME


def test_a_row_is_read_set_and_deleted() -> None:
    """A callback sees what it has written; each write is a record of the table's topic."""
    table = {b"bob": b"7"}
    seen: list[object] = []

    def callback(ctx: Context, value: str) -> None:
        seen.append(ctx.value())
        ctx.set_value(8, headers={"why": b"test"})
        seen.append(ctx.value())
        ctx.delete()
        seen.append(ctx.value())

    records = run(callback, tables=Tables(table)).records
    assert seen == [7, 8, None]
    assert records == [
        Record("group-table", b"bob", b"8", (("why", b"test"),)),
        Record("group-table", b"bob", None),
    ]
    assert table == {b"bob": b"7"}, "the caller applies the records"


def test_a_decoded_row_is_a_copy() -> None:
    """Changing a value without setting it changes nothing."""
    seen: list[object] = []

    def callback(ctx: Context, value: str) -> None:
        ctx.value().append(1)
        seen.append(ctx.value())

    graph = define_group("g", input("in", TEXT, callback), persist(codecs.Json()))
    Engine(graph).process(MESSAGE, Tables({b"bob": b"[]"}))
    assert seen == [[]]


def test_emits_and_loopbacks() -> None:
    """Records in their order; default headers on these two alone, overridden by their own."""

    def callback(ctx: Context, value: str) -> None:
        ctx.emit("out", "k", "v")
        ctx.emit("out", "k", None, headers={"app": b"mine"})
        ctx.loopback("other", "again", headers={"hop": b"1"})
        ctx.set_value(1)

    app = (("app", b"test"),)
    assert run(callback, default_headers={"app": b"test"}).records == [
        Record("out", b"k", b"v", app),
        Record("out", b"k", None, (("app", b"mine"),)),
        Record("group-loop", b"other", b"again", (*app, ("hop", b"1"))),
        Record("group-table", b"bob", b"1"),
    ]


@given(st.binary())
def test_any_key_survives(key: bytes) -> None:
    """Keys need not be UTF-8."""
    message = MESSAGE._replace(key=key)
    assert run(lambda ctx, _: ctx.emit("out", ctx.key, "v"), message).records[0].key == key


@pytest.mark.parametrize(
    ("misuse", "why"),
    [
        (lambda c: c.emit("", "k", "v"), "cannot emit to empty topic"),
        (lambda c: c.emit("group-loop", "k", "v"), "use loopback"),
        (lambda c: c.emit("group-table", "k", "v"), "use set_value"),
        (lambda c: c.emit("other", "k", "v"), "'other' is not configured for output: add output"),
        (lambda c: c.emit("out", "k", 1), "cannot encode 1 for output out/String"),
        (lambda c: c.loopback("k", None), "cannot encode None for loop group-loop"),
        (lambda c: c.set_value(None), r"cannot set None as value: use delete"),
        (lambda c: c.set_value("x"), "cannot encode 'x' for persist group-table/Int64"),
        (lambda c: c.join("out"), "table 'out' is not joined"),
        (lambda c: c.lookup("names", "k"), "table 'names' cannot be looked up"),
        (lambda c: c.fail(RuntimeError("told to")), "RuntimeError: told to"),
        (lambda c: c.fail("told to"), "told to"),
        (lambda c: c.emit("out", 5, "v"), "key 5 is not text"),
        (lambda c: c.emit("out", "\ud800", "v"), "is not text"),
        (lambda c: c.set_value(1, headers={"a": "x"}), "header a 'x' is not bytes"),
        (lambda c: c.emit("out", "k", "v", [("a", b"x")]), "is not a mapping; give names"),
        (lambda c: c.emit("out", "k", "v", {"\udcff": b""}), "is not text"),
        (lambda c: c.value(), "key b'bob' of persist group-table/Int64: ConnectionError: store"),
        (lambda c: c.join("names"), "key b'bob' of join names/String: ConnectionError: store"),
        (lambda c: c.lookup("rates", "k"), "key b'k' of lookup rates/Int64: ConnectionError"),
    ],
    ids=range(20),
)
def test_misuse_fails_even_if_it_is_caught(misuse: Any, why: str) -> None:
    """A callback cannot lose the failure, nor what follows it."""

    def catching(ctx: Context, value: str) -> None:
        try:
            misuse(ctx)
        except Exception:  # noqa: BLE001
            raise ValueError("hidden") from None

    def swallowing(ctx: Context, value: str) -> None:
        try:
            misuse(ctx)
        except Exception:  # noqa: BLE001
            ctx.emit("out", "k", "v")

    away = Mock(get=Mock(side_effect=ConnectionError("store away")))
    tables = Tables(away, {"names": away}, {"rates": away})
    for callback in (lambda ctx, _: misuse(ctx), catching, swallowing):
        text = failure(callback, tables=tables, default_headers={"app": b"test"})
        assert why in text
        assert "in/3 at offset 42, key 'bob'" in text
        assert "hidden" not in text


@pytest.mark.parametrize(
    ("callback", "why"),
    [
        (lambda ctx, _: ctx.value(), r"stateless processor: add persist\(\)"),
        (lambda ctx, value: ctx.set_value(value), r"stateless processor: add persist\(\)"),
        (lambda ctx, _: ctx.delete(), r"stateless processor: add persist\(\)"),
        (lambda ctx, value: ctx.loopback("k", value), r"no loop topic configured: add loop\(\)"),
    ],
    ids=range(4),
)
def test_a_group_has_rows_and_a_loop_if_they_are_defined(callback: Any, why: str) -> None:
    """A message of another topic has no callback."""
    engine = Engine(define_group("g", input("in", TEXT, callback)))
    with pytest.raises(ProcessingError, match=why):
        engine.process(MESSAGE, Tables({}))
    with pytest.raises(ProcessingError, match="no callback reads this topic"):
        engine.process(MESSAGE._replace(topic="g-loop"), Tables({}))


def test_errors_have_the_coordinates_and_the_cause() -> None:
    """A callback raises, or a message or a row cannot be decoded."""

    def raising(ctx: Context, value: str) -> None:
        raise KeyError("lost")

    with pytest.raises(ProcessingError, match="raising failed: KeyError: 'lost'") as failed:
        run(raising)
    assert str(failed.value).startswith("group group: callback")
    assert "the message is not committed" in str(failed.value)
    assert isinstance(failed.value.__cause__, KeyError)
    assert failed.value.message == MESSAGE
    again = pickle.loads(pickle.dumps(failed.value))  # noqa: S301 -- our own
    assert str(again) == str(failed.value)
    message = MESSAGE._replace(value=b"five")
    text = failure(raising, message=message, codec=codecs.Int64())
    assert "cannot decode the value with input in/Int64: ValueError: invalid literal" in text
    text = failure(lambda ctx, _: ctx.value(), tables=Tables({b"bob": b"x"}))
    assert "cannot decode the row of persist group-table/Int64" in text


def test_messages_without_a_value() -> None:
    """Ignored by default; or a call with None; or what the codec makes of None."""

    class Decoding(codecs.String):
        def decode(self, data: bytes | None) -> str:
            return "nothing" if data is None else super().decode(data)

    seen: list[object] = []

    def callback(_ctx: Context, value: object) -> None:
        seen.append(value)

    nil = MESSAGE._replace(value=None)
    assert run(callback, nil) == Effects()
    run(callback, nil, nil_handling="process")
    run(callback, nil, nil_handling="decode", codec=Decoding())
    assert seen == [None, "nothing"]


def test_a_context_ends_with_its_callback() -> None:
    """Later writes would be lost, so they are refused."""
    kept: list[Context] = []
    run(lambda ctx, _: kept.append(ctx))
    with pytest.raises(Exception, match="used after its callback had returned"):
        kept[0].emit("out", "k", "v")


def test_contexts_can_be_wrapped() -> None:
    """Callbacks and visitors get the wrapper's context."""

    class Doubling:
        def __init__(self, ctx: Context) -> None:
            self.ctx = ctx

        def set_value(self, value: int) -> None:
            self.ctx.set_value(2 * value)

    def callback(ctx: Context, value: str) -> None:
        ctx.set_value(int(value))

    doubled = [Record("group-table", b"bob", b"10")]
    assert run(callback, context_wrapper=Doubling).records == doubled
    edges = [input("in", TEXT, callback), persist(codecs.Int64()), visitor("reset", callback)]
    engine = Engine(define_group("group", edges), context_wrapper=Doubling)
    assert engine.visit("reset", 5, MESSAGE, Tables({})).records == doubled


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), None])
def test_an_exception_of_any_kind_is_the_failure_of_its_message(
    error: BaseException | None,
) -> None:
    """Errors of codecs and tables too, and one whose text cannot be read or encoded."""

    class Unreadable(BaseException):
        def __str__(self) -> str:
            raise ValueError

    def raising(ctx: Context, value: str) -> None:
        raise Unreadable if error is None else error

    name = "Unreadable: its text cannot be had" if error is None else type(error).__name__
    assert f"raising failed: {name}" in failure(raising)
    broken = Mock(encode=Mock(side_effect=error or Unreadable), decode=Mock(side_effect=SystemExit))
    graph = define_group("g", input("in", broken, print), output("out", broken))
    with pytest.raises(ProcessingError, match=r"cannot decode the value .*: SystemExit"):
        Engine(graph).process(MESSAGE, Tables({}))
    assert "ValueError: \\ud800\\n2" in failure(lambda ctx, _: ctx.fail(ValueError("\ud800\n2")))


def test_a_callback_that_does_not_run_is_a_failure() -> None:
    """A coroutine or a generator is refused, or fails its message where only the call shows it."""

    async def waiting(ctx: Context, value: str) -> None:
        ctx.set_value(value)

    def yielding(ctx: Context, value: str) -> Iterator[str]:
        ctx.set_value(value)
        yield value

    views = partial(View, "localhost:9092", "in", codecs.String(), storage=MemoryStorage())
    for callback in (waiting, yielding):
        for use in (
            lambda call: input("in", codecs.String(), call), batch_ranges("checkpoint"),
            lambda call: views(update=call), views().observe,
        ):  # fmt: skip
            with pytest.raises(InvalidValueError, match="returns before its work is done; give a"):
                use(callback)  # type: ignore[arg-type]
    text = "returned a coroutine, which nobody runs: use def"
    assert text in failure(lambda ctx, _value: waiting(ctx, "x"))
    assert "returned a generator" in failure(lambda ctx, _value: yielding(ctx, "x"))


def test_a_record_above_the_limit_is_a_failure() -> None:
    """The limit of its topic counts, to the byte; the largest record is written."""

    def emit(size: int) -> Callable[[Context, str], None]:
        headers = {"h": b"1", "n": None}
        return lambda ctx, _: ctx.emit("out", "k", "x" * size, headers)

    (record,) = run(emit(1_000)).records
    # 61 of the batch, 21 of the record, 1 for the number of headers; each part with its length.
    size = kafka_bytes(record)
    assert size == 83 + 2 + (2 + 1_000) + 2 + 2 + 2 + 1
    assert len(run(emit(1_000), limits={"out": size}).records) == 1
    text = failure(emit(1_001), limits={"out": size})
    assert (
        f"a record of {size + 1:,} bytes for out with key b'k' is larger than the {size:,}" in text
    )
    assert "in/3 at offset 42, key 'bob'" in text
    assert "group-table with key b'bob' is larger than the 100" in failure(
        lambda ctx, _: ctx.set_value(1, {"h": b"x" * 100}), limits={"group-table": 100}
    )
    assert "1,048,576" in failure(emit(1_048_576))
