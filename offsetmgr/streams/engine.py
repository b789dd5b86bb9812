"""Calls callbacks: from a message and tables to what it writes, in the tester and on Spark.

::

    engine = Engine(graph)
    effects = engine.process(message, Tables(rows, {"names": joined_rows}))
    for record in effects.records:
        if record.topic == graph.table_topic:
            update_rows(rows, record.key, record.value)
        ...  # send it
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.context import Context, Tables
from offsetmgr.streams.errors import ContextError, ProcessingError
from offsetmgr.streams.messages import MAX_BYTES, header_list, kafka_bytes
from offsetmgr.text import error_text, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from offsetmgr.streams.graph import Callback, Edge, GroupGraph
    from offsetmgr.streams.messages import Headers, Message, Record

NilHandling = Literal["ignore", "process", "decode"]
"""Messages without a value: no callback, a callback with None, or what the codec makes of None."""


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
        graph.validate()
        if nil_handling not in {"ignore", "process", "decode"}:
            fix = "give 'ignore', 'process' or 'decode'"
            raise InvalidValueError("nil_handling", nil_handling, "is not a way to handle nil", fix)
        self.graph = graph
        self._nil_handling = nil_handling
        self._default_headers = dict(header_list(default_headers or {}))
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
        """Return the effects of a visit: the visitor's callback gets ``meta`` as its value.

        ``row`` has the key of a row of the group table, and ``name`` as its topic.  Raises as
        ``visitor``; ProcessingError.
        """
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
