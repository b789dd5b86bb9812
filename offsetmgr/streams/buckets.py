"""Processes the rows of a micro-batch in Spark's Python workers, with state in buckets of keys.

A state of its own for each key costs Spark about a millisecond a key.  So the keys are divided
into buckets by their hash, and the rows of a bucket are one state: a packed map that is read and
written whole when one of its keys is touched.
"""

from __future__ import annotations

import time
import traceback
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import pandas as pd

from offsetmgr import retry_headers
from offsetmgr.deadlines import Deadline
from offsetmgr.streams.engine import Tables
from offsetmgr.streams.errors import ProcessingError, ProcessorError, UnreadableTableError
from offsetmgr.streams.messages import (
    MAX_BYTES,
    VISIT_HEADER,
    Message,
    Record,
    kafka_bytes,
    partition_of,
    update_rows,
)
from offsetmgr.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.state import GroupState

    from offsetmgr.streams.engine import Effects, Engine
    from offsetmgr.streams.messages import Rows

INPUT_COLUMNS: Final = ("source", "partition", "offset", "timestamp", "key", "value", "headers")
"""``source`` is an index of ``Plan.sources``; ``timestamp`` is in milliseconds."""

OUTPUT_SCHEMA: Final = (
    "target int, key binary, value binary, partition int, "
    "headers array<struct<key: string, value: binary>>"
)
"""``target`` is the index of the topic in ``Plan.targets``."""

STATE_SCHEMA: Final = "rows binary"
ID_HEADER: Final = "offsetmgr-id"
"""Of an emitted record: its origin as ``topic/partition/offset/number``, the same when repeated.
In a visit the hash of the row's key follows the offset."""
ID_BYTES: Final = 320
"""More than the header of an id takes of a record."""

_FORMAT: Final = 1
_IN_ORDER: Final = itemgetter(0, 1, 2)


class BucketState(msgspec.Struct, array_like=True):
    """The state of a bucket."""

    format: int
    buckets: int
    """Buckets of the whole table: a state is valid for this number alone."""
    table: dict[bytes, bytes]
    joins: dict[str, dict[bytes, bytes]]


_packed: Final = msgspec.msgpack.Encoder().encode
_unpacked: Final = msgspec.msgpack.Decoder(BucketState).decode


class Source(NamedTuple):
    """A topic that the query reads."""

    role: Literal["table", "join", "stream"]
    topic: str


class Plan(NamedTuple):
    """All that a worker has to know; travels with each task."""

    engine: Engine
    buckets: int
    sources: Sequence[Source]
    """In the order in which a batch's rows are processed: table, joins, inputs, loop."""
    joins: Mapping[str, str]
    """Name of each joined table in the state, by topic."""
    targets: Sequence[str]
    partitions: Mapping[str, int]
    """Number of partitions of each target."""
    lookup_kafka: Mapping[str, Any]
    """librdkafka's settings of the workers' consumers."""
    lookup_views: Mapping[str, str]
    """Folders of views' stores by table."""
    dead_letters: str | None
    record_ids: bool
    bucket_bytes: int
    defer_timeout_s: float


