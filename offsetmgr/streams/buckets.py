"""Processes the rows of a micro-batch in Spark's Python workers, with state in buckets of keys.

A state of its own for each key costs Spark about a millisecond a key.  So the keys are divided
into buckets by their hash, and the rows of a bucket are one state: a packed map that is read and
written whole when one of its keys is touched.
"""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pandas as pd

from offsetmgr.retry_headers import Origin, failure_headers
from offsetmgr.streams.context import Tables
from offsetmgr.streams.errors import BucketError, ProcessingError
from offsetmgr.streams.hashing import partition_of
from offsetmgr.streams.lookups import rows_of
from offsetmgr.streams.messages import Message, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.state import GroupState

    from offsetmgr.streams.engine import Effects, Engine

INPUT_COLUMNS: Final = ("source", "partition", "offset", "timestamp", "key", "value", "headers")
"""``source`` is the index of the topic in ``Plan.sources``; ``timestamp`` is in milliseconds."""

OUTPUT_SCHEMA: Final = (
    "target int, key binary, value binary, partition int, "
    "headers array<struct<key: string, value: binary>>"
)
"""``target`` is the index of the topic in ``Plan.targets``."""

STATE_SCHEMA: Final = "rows binary"
VISIT_HEADER: Final = "offsetmgr-visit"
"""Of a record in the loop topic that asks a bucket for a visit: the visitor's name."""
ID_HEADER: Final = "offsetmgr-id"
"""Of an emitted record: its origin as ``topic/partition/offset/number``, the same when repeated."""

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


class Plan(NamedTuple):
    """All that a worker has to know.  Picklable, as it travels with each task."""

    engine: Engine
    buckets: int
    sources: Sequence[str]
    """Topics in the order in which a batch's rows are processed: table, joins, inputs, loop."""
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
    plan: Plan, bucket: int, frames: Iterable[pd.DataFrame], state: GroupState
) -> pd.DataFrame:
    """Return the records that a bucket's part of a batch writes, and keep its state.

    Raises ProcessingError, BucketError; then Spark keeps nothing of the batch.
    """
    graph = plan.engine.graph
    recovered = state.exists
    if recovered:
        rows = _unpacked(state.get[0])
        if rows.format != _FORMAT or rows.buckets != plan.buckets:
            raise BucketError(
                f"group {graph.group}: the checkpoint has {rows.buckets} buckets in format "
                f"{rows.format}, the processor {plan.buckets} in format {_FORMAT}: start it with a "
                "new checkpoint, which reads the table again from its topic"
            )
    else:
        rows = BucketState(
            _FORMAT, plan.buckets, {}, {edge.topic: {} for edge in graph.joint_tables}
        )
    batch = _Batch(plan, rows)
    batch.run(_messages(plan.sources, frames), recovered=recovered)
    packed = _packed(rows)
    if len(packed) > plan.bucket_bytes:
        raise BucketError(
            f"group {graph.group}: bucket {bucket} has grown to {len(packed):,} bytes with "
            f"{len(rows.table):,} keys, beyond bucket_bytes={plan.bucket_bytes:,}. Nothing of this "
            "batch is kept. Start the processor with a new checkpoint and more buckets than "
            f"{plan.buckets:,} (the table is read again from its topic), or with a higher limit"
        )
    state.update((packed,))
    return batch.frame()


