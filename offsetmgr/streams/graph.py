"""The graph of a processor group: what it reads, writes and keeps, and its callbacks.

::

    graph = define_group(
        "clicks-per-user",
        input("clicks", codecs.String(), count),
        persist(codecs.Int64()),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.codecs import check_codec
from offsetmgr.streams.errors import GraphError
from offsetmgr.text import shown
from offsetmgr.types import check_callable, check_group, check_list, check_topic

if TYPE_CHECKING:
    from offsetmgr.streams.codecs import Codec

Callback = Callable[[Any, Any], object]
"""Called with a Context and the decoded value of a message."""

Kind = Literal["input", "loop", "output", "join", "lookup", "persist", "visitor"]

_METHODS: Final[dict[Kind, tuple[str, ...]]] = {
    **dict.fromkeys(("input", "join", "lookup"), ("decode",)),
    "output": ("encode",),
    **dict.fromkeys(("loop", "persist"), ("encode", "decode")),
    "visitor": (),
}
"""The methods of a codec that are called."""

TABLE_SUFFIX: Final = "-table"
LOOP_SUFFIX: Final = "-loop"


@dataclass(frozen=True)
class Edge:
    """A topic of a group with its codec, and the callback of its messages if it has one."""

    kind: Kind
    topic: str
    """Of a visitor its name; of loop and group table set by ``define_group``."""
    codec: Any = None
    """A Codec; None of a visitor."""
    callback: Any = None
    """A Callback; None where nothing is called."""

    def __post_init__(self) -> None:
        check_codec(self.codec, f"codec of {self.kind} {shown(self.topic)}", *_METHODS[self.kind])
        if self.kind in {"input", "loop", "visitor"}:
            check_callable(self.callback, f"callback of {self.kind} {shown(self.topic)}")
        name: object = self.topic
        if self.kind == "visitor" and not (isinstance(name, str) and name.isprintable()):
            raise InvalidValueError("visitor", name, "is not a name", "give printable text")

    def __str__(self) -> str:
        codec = "" if self.codec is None else f"/{type(self.codec).__name__}"
        return f"{self.kind} {self.topic}{codec}"


def input(topic: str, codec: Codec, callback: Callback) -> Edge:
    """Read a stream, at first from its end, or where ``ProcessorSettings.missing`` says."""
    return Edge("input", check_topic(topic), codec, callback)


def inputs(topics: Iterable[str], codec: Codec, callback: Callback) -> list[Edge]:
    """Read several streams with one codec and callback."""
    names = check_list(topics, "topics", '["clicks"]')
    return [input(topic, codec, callback) for topic in names]


def loop(codec: Codec, callback: Callback) -> Edge:
    """Read the messages that callbacks send to keys of the group by ``Context.loopback``."""
    return Edge("loop", "", codec, callback)


def output(topic: str, codec: Codec) -> Edge:
    """Let callbacks emit to a stream."""
    return Edge("output", check_topic(topic), codec)


def join(topic: str, codec: Codec) -> Edge:
    """Let callbacks read the row of their key in a table."""
    return Edge("join", check_topic(topic), codec)


def lookup(topic: str, codec: Codec) -> Edge:
    """Let callbacks read any row of a table."""
    return Edge("lookup", check_topic(topic), codec)


def persist(codec: Codec) -> Edge:
    """Keep a row for each key in the group table."""
    return Edge("persist", "", codec)


def visitor(name: str, callback: Callback) -> Edge:
    """Name a callback that a visit calls for each row of the group table."""
    return Edge("visitor", name, None, callback)


def group_table(group: str, suffix: str = TABLE_SUFFIX) -> str:
    """Return the topic of a group's table, for others to join, look up or view."""
    return f"{group}{_checked_suffix(suffix, 'table_suffix')}"


def loop_topic(group: str, suffix: str = LOOP_SUFFIX) -> str:
    """Return the topic of a group's loop."""
    return f"{group}{_checked_suffix(suffix, 'loop_suffix')}"


def _checked_suffix(suffix: object, field: str) -> str:
    if not isinstance(suffix, str):
        raise InvalidValueError(field, suffix, "is not text", "give a string such as '-v2'")
    return suffix


