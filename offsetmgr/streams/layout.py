"""The layout of a processor's checkpoint: its graph, its buckets, and the topics of its sources.

Spark takes the positions of a query's sources from its checkpoint, whatever the graph is now.  So
the layout is kept with them, in the folder ``offsetmgr``.  A start with another graph puts the
positions of added topics into Spark's files and takes those of removed topics out, or is refused.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from offsetmgr.errors import InvalidValueError
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.progress import read_offsets
from offsetmgr.spark.starting import spark_json
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.text import listed
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.answers import PartitionLog, TopicLog
    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.streams.graph import GroupGraph

    Offsets = dict[TopicPartition, int]

KEYS_PER_BUCKET: Final = 5_000
MIN_BUCKETS: Final = 128
MAX_BUCKETS: Final = 4_096

TABLES: Final = "tables"
"""Source of the joined tables and, until it is recovered, of the group's own; read without limit.
There is none if the query reads no table."""
STREAMS: Final = "streams"
"""Source of the inputs and the loop."""

_FOLDER: Final = "offsetmgr"
_EDIT: Final = f"{_FOLDER}/edit.json"
"""Texts of files that are being written: the next start finishes what a killed one began."""
_WRITTEN: Final = f"{_FOLDER}/table"
"""Id and partitions of a table's topic whose rows are this checkpoint's, but perhaps not all."""
_NAME: Final = "layout-"
_LAYOUT: Final = re.compile(rf"{_NAME}\d{{6,}}")
_VERSION: Final = "v1"
_START_VERSION: Final = "\0v1"

_log = SafeLogger("offsetmgr.streams")


class Layout(msgspec.Struct, frozen=True):
    """The choices and the graph with which a checkpoint was written."""

    group: str
    buckets: int
    stateful: bool
    table: str
    """Topic of the group table; empty if the group has never had one."""
    table_partitions: int
    codec: str
    """Class of the table's codec."""
    recovery: dict[int, int]
    """Ends of the table's partitions when the checkpoint was new; empty if there is nothing to
    recover, or all is recovered."""
    joins: dict[str, int]
    """Each table that was ever joined, with the number of times that it was begun again: rows of a
    former time are no longer its rows."""
    topics: dict[str, list[str]]
    """Topics of the sources ``STREAMS`` and ``TABLES``, in this order.

    Spark asks for the ends of tables last: a message finds all rows that were in Kafka before it.
    """
    ids: dict[str, str]
    """Id of each topic that is read or is the table; brokers before 2.8 give none."""

    def join_name(self, topic: str) -> str:
        """Return the name of a joined table's rows in the state."""
        number = self.joins[topic]
        return f"{topic}/{number}" if number else topic

    def recreated(self, ids: Mapping[str, str]) -> dict[str, str]:
        """Return those of ``ids`` that are of a later topic of the same name."""
        return {
            topic: topic_id
            for topic, topic_id in ids.items()
            if topic_id and self.ids.get(topic, "") not in {"", topic_id}
        }


class Start(NamedTuple):
    """The graph of a start, and its topics as they are now."""

    graph: GroupGraph
    logs: Mapping[str, TopicLog]
    """Of all topics that are read, and of the table."""
    buckets: int | None
    """None is as in the checkpoint, or as the table needs."""
    positions: Callable[[Collection[str]], Offsets]
    """Returns where to begin with topics that are added to the streams."""
    restore: Callable[[], object]
    """Writes the rows of the checkpoint into the table's topic."""
    loss_is_accepted: bool
    """True if messages that Kafka has no longer may be skipped."""


