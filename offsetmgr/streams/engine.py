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

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.context import Context, Tables
from offsetmgr.streams.errors import ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from concurrent.futures import Future

    from offsetmgr.streams.graph import Callback, GroupGraph
    from offsetmgr.streams.messages import Headers, Message, Record

NilHandling = Literal["ignore", "process", "decode"]
"""Messages without a value: no callback, a callback with None, or what the codec makes of None."""


class Effects(NamedTuple):
    """The effects of a message.  Apply all of them, then commit the message."""

    records: Sequence[Record] = ()
    """To write, in order.  Those of the group's table topic are its rows; the last one counts."""
    deferred: Sequence[Future[None]] = ()
    """Commit the message once all are done; an exception in one stops the processor."""


NO_EFFECTS: Final = Effects()


def update_rows(rows: MutableMapping[bytes, bytes], key: bytes, value: bytes | None) -> None:
    """Apply a record of a table's topic, where None is a tombstone."""
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


class Engine:
    """Processes messages and visits of a group; changes nothing itself.  Picklable as its graph."""

    def __init__(
        self,
        graph: GroupGraph,
        *,
        nil_handling: NilHandling = "ignore",
        default_headers: Headers | None = None,
        context_wrapper: Callable[[Context], Any] | None = None,
    ) -> None:
        """``default_headers`` go with each emit and loopback.

        ``context_wrapper`` returns what callbacks get in the place of the context.  Raises
        GraphError, InvalidValueError.
        """
        graph.validate()
        if nil_handling not in {"ignore", "process", "decode"}:
            fix = "give 'ignore', 'process' or 'decode'"
            raise InvalidValueError("nil_handling", nil_handling, "is no way to handle nil", fix)
        self.graph = graph
        self._nil_handling = nil_handling
        self._default_headers = dict(default_headers or {})
        self._wrapper = context_wrapper
        self._visitors = {edge.topic: edge for edge in graph.visitors}

    def process(self, message: Message, tables: Tables) -> Effects:
        """Return the effects of a message of an input or the loop.  Raises ProcessingError."""
        edge = self.graph.streams.get(message.topic)
        if edge is None:
            raise ProcessingError(self.graph.group, message, "no callback reads this topic")
        data = message.value
        value: Any = None
        if data is None and self._nil_handling == "ignore":
            return NO_EFFECTS
        if data is not None or self._nil_handling == "decode":
            try:
                value = edge.codec.decode(data)
            except Exception as error:
                problem = f"cannot decode the value with {edge}: {error}"
                raise ProcessingError(self.graph.group, message, problem) from error
        return self._call(edge.callback, message, value, tables)

    def visit(self, name: str, meta: Any, row: Message, tables: Tables) -> Effects:
        """Return the effects of a visit: the visitor's callback gets ``meta`` as its value.

        ``row`` has the key of a row of the group table, and ``name`` as its topic.  Raises
        InvalidValueError where no visitor has this name; ProcessingError.
        """
        visitor = self._visitors.get(name)
        if visitor is None:
            fix = "add visitor() with it to the group"
            raise InvalidValueError("visitor", name, "is not defined", fix)
        return self._call(visitor.callback, row, meta, tables)

    def _call(self, callback: Callback, message: Message, value: Any, tables: Tables) -> Effects:
        context = Context(self.graph, message, tables, self._default_headers)
        try:
            callback(context if self._wrapper is None else self._wrapper(context), value)
            failure = context.failure
        except Exception as error:  # noqa: BLE001 -- callbacks raise anything
            failure = context.failure or error
        finally:
            context.over = True
        if failure is not None:
            problem = f"callback {_name(callback)} failed: {type(failure).__name__}: {failure}"
            raise ProcessingError(self.graph.group, message, problem) from failure
        return Effects(context.records, context.deferred)


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
