"""Calls callbacks: from a message and tables to its effects, in the tester and on Spark."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, get_args

import msgspec

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.codecs import encoded, whole
from offsetmgr.streams.errors import ContextError, ProcessingError, UnreadableTableError
from offsetmgr.streams.graph import GroupGraph
from offsetmgr.streams.messages import (
    MAX_BYTES,
    NO_TIME,
    Record,
    decode_key,
    encode_key,
    header_list,
    kafka_bytes,
)
from offsetmgr.text import error_text, shown
from offsetmgr.types import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from offsetmgr.streams.graph import Callback, Edge
    from offsetmgr.streams.messages import Headers, Message, Rows

NilHandling = Literal["ignore", "process", "decode"]
"""Messages without a value: no callback, a callback with None, or what the codec makes of None."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_META_BYTES: Final = MAX_BYTES // 2
_UNREAD: Final[Any] = object()
_NONE: Final[Mapping[str, Any]] = {}


class Tables(NamedTuple):
    """The tables that callbacks read, by topic; none is changed by them."""

    table: Rows
    """The group's own."""
    joins: Mapping[str, Rows] = _NONE
    lookups: Mapping[str, Rows] = _NONE


class Context:
    """A message's key and origin, its row, and the ways to write; valid within its callback.

    A wrong use raises ContextError, and the message fails even if the callback catches it.
    """

    def __init__(
        self, graph: GroupGraph, message: Message, tables: Tables, default_headers: Headers
    ) -> None:
        self.key = decode_key(message.key)
        """Key of the message; empty if it has none."""
        self.topic = message.topic
        """Topic of the message; in a visit the visitor's name."""
        self.partition = message.partition
        self.offset = message.offset
        self.group = graph.group
        self._graph = graph
        self._message = message
        self._tables = tables
        self._default_headers = default_headers
        self._row: bytes | None = _UNREAD
        self.records: list[Record] = []
        """Written so far."""
        self.deferred: list[Future[None]] = []
        """One for each ``defer_commit``."""
        self.failure: BaseException | None = None
        """The first failure; it ends the processor whatever the callback does."""
        self.over = False

    @property
    def timestamp(self) -> datetime:
        """Timestamp of the message in UTC; ``NO_TIME``, in the year 1, if it has none."""
        at_ms = self._message.timestamp_ms
        with suppress(OverflowError):
            return NO_TIME if at_ms < 0 else _EPOCH + timedelta(milliseconds=at_ms)
        return NO_TIME

    @property
    def headers(self) -> Headers:
        """Headers of the message; of several with one name the last."""
        return dict(self._message.headers or ())

    def value(self) -> Any:
        """Return the row of the message's key in the group table; None where there is none."""
        table = self._graph.group_table or self._stateless()
        if self._row is _UNREAD:
            self._row = self._read(table, self._tables.table, self._message.key)
        return self._decoded(table, self._row)

    def set_value(self, value: Any, headers: Headers | None = None) -> None:
        """Make ``value`` the row of the message's key; None is refused, use ``delete``."""
        table = self._graph.group_table or self._stateless()
        if value is None:
            self._refuse("cannot set None as value: use delete()")
        self._row = self._encoded(table, value)
        self._write(table.topic, self._message.key, self._row, headers)

    def delete(self, headers: Headers | None = None) -> None:
        """Delete the row of the message's key, here and by a tombstone in the table's topic."""
        table = self._graph.group_table or self._stateless()
        self._row = None
        self._write(table.topic, self._message.key, None, headers)

    def join(self, table: str) -> Any:
        """Return the row of the message's key in a joined table; None where there is none."""
        edge = self._graph.joins.get(table) or self._refuse(
            f"table {shown(table)} is not joined: add join() with it to the group"
        )
        return self._decoded(edge, self._read(edge, self._tables.joins[table], self._message.key))

    def lookup(self, table: str, key: str) -> Any:
        """Return the row of any key in a table; None where there is none."""
        edge = self._graph.lookups.get(table) or self._refuse(
            f"table {shown(table)} cannot be looked up: add lookup() with it to the group"
        )
        return self._decoded(edge, self._read(edge, self._tables.lookups[table], self._key(key)))

    def emit(self, topic: str, key: str, value: Any, headers: Headers | None = None) -> None:
        """Write to an output; a value of None is a tombstone."""
        edge = self._graph.outputs.get(topic) or self._not_an_output(topic)
        data = None if value is None else self._encoded(edge, value)
        self._write(topic, self._key(key), data, headers, self._default_headers)

    def loopback(self, key: str, value: Any, headers: Headers | None = None) -> None:
        """Send ``value`` to the loop's callback, for any key of the group."""
        edge = self._graph.loop_stream or self._refuse("no loop topic configured: add loop()")
        data = self._encoded(edge, value)
        self._write(edge.topic, self._key(key), data, headers, self._default_headers)

    def fail(self, error: BaseException | str) -> NoReturn:
        """Stop the processor and leave the message uncommitted."""
        failure = _as_error(error)
        self.failure = self.failure or failure
        raise failure

    def defer_commit(self) -> Callable[..., None]:
        """Keep the message uncommitted until the returned ``done(error=None)`` is called once."""
        self._check_open("the message does not wait for a late defer_commit()")
        outcome: Future[None] = Future()
        self.deferred.append(outcome)

        def done(error: BaseException | str | None = None) -> None:
            with suppress(InvalidStateError):
                if error is None:
                    outcome.set_result(None)
                else:
                    outcome.set_exception(_as_error(error))

        return done

    def _write(
        self,
        topic: str,
        key: bytes,
        data: bytes | None,
        headers: Headers | None,
        defaults: Headers = _NONE,
    ) -> None:
        self._check_open(f"what it wrote to {topic} is lost: write within the callback")
        try:
            listed = header_list(headers, defaults) if headers or defaults else ()
        except InvalidValueError as error:
            self.fail(error)
        self.records.append(Record(topic, key, data, listed))

    def _check_open(self, text: str) -> None:
        if self.over:
            used = f"group {self.group}: a context was used after its callback had returned"
            raise ContextError(f"{used}, so {text}")

    def _key(self, key: str) -> bytes:
        try:
            return encode_key(key)
        except InvalidValueError as error:
            self.fail(error)

    def _read(self, edge: Edge, rows: Rows, key: bytes) -> bytes | None:
        try:
            return rows.get(key)
        except BaseException as error:  # noqa: BLE001 -- tables raise anything
            text = f"cannot read key {shown(key)} of {edge}: {error_text(error)}"
            self.fail(UnreadableTableError(text))

    def _encoded(self, edge: Edge, value: Any) -> bytes:
        try:
            return encoded(edge.codec, value)
        except BaseException as error:  # noqa: BLE001 -- codecs raise anything
            self._refuse(f"cannot encode {shown(value)} for {edge}: {error_text(error)}", error)

    def _decoded(self, edge: Edge, row: bytes | None) -> Any:
        try:
            return None if row is None else edge.codec.decode(row)
        except BaseException as error:  # noqa: BLE001 -- codecs raise anything
            self._refuse(f"cannot decode the row of {edge}: {error_text(error)}", error)

    def _stateless(self) -> NoReturn:
        self._refuse("cannot access state in stateless processor: add persist() to the group")

    def _not_an_output(self, topic: str) -> NoReturn:
        if not topic:
            self._refuse("cannot emit to empty topic: name an output")
        if topic == self._graph.loop_topic:
            self._refuse("cannot emit to loop topic: use loopback() instead")
        if topic == self._graph.table_topic:
            self._refuse("cannot emit to table topic: use set_value() instead")
        self._refuse(f"topic {shown(topic)} is not configured for output: add output() with it")

    def _refuse(self, text: str, cause: BaseException | None = None) -> NoReturn:
        error = ContextError(text)
        error.__cause__ = cause
        self.fail(error)


