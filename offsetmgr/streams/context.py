"""The context of a callback: its message, its row, and the ways to write."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.codecs import encoded
from offsetmgr.streams.errors import ContextError
from offsetmgr.streams.messages import NO_TIME, Record, decode_key, encode_key, header_list
from offsetmgr.text import error_text, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.streams.graph import Edge, GroupGraph
    from offsetmgr.streams.messages import Headers, Message, Rows

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
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
    def key(self) -> str:
        """Key of the message; empty if it has none."""
        return decode_key(self._message.key)

    @property
    def topic(self) -> str:
        """Topic of the message; in a visit the visitor's name."""
        return self._message.topic

    @property
    def partition(self) -> int:
        return self._message.partition

    @property
    def offset(self) -> int:
        return self._message.offset

    @property
    def group(self) -> str:
        return self._graph.group

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
        self._write(table.topic, self._message.key, self._row, headers or _NONE)

    def delete(self, headers: Headers | None = None) -> None:
        """Delete the row of the message's key, here and by a tombstone in the table's topic."""
        table = self._graph.group_table or self._stateless()
        self._row = None
        self._write(table.topic, self._message.key, None, headers or _NONE)

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
        self._emit(topic, key, data, headers)

    def loopback(self, key: str, value: Any, headers: Headers | None = None) -> None:
        """Send ``value`` to the loop's callback, for any key of the group."""
        edge = self._graph.loop_stream or self._refuse("no loop topic configured: add loop()")
        self._emit(edge.topic, key, self._encoded(edge, value), headers)

    def fail(self, error: BaseException | str) -> NoReturn:
        """Stop the processor and leave the message uncommitted."""
        failure = _as_error(error)
        self.failure = self.failure or failure
        raise failure

    def defer_commit(self) -> Callable[..., None]:
        """Keep the message uncommitted until the returned ``done(error=None)`` is called.

        Any thread may call it; only its first call counts.  An error stops the processor.
        """
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

    def _emit(self, topic: str, key: str, data: bytes | None, headers: Headers | None) -> None:
        if self._default_headers and isinstance(headers or _NONE, Mapping):
            headers = {**self._default_headers, **(headers or _NONE)}
        self._write(topic, self._key(key), data, headers or _NONE)

    def _write(self, topic: str, key: bytes, data: bytes | None, headers: Headers) -> None:
        self._check_open(f"what it wrote to {topic} is lost: write within the callback")
        try:
            listed = header_list(headers) if headers else ()
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
            self._refuse(f"cannot read key {shown(key)} of {edge}: {error_text(error)}", error)

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


def _as_error(error: BaseException | str) -> BaseException:
    return error if isinstance(error, BaseException) else ContextError(str(error))
