"""Copies the offsets of a group to a cluster that mirrors its topics.

Each translated offset is at or before the mirror of the next record to read, so that none is
skipped; what lies between is read again.  ``translate`` and what it needs is pure.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.reset import PlannedOffset
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message
    from typing_extensions import Self

_BEFORE: Final = 100
"""A record before the next one is looked for so far back: transactions end in offsets without."""


class OffsetSync(NamedTuple):
    """MirrorMaker 2's record that two offsets are of one message."""

    source: int
    target: int


def parse_sync(key: bytes, value: bytes) -> tuple[TopicPartition, OffsetSync]:
    """Return a message of an offset-syncs topic.  Raises ValueError where it is none.

    The format is that of ``org.apache.kafka.connect.mirror.OffsetSync``: key (topic string,
    partition int32), value (source offset int64, target offset int64), all big-endian.
    """
    try:
        (length,) = struct.unpack_from(">h", key)
        topic, partition = struct.unpack_from(f">{length}si", key, 2)
        return TopicPartition(topic.decode(), partition), OffsetSync(*struct.unpack(">qq", value))
    except struct.error as error:
        raise ValueError(f"is no offset sync: {error}") from None


def best_sync(syncs: Iterable[OffsetSync], offset: int) -> OffsetSync | None:
    """Return the sync that most closely precedes ``offset``, as MirrorMaker does.

    ``syncs`` are of one partition, in the order of the topic.  A sync with a lower source offset
    than the one before says that the source was made anew; those before it count no more.
    """
    best: OffsetSync | None = None
    last = -1
    for sync in syncs:
        if sync.source < last:
            best = None
        last = sync.source
        if sync.source <= offset:
            best = sync
    return best


class Translation(NamedTuple):
    """An offset of the target."""

    offset: int | None
    """None where it is not known; the note says why."""
    again: int | None
    """Records that are read again, at most."""
    by: str
    note: str = ""


def translate(
    offset: int,
    source: PartitionRange,
    target: PartitionRange,
    sync: OffsetSync | None = None,
    same_record: OffsetSync | None = None,
) -> Translation:
    """Return the highest offset of the target that skips no record.

    ``offset`` is the next one to read in the source, ``sync`` as ``best_sync`` returns it.
    ``same_record`` are the first offsets with the time of the record at ``offset`` or later, in
    both logs, if both are of the same record.  If there is no record at ``offset``, the time is
    that of the one before it.
    """
    if offset > source.high_watermark:
        return unknown(f"{offset} is beyond the end of its log, {source.high_watermark}")
    found = []
    if sync is not None:
        found.append(_from_pair(sync, offset, "offset sync"))
    if same_record is not None:
        found.append(_from_pair(same_record, offset, "time"))
    if source == target == (offset, offset):
        found.append(Translation(offset, 0, "end", "no record in either log"))
    usable = [each for each in found if (each.offset or 0) <= target.high_watermark]
    if not usable:
        return unknown("the mirror does not have the record, or not yet")
    best = max(usable, key=lambda each: each.offset or 0)
    if (best.offset or 0) < target.log_start_offset:
        note = f"{best.offset} is before the log of the mirror: its start"
        return best._replace(offset=target.log_start_offset, note=note)
    return best


def unknown(problem: str) -> Translation:
    """Return that no offset is known."""
    return Translation(None, None, "", f"{problem}; left as it is")


def _from_pair(pair: OffsetSync, offset: int, by: str) -> Translation:
    """Translate by two offsets of the same record.

    Nobody knows which of the records behind it were mirrored: one step is safe, and no more.
    """
    step = min(offset - pair.source, 1)
    return Translation(pair.target + step, offset - pair.source - step, by)


class CopiedOffset(NamedTuple):
    """A partition in the plan of a copy."""

    partition: TopicPartition
    offset: int
    """The next offset to read in the source."""
    target: TopicPartition
    current: int | None
    """Committed in the target now."""
    new: Translation