class Effects(NamedTuple):
    """The effects of a message.  Apply all of them, then commit the message."""

    records: Sequence[Record] = ()
    """To write, in order.  Those of the group's table topic are its rows; the last one counts."""
    deferred: Sequence[Future[None]] = ()
    """Commit the message once all are done; an exception in one stops the processor."""


class Engine:
    """Processes messages and visits of a group; changes nothing itself.  Picklable as its graph."""

    def __init__(
        self,
        graph: GroupGraph,
        *,
        nil_handling: NilHandling = "ignore",
        default_headers: Headers | None = None,
        context_wrapper: Callable[[Context], Any] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """``default_headers`` go with each emit and loopback.

        ``context_wrapper`` returns what callbacks get in the place of the context.  ``limits`` are
        the largest records by topic, in bytes; of a topic without one Kafka's default counts.
        Raises GraphError, InvalidValueError.
        """
        given: object = graph
        if not isinstance(given, GroupGraph):
            fix = "give what define_group() returns"
            raise InvalidValueError("graph", graph, "is not the graph of a group", fix)
        graph.validate()
        check_choice(nil_handling, "nil_handling", get_args(NilHandling))
        self.graph = graph
        self._nil_handling = nil_handling
        self._default_headers = dict(header_list(default_headers))
        self._wrapper = context_wrapper
        self.limits: Mapping[str, int] = dict(limits or {})

    def process(self, message: Message, tables: Tables) -> Effects:
        """Return the effects of a message of an input or the loop.  Raises ProcessingError."""
        edge = self.graph.streams.get(message.topic)
        if edge is None:
            raise ProcessingError(self.graph.group, message, "no callback reads this topic")
        data = message.value
        value: Any = None
        if data is None and self._nil_handling == "ignore":
            return Effects()
        if data is not None or self._nil_handling == "decode":
            try:
                value = edge.codec.decode(data)
            except BaseException as error:
                problem = f"cannot decode the value with {edge}: {error_text(error)}"
                raise ProcessingError(self.graph.group, message, problem) from error
        return self._call(edge.callback, message, value, tables)

    def visit(self, name: str, meta: Any, row: Message, tables: Tables) -> Effects:
        """Return the effects of a visit of ``row``, whose topic is ``name``; raises as above."""
        return self._call(self.visitor(name).callback, row, meta, tables)

    def visitor(self, name: str) -> Edge:
        """Return the visitor of this name.  Raises InvalidValueError."""
        for edge in self.graph.visitors:
            if edge.topic == name:
                return edge
        fix = "add visitor() with it to the group"
        raise InvalidValueError("visitor", name, "is not defined", fix)

    def _call(self, callback: Callback, message: Message, value: Any, tables: Tables) -> Effects:
        context = Context(self.graph, message, tables, self._default_headers)
        try:
            result = callback(context if self._wrapper is None else self._wrapper(context), value)
            failure = context.failure or _not_run(result) or self._too_large(context.records)
        except BaseException as error:  # noqa: BLE001 -- callbacks raise anything
            failure = context.failure or error
        finally:
            context.over = True
        if failure is not None:
            problem = f"callback {_name(callback)} failed: {error_text(failure)}"
            raise ProcessingError(self.graph.group, message, problem) from failure
        return Effects(context.records, context.deferred)

    def _too_large(self, records: Iterable[Record]) -> ContextError | None:
        """Return the error of the first record that Kafka would refuse; None if there is none."""
        for record in records:
            limit = self.limits.get(record.topic, MAX_BYTES)
            if not record.headers and len(record.key) + len(record.value or b"") < limit // 2:
                continue  # most are small
            size = kafka_bytes(record)
            if size > limit:
                return ContextError(
                    f"a record of {size:,} bytes for {record.topic} with key {shown(record.key)} "
                    f"is larger than the {limit:,} bytes that Kafka takes (max.request.size of the "
                    "producer, max.message.bytes of the topic)"
                )
        return None


def visit_value(meta: Any) -> bytes:
    """Return ``meta`` of a visit as the request for it has it.  Raises InvalidValueError."""
    try:
        value = msgspec.json.encode(whole(meta))
    except Exception as error:  # noqa: BLE001 -- msgspec, or a hook of the value's type
        fix = "give what JSON can hold"
        raise InvalidValueError("meta", meta, f"cannot be sent ({error})", fix) from None
    if len(value) > _MOST_META_BYTES:
        fix = "give a reference to what is large"
        raise InvalidValueError("meta", meta, f"has more than {_MOST_META_BYTES:,} bytes", fix)
    return value


def _not_run(result: object) -> ContextError | None:
    """Return an error if a callback returned its code instead of running it."""
    if isinstance(result, (Coroutine, Generator, AsyncGenerator)):
        if isinstance(result, Coroutine):
            result.close()  # or Python warns that it was never awaited
        kind = type(result).__name__
        return ContextError(f"it returned a {kind}, which nobody runs: use def, without yield")
    return None


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)


def _as_error(error: BaseException | str) -> BaseException:
    return error if isinstance(error, BaseException) else ContextError(str(error))