def process_bucket(
    plan: Plan, key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Yield what a bucket's part of a batch writes, and keep its state, unless it raises."""
    (bucket,) = key
    graph, new = plan.engine.graph, BucketState(_FORMAT, plan.buckets, {}, {})
    rows = _unpacked(state.get[0]) if state.exists else new
    if rows.format != _FORMAT or rows.buckets != plan.buckets:
        raise ProcessorError(
            f"group {graph.group}: the checkpoint has {rows.buckets} buckets in format "
            f"{rows.format}, the processor {plan.buckets} in format {_FORMAT}: start it with a "
            "new checkpoint, which reads the table again from its topic"
        )
    # A joined table may have been added or removed since.
    rows.joins = {name: rows.joins.get(name, {}) for name in plan.joins.values()}
    batch = _Batch(plan, rows, bucket)
    batch.run(_messages(plan.sources, frames), recovered=state.exists)
    packed = _packed(rows)
    if len(packed) > plan.bucket_bytes:
        raise ProcessorError(
            f"group {graph.group}: bucket {bucket} has grown to {len(packed):,} bytes with "
            f"{len(rows.table):,} keys, beyond bucket_bytes={plan.bucket_bytes:,}. Nothing of this "
            "batch is kept. Start the processor with a new checkpoint and more buckets than "
            f"{plan.buckets:,} (the table is read again from its topic), or with a higher limit"
        )
    state.update((packed,))
    yield from batch.frames()


def process_stateless(plan: Plan, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the records that the messages of a partition write.  Raises ProcessingError."""
    empty = BucketState(_FORMAT, 0, {}, {})
    for frame in frames:
        batch = _Batch(plan, empty)
        batch.run(_messages(plan.sources, [frame]), recovered=True)
        yield from batch.frames()


def table_rows(partitions: int, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the rows of the table, with their partitions, from the states of buckets."""
    for frame in frames:
        for packed in frame["rows"]:
            table = _unpacked(packed).table
            if table:
                numbers = [partition_of(key, partitions) for key in table]
                columns = {"key": [*table], "value": [*table.values()], "partition": numbers}
                yield pd.DataFrame(columns)


class _Batch:
    """Effects of one bucket's messages in one batch."""

    def __init__(self, plan: Plan, rows: BucketState, bucket: int = 0) -> None:
        self._plan = plan
        self._engine = plan.engine
        self._refuses_visits = bucket == 0 or not plan.engine.graph.visitors
        """A visit comes to all buckets, if there are visitors; one of them refuses it."""
        self._table = rows.table
        self._joins = {topic: rows.joins[name] for topic, name in plan.joins.items()}
        self._table_topic = plan.engine.graph.table_topic
        self._loop_topic = plan.engine.graph.loop_topic
        self._streams = plan.engine.graph.streams
        self._tables = Tables(rows.table, self._joins, _lookups(plan))
        self._changed: dict[bytes, Record] = {}
        """Rows of the table: only the last of a key has to reach a compacted topic."""
        self._records: list[Record] = []
        self._deferred: list[tuple[Message, Effects]] = []

    def run(self, messages: Iterable[tuple[Source, Message]], *, recovered: bool) -> None:
        """Process messages in order; ``recovered`` says that the table's own rows are known.

        Raises ProcessingError without a cause, whose text Spark's workers could perhaps not send.
        """
        try:
            for source, message in messages:
                if source.role == "join":
                    update_rows(self._joins[message.topic], message.key, message.value)
                elif source.role == "table":
                    if not recovered:
                        update_rows(self._table, message.key, message.value)
                elif message.topic == self._loop_topic and VISIT_HEADER in (
                    headers := dict(message.headers or ())
                ):
                    self._visit(headers[VISIT_HEADER] or b"", message)
                elif message.topic in self._streams:  # not of a loop that the graph had before
                    self._attempt(message, partial(self._engine.process, message))
            deadline = Deadline(self._plan.defer_timeout_s)
            for message, effects in self._deferred:
                self._await(message, effects, deadline)
        except ProcessingError as error:
            cause = traceback.format_exception(error.__cause__) if error.__cause__ else []
            stack = "".join(cause).encode("utf-8", "backslashreplace").decode()
            # Indented, as the driver looks for our own errors at the start of a line.
            error.args = ("\n  | ".join([str(error), *stack.splitlines()]),)
            raise error from None

    def frames(self) -> Iterator[pd.DataFrame]:
        """Yield what is written, in the columns of ``OUTPUT_SCHEMA``."""
        targets = {topic: index for index, topic in enumerate(self._plan.targets)}
        partitions = self._plan.partitions
        records = [*self._records, *self._changed.values()]
        if records:  # Spark cannot convert an empty frame, whose columns have no types
            yield pd.DataFrame(
                {
                    "target": [targets[record.topic] for record in records],
                    "key": [record.key for record in records],
                    "value": [record.value for record in records],
                    "partition": [
                        partition_of(record.key, partitions[record.topic]) for record in records
                    ],
                    "headers": [record.headers or None for record in records],
                }
            )

    def _attempt(self, message: Message, call: Callable[[Tables], Effects], part: str = "") -> None:
        """Apply the effects of a message; ``part`` tells apart the messages of one offset."""
        try:
            effects = call(self._tables)
        except ProcessingError as error:
            self._fail(message, error)
        else:
            self._apply(message, part, effects)

    def _fail(self, message: Message, error: ProcessingError) -> None:
        """Write a dead letter, or raise the error if it has no topic, or a table is missing."""
        if self._plan.dead_letters is None or isinstance(error.__cause__, UnreadableTableError):
            raise error
        self._records.append(self._dead_letter(self._plan.dead_letters, message, error))

    def _visit(self, name: bytes, control: Message) -> None:
        visitor = name.decode("utf-8", "replace")
        try:
            self._engine.visitor(visitor)
            meta = msgspec.json.decode(control.value or b"null")
        except Exception as error:  # noqa: BLE001 -- anybody may write to the loop
            if self._refuses_visits:
                problem = f"the visit cannot be made: {error_text(error)}"
                self._fail(control, ProcessingError(self._engine.graph.group, control, problem))
            return
        for key, value in list(self._table.items()):
            row = control._replace(topic=visitor, key=key, value=value, headers=None)
            part = f"{blake2b(key, digest_size=16).hexdigest()}/"
            self._attempt(row, partial(self._engine.visit, visitor, meta, row), part)

    def _apply(self, message: Message, part: str, effects: Effects) -> None:
        for number, record in enumerate(effects.records):
            if record.topic == self._table_topic:
                update_rows(self._table, record.key, record.value)
                self._changed[record.key] = record
            elif self._plan.record_ids:
                origin = f"{message.topic}/{message.partition}/{message.offset}/{part}{number}"
                headers = (*record.headers, (ID_HEADER, origin.encode()))
                self._records.append(record._replace(headers=headers))
            else:
                self._records.append(record)
        if effects.deferred:
            self._deferred.append((message, effects))

    def _await(self, message: Message, effects: Effects, deadline: Deadline) -> None:
        for outcome in effects.deferred:
            try:
                outcome.result(deadline.left_s)
            except BaseException as error:
                problem = f"a deferred commit was not done within {deadline.timeout} s"
                if outcome.done():
                    problem = f"a deferred commit failed: {error_text(error)}"
                else:
                    problem += ": on Spark a batch ends once its own are done, so call done() in it"
                raise ProcessingError(self._engine.graph.group, message, problem) from error

    def _dead_letter(self, topic: str, message: Message, error: ProcessingError) -> Record:
        """Return a letter that Kafka takes: without stack, value or own headers if need be."""
        origin = retry_headers.Origin(message.topic, message.partition, message.offset)
        headers = retry_headers.failure_headers(
            message.headers or (), origin, error, tries=1, now_ms=int(time.time() * 1_000)
        )
        key, value = message.key, message.value
        choices = [(key, value, headers), *retry_headers.smaller_letters(key, value, headers)]
        letters = [Record(topic, key or b"", value, headers) for key, value, headers in choices]
        limit = self._engine.limits.get(topic, MAX_BYTES)
        return next((letter for letter in letters if kafka_bytes(letter) <= limit), letters[-1])


def _lookups(plan: Plan) -> dict[str, Rows]:
    tables = plan.engine.graph.lookups
    if not tables:
        return {}
    from offsetmgr.streams.lookups import rows_of  # noqa: PLC0415 -- lmdb

    kafka, views = plan.lookup_kafka, plan.lookup_views
    return {table: rows_of(kafka, table, views.get(table)) for table in tables}


def _messages(
    sources: Sequence[Source], frames: Iterable[pd.DataFrame]
) -> Iterator[tuple[Source, Message]]:
    """Yield the rows of frames in the order of their sources, partitions and offsets."""
    rows: list[tuple[Any, ...]] = []
    for frame in frames:
        rows.extend(zip(*(frame[name].tolist() for name in INPUT_COLUMNS), strict=True))
    rows.sort(key=_IN_ORDER)
    for number, partition, offset, timestamp_ms, key, value, headers in rows:
        source = sources[number]
        listed = [
            (header["key"], header["value"]) for header in (() if headers is None else headers)
        ]
        yield (
            source,
            Message(source.topic, key or b"", value, partition, offset, timestamp_ms, listed),
        )