class OffsetMigration:
    """Plans and makes copies of offsets from one cluster to another.

    A topic of the target that is named ``SOURCE.topic``, as MirrorMaker 2 does by default, is taken
    for the mirror; else the one of the same name.  All methods wait for Kafka and raise
    KafkaRequestError; OffsetTimeoutError where a cluster does not answer in time.
    """

    def __init__(
        self,
        source: tuple[str, Mapping[str, object]],
        target: tuple[str, Mapping[str, object]],
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """``source`` and ``target`` are names, as in MirrorMaker, and librdkafka's settings."""
        self._source_name, self._source_kafka = source
        self._target_name, self._target_kafka = target
        self._timeout_s = timeout_s
        self._source = GroupChanges(self._source_kafka, timeout_s=timeout_s)
        self._target = GroupChanges(self._target_kafka, timeout_s=timeout_s)

    def plan_group(self, group: str) -> list[CopiedOffset]:
        """Return what a copy of ``group`` would commit, sorted."""
        committed = self._source.committed(group)
        offsets = {where: each.offset for where, each in committed.items()}
        return self._plan(offsets, self._target.committed(group))

    def plan_checkpoint(self, location: str) -> list[CopiedOffset]:
        """Return where a Spark query would go on in the target after its last finished batch.

        Raises InvalidValueError where there is no checkpoint that can be read.
        """
        finished = Checkpoint(location).last_finished()
        return self._plan({} if finished is None else finished.offsets, {})

    def execute(self, group: str, plan: Iterable[CopiedOffset]) -> dict[TopicPartition, str]:
        """Commit a plan in the target; return why some partitions were not.

        Raises GroupHeldError where the group has members there.
        """
        self._target.check_free(group)
        rows = [
            PlannedOffset(row.target, row.current, OffsetAndMetadata(row.new.offset))
            for row in plan
            if row.new.offset is not None
        ]
        return self._target.commit(group, rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.reader.close()
        self._target.reader.close()

    def _plan(
        self,
        offsets: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> list[CopiedOffset]:
        mirrors = self._mirrors({each.topic for each in offsets})
        targets = {each: TopicPartition(mirrors[each.topic], each.partition) for each in offsets}
        source_logs = self._source.logs(offsets)
        target_logs = self._target.logs(targets.values())
        syncs = self._syncs(offsets)
        pairs = self._same_records(offsets, targets, source_logs, target_logs)
        rows = []
        for where, offset in sorted(offsets.items()):
            target = targets[where]
            source_log, target_log = source_logs.get(where), target_logs.get(target)
            if source_log is None or target_log is None:
                place = self._source_name if source_log is None else self._target_name
                new = unknown(f"it does not exist in {place}")
            else:
                pair = pairs.get(where)
                new = translate(offset, source_log, target_log, syncs[where], pair)
            current = committed[target].offset if target in committed else None
            rows.append(CopiedOffset(where, offset, target, current, new))
        return rows

    def _mirrors(self, topics: Iterable[str]) -> dict[str, str]:
        prefixed = {topic: f"{self._source_name}.{topic}" for topic in topics}
        answers = self._target.reader.partitions_of(prefixed.values())
        return {
            topic: topic if does_not_exist(answers[name]) else name
            for topic, name in prefixed.items()
        }

    def _same_records(
        self,
        offsets: Mapping[TopicPartition, int],
        targets: Mapping[TopicPartition, TopicPartition],
        source_logs: Mapping[TopicPartition, PartitionRange],
        target_logs: Mapping[TopicPartition, PartitionRange],
    ) -> dict[TopicPartition, OffsetSync]:
        """Return the first offsets of one time in both logs, where the records are the same."""
        wanted = {
            where: (offsets[where], log)
            for where, log in source_logs.items()
            if log.log_start_offset <= offsets[where] <= log.high_watermark
            and targets[where] in target_logs
        }
        next_records = self._records(self._source_kafka, wanted)
        times = {where: record.timestamp()[1] for where, record in next_records.items()}
        here = self._source.reader.offsets_at(times)
        there = self._target.reader.offsets_at({targets[w]: at_ms for w, at_ms in times.items()})
        pairs = {}
        for where in times:
            first, mirrored = known(here[where]), known(there[targets[where]])
            if first is not None and mirrored is not None:
                pairs[where] = OffsetSync(first, mirrored)
        records = self._records(
            self._source_kafka, {w: (pair.source, source_logs[w]) for w, pair in pairs.items()}
        )
        mirrors = self._records(
            self._target_kafka,
            {targets[w]: (pair.target, target_logs[targets[w]]) for w, pair in pairs.items()},
        )
        return {
            where: pair
            for where, pair in pairs.items()
            if _same(records.get(where), mirrors.get(targets[where]))
        }

    def _syncs(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetSync | None]:
        """Return MirrorMaker's best sync of each partition.

        Its topic is in the source and named after the target, or the other way round.
        """
        found: dict[TopicPartition, list[OffsetSync]] = {each: [] for each in offsets}
        places = (
            (self._source, self._source_kafka, self._target_name),
            (self._target, self._target_kafka, self._source_name),
        )
        for cluster, kafka, name in places:
            where = TopicPartition(f"mm2-offset-syncs.{name}.internal", 0)
            starts = dict.fromkeys(cluster.logs([where]), OFFSET_BEGINNING)
            for message in read_to_end(kafka, starts, self._timeout_s):
                partition, sync = parse_sync(message.key() or b"", message.value() or b"")
                if partition in found:
                    found[partition].append(sync)
        return {where: best_sync(syncs, offsets[where]) for where, syncs in found.items()}

    def _records(
        self,
        kafka: Mapping[str, object],
        wanted: Mapping[TopicPartition, tuple[int, PartitionRange]],
    ) -> dict[TopicPartition, Message]:
        """Return the first record at an offset or after it; else the last one before it."""
        starts = {
            where: max(log.log_start_offset, offset - _BEFORE)
            for where, (offset, log) in wanted.items()
        }
        stops = {where: offset for where, (offset, _) in wanted.items()}
        messages = read_to_end(kafka, starts, self._timeout_s, stops)
        return {TopicPartition(m.topic() or "", m.partition() or 0): m for m in messages}


def starting_offsets(plan: Iterable[CopiedOffset]) -> str:
    """Return the option ``startingOffsets`` of Spark's Kafka source.  All offsets are known."""
    topics: dict[str, dict[str, int | None]] = {}
    for row in plan:
        topics.setdefault(row.target.topic, {})[str(row.target.partition)] = row.new.offset
    return json.dumps(topics)


def _same(one: Message | None, other: Message | None) -> bool:
    if one is None or other is None or one.timestamp()[1] != other.timestamp()[1]:
        return False
    return (one.key(), one.value()) == (other.key(), other.value())