class LayoutFiles:
    """The layout of one checkpoint."""

    def __init__(self, files: Checkpoint) -> None:
        self._files = files
        edit = files.read(_EDIT)
        with suppress(ValueError):  # cut by a crash of the file system: it had changed nothing yet
            self._write(json.loads(edit or ""))

    @property
    def is_new(self) -> bool:
        """True if no query has begun with this checkpoint."""
        return self._files.last_begun() is None and not self._files.names("sources")

    def prepare(self, start: Start) -> Layout:
        """Put the layout for a start into the checkpoint, and return it.

        Raises ProcessorError if the checkpoint cannot be used with this graph, or messages that it
        has not read are gone; InvalidValueError for another number of buckets, or no checkpoint.
        """
        begun = self._files.last_begun()
        known, wanted = self._layout_of(begun and begun.batch_id), _new(start)
        if self.is_new:
            self._write({self._next_name(): _text(wanted)})
            return wanted
        checkpoint = f"checkpoint {self._files.location}"
        if known is None:
            text = f"{checkpoint} is of another program"
            raise ProcessorError(f"{text}: give the processor a checkpoint of its own")
        noted = f"{wanted.ids.get(wanted.table, '')}/{wanted.table_partitions}"
        if self._files.read(_WRITTEN) == noted:
            wanted = msgspec.structs.replace(wanted, recovery={})
        if known.group == wanted.group and start.buckets not in {None, known.buckets}:
            fix = f"give {known.buckets} or none, or start with a new checkpoint"
            raise InvalidValueError("buckets", start.buckets, "is not that of the checkpoint", fix)
        for problem in filter(None, (_problem(known, wanted), *self._files.problems())):
            raise ProcessorError(f"group {wanted.group} cannot start: {checkpoint}: {problem}")
        self._files.query_id()  # raises what Spark has a page of Java for
        finished = self._files.last_finished()
        layout = _adapted(known, wanted, recovering=finished is None)
        texts = {self._next_name(): _text(layout)} if _text(layout) != _text(known) else {}
        done = -1 if finished is None else finished.batch_id
        texts |= self._edits(_Moves(known, layout, start), done)
        if done >= 0 and _table_moved(known, wanted):
            _log.warning("group %s: %s is written from its checkpoint", layout.group, layout.table)
            self.note_written(layout.ids[layout.table], layout.table_partitions)
            start.restore()
        if texts:
            self._files.write(_EDIT, json.dumps(texts))
            self._write(texts)
        return layout

    def note_written(self, table_id: str, partitions: int) -> None:
        """Note that only this processor has written to so many partitions of the table's topic."""
        if table_id:
            self._files.write(_WRITTEN, f"{table_id}/{partitions}")

    def renew(self, layout: Layout, ids: Mapping[str, str]) -> Layout:
        """Note that a running query goes on in recreated inputs; return a layout with all ``ids``.

        The rows of recreated tables stay those of the former ones until the next start.
        """
        inputs = {topic: ids[topic] for topic in layout.topics[STREAMS] if topic in ids}
        noted = msgspec.structs.replace(layout, ids={**layout.ids, **inputs})
        self._write({self._next_name(): _text(noted)})
        return msgspec.structs.replace(layout, ids={**layout.ids, **ids})

    def _edits(self, moves: _Moves, done: int) -> dict[str, str]:
        """Return the files of Spark's that change, with their new texts.  Raises ProcessorError.

        Spark reads the positions at the end of its last two batches; before the first is finished
        also those at which its sources began.
        """
        begun = self._files.last_begun()
        newest = -1 if begun is None else begun.batch_id
        names = list(moves.known.topics)
        initial: dict[str, Offsets] = {}
        for number, name in enumerate(names):
            text = self._files.read(f"sources/{number}/0")
            if text:
                initial[name] = read_offsets(text.split("\n")[-1])
        heads: dict[int, list[str]] = {}
        ends = {-1: initial}
        for batch in (newest, newest - 1):
            if batch >= 0:
                lines = (self._files.read(f"offsets/{batch}") or "").split("\n")
                heads[batch], positions = lines[:2], lines[2:]
                written = self._layout_of(batch) or moves.known
                if lines[:1] != [_VERSION] or len(positions) != len(written.topics):
                    text = f"batch {batch} of checkpoint {self._files.location} cannot be read"
                    raise ProcessorError(f"{text}: start the processor with a new checkpoint")
                # A source that has not begun has none yet.
                ends[batch] = {
                    name: (read_offsets(line) if line != "-" else {}) or initial.get(name, {})
                    for name, line in zip(written.topics, positions, strict=True)
                }
        if not moves.needed(ends[newest if done == newest else max(newest - 1, -1)]):
            return {}
        texts: dict[str, str] = {}
        for batch, head in heads.items():
            lines = [
                moves.line(name, ends[batch], repeated=batch > done) for name in moves.layout.topics
            ]
            texts[f"offsets/{batch}"] = "\n".join([*head, *lines])
        for number, name in enumerate(moves.layout.topics if newest <= 0 else ()):
            if name in initial or name not in names:
                line = moves.line(name, initial)
                texts[f"sources/{number}/0"] = f"{_START_VERSION}\n{line}"
        return texts

    def _layout_of(self, batch_id: int | None) -> Layout | None:
        """Return the layout of a batch, or else the newest one; None if no layout is whole.

        The newest may be of a start next to a processor that went on with its own.
        """
        layouts: list[Layout] = []
        for name in sorted(self._names(), reverse=True):
            with suppress(msgspec.MsgspecError):
                text = self._files.read(f"{_FOLDER}/{name}") or ""
                layouts.append(msgspec.json.decode(text, type=Layout))
        read: list[set[str]] = []
        if batch_id is not None:
            with suppress(InvalidValueError):  # of a file that `prepare` refuses
                positions = self._files.batch(batch_id).positions
                read = [{place.topic for place in source} for source in positions]
        fitting = (one for one in layouts if [*map(set, one.topics.values())] == read)
        return next(fitting, layouts[0] if layouts else None)

    def _names(self) -> list[str]:
        return [name for name in self._files.names(_FOLDER) if _LAYOUT.fullmatch(name)]

    def _next_name(self) -> str:
        numbers = [int(name.removeprefix(_NAME)) for name in self._names()]
        return f"{_FOLDER}/{_NAME}{max(numbers, default=0) + 1:06}"

    def _write(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._files.write(name, text)
        self._files.remove(_EDIT)


class _Moves:
    """The differences between two layouts in the positions of their sources."""

    def __init__(self, known: Layout, layout: Layout, start: Start) -> None:
        self.known = known
        self.layout = layout
        self._start = start
        self._kept: dict[str, set[str]] = {}
        self._begin: dict[str, Offsets] = {}
        """Start offsets of topics that are new or were recreated."""
        self._table_ends: Offsets = {}
        """Ends of those of them that are joined."""
        recreated = known.recreated(layout.ids)
        for name, topics in layout.topics.items():
            added = [topic for topic in topics if topic not in known.topics.get(name, ())]
            fresh = {*added, *recreated}.intersection(topics)
            self._kept[name] = {*topics} - fresh
            logs = _logs(start, fresh)
            begin = {place: log.log_start_offset for place, log in logs.items()}
            if name == STREAMS:
                begin |= start.positions(added)
            else:
                stable = {place: log.last_stable_offset or 0 for place, log in logs.items()}
                self._table_ends = {place: max(stable[place], at) for place, at in begin.items()}
            self._begin[name] = begin
            for topic in sorted(fresh):
                what = "was added" if topic in added else "was deleted and recreated"
                offsets = {
                    place.partition: at for place, at in begin.items() if place.topic == topic
                }
                text = "group %s: topic %s %s; it is read from %s on"
                _log.warning(text, layout.group, topic, what, offsets)
        self._gone: set[str] = set()
        for name, topics in known.topics.items():
            self._gone |= {*topics} - {*layout.topics.get(name, ())}
        for topic in sorted(self._gone - {known.table}):  # which is recovered now
            _log.warning("group %s: topic %s is no longer read", layout.group, topic)

    def needed(self, reached: Mapping[str, Offsets]) -> bool:
        """Return True if Spark's files have to change.  Raises ProcessorError for lost messages."""
        for name, kept in self._kept.items():
            here, logs = reached.get(name, {}), _logs(self._start, kept)
            lost = [
                place
                for place, log in logs.items()
                if place in here and not log.log_start_offset <= here[place] <= log.high_watermark
            ]
            if lost and not self._start.loss_is_accepted:
                raise ProcessorError(
                    f"group {self.layout.group} cannot go on: Kafka has no longer what comes next "
                    f"of {listed(lost)}. Start it with a new checkpoint, or skip these messages "
                    "with kafka_options={'failOnDataLoss': 'false'}"
                )
            # Spark takes a new partition that begins above 0 for lost data.
            self._begin[name] |= {
                place: log.log_start_offset
                for place, log in logs.items()
                if place not in here and log.log_start_offset > 0
            }
        moved = [*self.known.topics] != [*self.layout.topics]
        return moved or bool(self._gone) or any(self._begin.values())

    def line(self, name: str, ends: Mapping[str, Offsets], *, repeated: bool = False) -> str:
        """Return a source's positions; at the end of a ``repeated`` batch new joins are read."""
        kept, old = self._kept[name], ends.get(name, {})
        still = {partition: at for partition, at in old.items() if partition.topic in kept}
        read = self._table_ends if repeated and name == TABLES else {}
        return spark_json(still | self._begin[name] | read)


def _new(start: Start) -> Layout:
    graph = start.graph
    table = start.logs[graph.table].partitions if graph.table else {}
    ends = {number: log.high_watermark for number, log in table.items()}
    rows = sum(ends.values()) - sum(log.log_start_offset for log in table.values())
    recovery = ends if rows else {}
    return Layout(
        group=graph.group,
        buckets=start.buckets or min(max(rows // KEYS_PER_BUCKET, MIN_BUCKETS), MAX_BUCKETS),
        stateful=bool(graph.table or graph.joins),
        table=graph.table,
        table_partitions=len(table),
        codec=type(graph.group_table.codec).__name__ if graph.group_table else "",
        recovery=recovery,
        joins=dict.fromkeys(graph.joins, 0),
        topics=_topics([graph.table] if recovery else [], graph.joins, graph.consumed),
        ids={topic: log.topic_id for topic, log in start.logs.items()},
    )


def _topics(
    recovered: Iterable[str], joins: Iterable[str], streams: Iterable[str]
) -> dict[str, list[str]]:
    tables = [*recovered, *joins]
    return {STREAMS: [*streams], **({TABLES: tables} if tables else {})}


def _adapted(known: Layout, wanted: Layout, *, recovering: bool) -> Layout:
    """Return the layout for a start on a checkpoint that is in use."""
    joins = dict(known.joins)
    recreated = known.recreated(wanted.ids)
    for topic in wanted.joins:
        if topic not in known.topics.get(TABLES, ()) or topic in recreated:
            joins[topic] = joins.get(topic, -1) + 1
    recovery = known.recovery if recovering and wanted.table else {}
    # A table that comes back later has to be the same.
    table = wanted if wanted.table else known
    return msgspec.structs.replace(
        wanted,
        buckets=known.buckets,
        table=table.table,
        table_partitions=table.table_partitions,
        codec=table.codec,
        recovery=recovery,
        joins=joins,
        topics=_topics([wanted.table] if recovery else [], wanted.joins, wanted.topics[STREAMS]),
        ids={**known.ids, **wanted.ids},
    )


def _problem(known: Layout, wanted: Layout) -> str:
    """Return why a checkpoint cannot be used, and what to do; empty if it can."""
    new = (
        "start it with a new checkpoint, which reads the table from its topic and the inputs from "
        "the group's committed offsets"
    )
    if known.group != wanted.group:
        return f"it is of group {known.group}; give each group a checkpoint of its own"
    if known.stateful and not wanted.stateful:
        return f"it has a table or a join, and the graph has none now; {new}"
    if wanted.stateful and not known.stateful:
        return f"it has no state, and the graph has a table or a join now; {new}"
    return _table_problem(known, wanted, new) if wanted.table else ""


def _table_problem(known: Layout, wanted: Layout, new: str) -> str:
    table, rows = wanted.table, bool(wanted.recovery)
    if not known.table:
        return f"it has no table, and topic {table} has rows; {new}" if rows else ""
    if known.codec != wanted.codec:
        text = f"it has rows of the codec {known.codec}, not of {wanted.codec}"
        return f"{text}; keep the codec, or give the group another name"
    if _table_moved(known, wanted):
        text = (
            f"it has not written the rows in topic {table}, which was {known.table} or is recreated"
        )
        fix = f"delete {table}, so that it is written from the checkpoint, or {new}"
        return f"{text}; {fix}" if rows else ""
    if known.table_partitions != wanted.table_partitions:
        return (
            f"it has rows for {known.table_partitions} partitions of {table}, which has "
            f"{wanted.table_partitions} now, so that a key may be in two; copy it (offsetmgr "
            f"streams copy-table {table} NEW), give the suffix of the copy as table_suffix, and "
            f"{new}"
        )
    return ""


def _table_moved(known: Layout, wanted: Layout) -> bool:
    """Return True if the table's topic is another one than that which the checkpoint wrote."""
    if not known.table or not wanted.table:
        return False
    return known.table != wanted.table or wanted.table in known.recreated(wanted.ids)


def _logs(start: Start, topics: Iterable[str]) -> dict[TopicPartition, PartitionLog]:
    return {
        TopicPartition(topic, number): log
        for topic in sorted(topics)
        for number, log in start.logs[topic].partitions.items()
    }


def _text(layout: Layout) -> str:
    return msgspec.json.encode(layout).decode()