def process_stateless(plan: Plan, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the records that the messages of a partition write.  Raises ProcessingError."""
    empty = BucketState(_FORMAT, 0, {}, {})
    for frame in frames:
        batch = _Batch(plan, empty)
        batch.run(_messages(plan.sources, [frame]), recovered=True)
        yield batch.frame()


class _Batch:
    """Effects of one bucket's messages in one batch."""

    def __init__(self, plan: Plan, rows: BucketState) -> None:
        self._plan = plan
        self._engine = plan.engine
        self._table = rows.table
        self._joins = rows.joins
        graph = plan.engine.graph
        self._table_topic = graph.table_topic
        lookups = {
            edge.topic: rows_of(plan.lookup_kafka, edge.topic, plan.lookup_views.get(edge.topic))
            for edge in graph.lookup_tables
        }
        self._tables = Tables(rows.table, rows.joins, lookups)
        self._changed: dict[bytes, Record] = {}
        """Rows of the table: only the last of a key has to reach a compacted topic."""
        self._records: list[Record] = []
        self._deferred: list[tuple[Message, Effects]] = []

    def run(self, messages: Iterable[Message], *, recovered: bool) -> None:
        """Process messages in order; ``recovered`` says that the table's own rows are known."""
        for message in messages:
            if message.topic == self._table_topic:
                if not recovered:
                    _put(self._table, message.key, message.value)
            elif message.topic in self._joins:
                _put(self._joins[message.topic], message.key, message.value)
            elif message.headers and (visitor := dict(message.headers).get(VISIT_HEADER)):
                self._visit(visitor.decode(), message)
            else:
                self._process(message)
        for message, effects in self._deferred:
            self._await(message, effects)

    def frame(self) -> pd.DataFrame:
        """Return what is written, as a frame of ``OUTPUT_SCHEMA``."""
        targets = {topic: index for index, topic in enumerate(self._plan.targets)}
        partitions = self._plan.partitions
        records = [*self._records, *self._changed.values()]
        return pd.DataFrame(
            {
                "target": [targets[each.topic] for each in records],
                "key": [each.key for each in records],
                "value": [each.value for each in records],
                "partition": [partition_of(each.key, partitions[each.topic]) for each in records],
                "headers": [each.headers or None for each in records],
            }
        )

    def _process(self, message: Message) -> None:
        try:
            effects = self._engine.process(message, self._tables)
        except ProcessingError as error:
            if self._plan.dead_letters is None:
                raise
            self._records.append(_dead_letter(self._plan.dead_letters, message, error))
            return
        self._apply(message, effects)

    def _visit(self, name: str, control: Message) -> None:
        meta = msgspec.json.decode(control.value or b"null")
        for key, value in list(self._table.items()):
            row = control._replace(topic=name, key=key, value=value, headers=None)
            self._apply(row, self._engine.visit(name, meta, row, self._tables))

    def _apply(self, message: Message, effects: Effects) -> None:
        for number, record in enumerate(effects.records):
            if record.topic == self._table_topic:
                _put(self._table, record.key, record.value)
                self._changed[record.key] = record
            elif self._plan.record_ids:
                origin = f"{message.topic}/{message.partition}/{message.offset}/{number}"
                headers = (*record.headers, (ID_HEADER, origin.encode()))
                self._records.append(record._replace(headers=headers))
            else:
                self._records.append(record)
        if effects.deferred:
            self._deferred.append((message, effects))

    def _await(self, message: Message, effects: Effects) -> None:
        group, limit_s = self._engine.graph.group, self._plan.defer_timeout_s
        for each in effects.deferred:
            try:
                each.result(limit_s)
            except FutureTimeoutError as error:
                problem = f"a deferred commit was not done within {limit_s} s"
                raise ProcessingError(group, message, problem) from error
            except Exception as error:
                problem = f"a deferred commit failed: {error}"
                raise ProcessingError(group, message, problem) from error


def _messages(sources: Sequence[str], frames: Iterable[pd.DataFrame]) -> Iterator[Message]:
    """Yield the rows of frames in the order of their sources, partitions and offsets."""
    rows: list[tuple[Any, ...]] = []
    for frame in frames:
        rows.extend(zip(*(frame[name].tolist() for name in INPUT_COLUMNS), strict=True))
    rows.sort(key=_IN_ORDER)
    for source, partition, offset, timestamp_ms, key, value, headers in rows:
        listed = None if headers is None else [(each["key"], each["value"]) for each in headers]
        yield Message(sources[source], key or b"", value, partition, offset, timestamp_ms, listed)


def _put(rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


def _dead_letter(topic: str, message: Message, error: ProcessingError) -> Record:
    origin = Origin(message.topic, message.partition, message.offset)
    now_ms = int(time.time() * 1_000)
    headers = failure_headers(message.headers or (), origin, error, tries=1, now_ms=now_ms)
    return Record(topic, message.key, message.value, headers)