class GroupGraph:
    """The edges of a group, by kind."""

    def __init__(
        self, group: str, edges: Iterable[Edge], table_topic: str, loop_topic: str
    ) -> None:
        self.group = group
        self.all_edges = list(edges)
        self.table_topic = table_topic
        self.loop_topic = loop_topic
        self.input_streams = self._of("input")
        self.output_streams = self._of("output")
        self.joint_tables = self._of("join")
        self.lookup_tables = self._of("lookup")
        self.visitors = self._of("visitor")
        self.copartitioned = [*self.input_streams, *self.joint_tables]
        """Inputs and joins, which must exist.  Their numbers of partitions may differ on Spark."""
        self.loop_stream = next(iter(self._of("loop")), None)
        self.group_table = next(iter(self._of("persist")), None)
        """None where the group is stateless."""
        self.table = table_topic if self.group_table else ""
        """The topic of the group table; empty if the group has none."""
        self.consumed = [edge.topic for edge in self.input_streams]
        """Topics of inputs and the loop, if it has one or visits, which go through that topic."""
        if self.loop_stream or self.visitors:
            self.consumed.append(loop_topic)
        # By topic, for the engine.
        self.streams = {edge.topic: edge for edge in self._of("input", "loop")}
        self.outputs = {edge.topic: edge for edge in self.output_streams}
        self.joins = {edge.topic: edge for edge in self.joint_tables}
        self.lookups = {edge.topic: edge for edge in self.lookup_tables}

    def validate(self) -> None:
        """Raise GraphError, with the first mistake, if no processor can run this graph."""
        graph = f"in group graph of {self.group!r}"
        own = {
            self.loop_topic: "loop stream of the group: use loop() and Context.loopback",
            self.table_topic: "group table of the group: use persist(), Context.value and "
            "Context.set_value",
        }
        if len(self._of("loop")) > 1:
            raise GraphError(f"more than one loop stream {graph}: define loop() once")
        if len(self._of("persist")) > 1:
            raise GraphError(f"more than one group table {graph}: define persist() once")
        if not self.input_streams:
            raise GraphError(f"no input stream {graph}: add an input()")
        for edge in (*self.output_streams, *self.copartitioned, *self.lookup_tables):
            if edge.topic in own:
                raise GraphError(f"{edge} should not directly use {own[edge.topic]}")
        if self.visitors and not self.group_table:
            text = f"visitors cannot be used in stateless processor {self.group!r}"
            raise GraphError(f"{text}: add persist()")

    def _of(self, *kinds: Kind) -> list[Edge]:
        return [edge for edge in self.all_edges if edge.kind in kinds]


def define_group(
    group: str,
    *edges: Edge | Iterable[Edge],
    table_suffix: str = TABLE_SUFFIX,
    loop_suffix: str = LOOP_SUFFIX,
) -> GroupGraph:
    """Return the graph of ``group``; its loop and table are ``<group>-loop`` and ``<group>-table``.

    Raises InvalidValueError for a bad name, or if a topic is an input, or a name a visitor, twice.
    """
    check_group(group)
    table = group_table(group, table_suffix)
    loop = loop_topic(group, loop_suffix)
    if table == loop:
        fix = "give table and loop topics of their own"
        raise InvalidValueError("loop_suffix", loop_suffix, "is that of the table", fix)
    flat: list[Any] = []
    named: set[tuple[str, str]] = set()
    for edge in edges:
        flat.extend(edge if isinstance(edge, Iterable) else [edge])
    for number, edge in enumerate(flat):
        if not isinstance(edge, Edge):
            fix = "give what input(), persist() and their like return"
            raise InvalidValueError("edge", edge, "is not an edge", fix)
        if edge.kind in {"input", "visitor"}:
            if (edge.kind, edge.topic) in named:
                problem = "is consumed twice" if edge.kind == "input" else "is defined twice"
                raise InvalidValueError(edge.kind, edge.topic, problem, "give it one callback")
            named.add((edge.kind, edge.topic))
        elif edge.kind == "loop":
            flat[number] = replace(edge, topic=check_topic(loop, "group's loop topic"))
        elif edge.kind == "persist":
            flat[number] = replace(edge, topic=check_topic(table, "group's table topic"))
    return GroupGraph(group, flat, table, loop)
