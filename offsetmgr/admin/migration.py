"""Copies the offsets of a group to a cluster that mirrors its topics.

Each translated offset is at or before the mirror of the next record to read, so that none is
skipped; what lies between is read again.  ``translate`` and what it needs is pure.
"""

from __future__ import annotations

import struct
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.reset import PlannedOffset
from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_BEFORE: Final = 100
"""Offsets that are read before the next record; ten times as many until they hold a record."""

_NOT_YET: Final = "the record is not yet in the mirror: wait until it has caught up"
_OTHER: Final = (
    "the mirror has younger records, but not this one among the first 1,000 of that time: it "
    "changes, drops or reorders records"
)
_NO_TIME: Final = "the record has no timestamp by which it could be found in the mirror"

_FROM_ITS_TIME: Final = 1_000
"""Offsets of a mirror in which a record is looked for, from the first one of its time on."""


class OffsetSync(NamedTuple):
    """MirrorMaker 2's record that two offsets are of one message."""

    source: int
    target: int


def parse_sync(key: bytes, value: bytes) -> tuple[TopicPartition, OffsetSync] | None:
    """Return a message of an offset-syncs topic; None for any other message.

    The format is that of ``org.apache.kafka.connect.mirror.OffsetSync``: key (topic string,
    partition int32), value (source offset int64, target offset int64), all big-endian.
    """
    try:
        (length,) = struct.unpack_from(">h", key)
        topic, partition = struct.unpack_from(f">{length}si", key, 2)
        return TopicPartition(topic.decode(), partition), OffsetSync(*struct.unpack(">qq", value))
    except (struct.error, UnicodeDecodeError):
        return None


def best_sync(syncs: Iterable[OffsetSync], offset: int) -> OffsetSync | None:
    """Return the sync that most closely precedes ``offset``, as MirrorMaker does.

    ``syncs`` are of one partition, in the order of the topic.  A sync with a lower offset than the
    one before says that the source or the mirror was recreated; those before it count no more.
    """
    best: OffsetSync | None = None
    last = OffsetSync(-1, -1)
    for sync in syncs:
        if sync.source < last.source or sync.target < last.target:
            best = None
        last = sync
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

    def over(self, current: int | None) -> Translation:
        """Return it with the records that a group reads again that is at ``current`` already."""
        back = (current or 0) - (self.offset or 0)
        if self.offset is None or back <= max(0, self.again or 0):
            return self
        return self._replace(again=back, note=f"the group goes back from {current}")


class Record(NamedTuple):
    """A record of a source or its mirror, which keeps time, key and value."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None

    def place_in(self, records: Iterable[Record]) -> int | None:
        """Return the offset of the first of ``records`` that is the same; None without one."""
        return next((each.offset for each in records if each[1:] == self[1:]), None)


def translate(
    offset: int,
    source: PartitionRange,
    target: PartitionRange,
    *,
    sync: OffsetSync | None = None,
    records: Sequence[Record] = (),
    mirror: Sequence[Record] = (),
    mirror_starts_at: int | None = None,
) -> Translation:
    """Return the highest offset of the target that skips no record.

    ``offset`` is the next one to read in the source, ``sync`` as ``best_sync`` returns it.
    ``records`` are of the source: some before ``offset``, and the first one from there on.
    ``mirror`` are the target's from the time of the last of ``records`` on; none if it has none so
    young.  ``mirror_starts_at`` is the offset in the source of the target's first record.
    """
    if offset > source.high_watermark:
        end = source.high_watermark
        return unknown(f"{offset} is beyond the end of its log, {end}: another log, or a cut one")
    found = [_by_records(offset, source, target, records, mirror)]
    if sync is not None:
        # Nobody knows which of the records behind it were mirrored: one step is safe, and no more.
        step = min(offset - sync.source, 1)
        found.append(Translation(sync.target + step, offset - sync.source - step, "offset sync"))
    if target.log_start_offset == target.high_watermark > 0:
        again = max(0, offset - source.log_start_offset)
        note = "the mirror has no record any more"
        found.append(Translation(target.high_watermark, again, "end", note))
    if mirror_starts_at is not None and mirror_starts_at >= offset:
        note = f"the mirror begins with the record at {mirror_starts_at}"
        found.append(Translation(target.log_start_offset, 0, "time", note))
    mirror_end = target.high_watermark
    known = [each for each in found if each.offset is not None and each.offset <= mirror_end]
    if not known:
        return found[0] if found[0].offset is None else unknown(_NOT_YET)
    best = max(known, key=lambda each: each.offset or 0)
    if (best.offset or 0) < target.log_start_offset:
        note = f"{best.offset} is before the log of the mirror: its start"
        return best._replace(offset=target.log_start_offset, note=note)
    return best


def _by_records(
    offset: int,
    source: PartitionRange,
    target: PartitionRange,
    records: Sequence[Record],
    mirror: Sequence[Record],
) -> Translation:
    """Translate by the next record, or by the last one if there is no next one."""
    start = source.log_start_offset
    if not records and offset == source.high_watermark:
        return Translation(target.high_watermark, 0, "end", "the source has no record")
    if offset < start:
        deleted = f"the source has deleted the records from {offset} to {start}"
        return unknown(f"{deleted}, and which ones of the mirror they are cannot be found")
    place = records[-1].place_in(mirror) if records else None
    if place is not None:
        # The mirror may lack some of those before it that look the same: it may be any of them.
        first = next(n for n, each in enumerate(records) if each[1:] == records[-1][1:])
        is_next, again = records[-1].offset >= offset, len(records) - 1 - first
        if is_next and mirror[0].offset <= target.log_start_offset:
            # It may begin behind the record, which is then a later one that looks the same.
            again += sum(each.offset < place for each in mirror)
            place = mirror[0].offset
        return Translation(place + (not is_next), again, "time")
    if records and records[-1].at_ms < 0:
        return unknown(_NO_TIME)
    return unknown(_OTHER if mirror else _NOT_YET)


def unknown(problem: str) -> Translation:
    """Return that no offset is known."""
    return Translation(None, None, "", f"{problem}; left as it is")


class CopiedOffset(NamedTuple):
    """A partition in the plan of a copy."""

    partition: TopicPartition
    offset: int
    """The next offset to read in the source."""
    target: TopicPartition
    current: int | None
    """Committed in the target now."""
    new: Translation


class OffsetMigration(Closing):
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
        self._source = _Cluster(*source, timeout_s)
        self._target = _Cluster(*target, timeout_s)

    def plan_group(self, group: str) -> list[CopiedOffset]:
        """Return what a copy of ``group`` would commit, sorted.

        Raises InvalidValueError if it has committed nothing in the source.
        """
        committed = self._source.committed(group)
        if not committed:
            problem = f"has no committed offsets in {self._source.name}"
            raise InvalidValueError("group", group, problem, "check its name, and --from")
        offsets = {where: each.offset for where, each in committed.items()}
        return self._plan(offsets, self._target.committed(group))

    def plan_checkpoint(self, location: str) -> list[CopiedOffset]:
        """Return where a Spark query would go on in the target after its last finished batch.

        Raises InvalidValueError where there is no checkpoint that can be read, or no such batch.
        """
        finished = Checkpoint(location).last_finished()
        if finished is None:
            fix = "start the query in the target with the option that it has now"
            raise InvalidValueError("checkpoint", location, "has no finished batch", fix)
        return self._plan(finished.offsets, {})

    def execute(self, group: str, plan: Iterable[CopiedOffset]) -> dict[TopicPartition, str]:
        """Commit a plan in the target; return why some partitions were not.

        Raises GroupHeldError where the group has members there, and OffsetConflictError if its
        offsets or topics there are not those of the plan any more.
        """
        self._target.check_free(group)
        rows = [
            PlannedOffset(row.target, row.current, OffsetAndMetadata(row.new.offset))
            for row in plan
            if row.new.offset is not None
        ]
        return self._target.carry_out(group, rows)

    def close(self) -> None:
        self._source.reader.close()
        self._target.reader.close()

    def _plan(
        self,
        offsets: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> list[CopiedOffset]:
        names = {each.topic: f"{self._source.name}.{each.topic}" for each in offsets}
        answers = self._target.reader.partitions_of(names.values())
        names |= {
            topic: topic
            for topic, name in names.items()
            if isinstance(answers[name], InvalidValueError) or does_not_exist(answers[name])
        }
        self._target.topic_ids = self._target_ids(names)
        claims = Counter(names.values())
        targets = {each: TopicPartition(names[each.topic], each.partition) for each in offsets}
        source, there = self._source, self._target
        source.logs, source.unread = source.readable_logs(offsets)
        there.logs, there.unread = there.readable_logs(targets.values())
        syncs = self._syncs(offsets)
        records = source.records_at(offsets)
        wanted = {targets[where]: found[-1] for where, found in records.items() if found}
        mirrors = there.from_time_on(wanted)

        def translated(where: TopicPartition, starts_at: int | None = None) -> Translation:
            target = targets[where]
            if claims[target.topic] > 1:
                return unknown("another topic of the group has the same mirror")
            for cluster, place in ((source, where), (there, target)):
                if note := cluster.unread.get(place):
                    return Translation(None, None, "", note)
                if place not in cluster.logs:
                    return unknown(f"it does not exist in {cluster.name}")
            return translate(
                offsets[where],
                source.logs[where],
                there.logs[target],
                sync=syncs[where],
                records=records.get(where, []),
                mirror=mirrors.get(target, []),
                mirror_starts_at=starts_at,
            )

        new = {where: translated(where) for where in sorted(offsets)}
        unplaced = [where for where in new if new[where].offset is None and where in source.logs]
        mirrored = {targets[where] for where in unplaced} & there.logs.keys()
        starts = {where: there.logs[where].log_start_offset for where in mirrored}
        first = there.read(starts, starts)
        wanted = {w: first[targets[w]][0] for w in unplaced if first.get(targets[w])}
        for where, found in source.from_time_on(wanted).items():
            new[where] = translated(where, wanted[where].place_in(found))
        rows = []
        for where, answer in new.items():
            target = targets[where]
            current = committed[target].offset if target in committed else None
            rows.append(CopiedOffset(where, offsets[where], target, current, answer.over(current)))
        return rows

    def _target_ids(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of the mirrors.  Raises InvalidValueError if a topic is its own mirror."""
        here = self._source.reader.topic_ids(names)
        there = self._target.reader.topic_ids(set(names.values()))
        for topic, name in names.items():
            if here[topic] and here[topic] == there[name]:
                problem = f"is the cluster of --from: topic {topic} is the same in both"
                fix = "name the cluster with the mirror"
                raise InvalidValueError("--to", self._target.name, problem, fix)
        return {name: each for name, each in there.items() if isinstance(each, str)}

    def _syncs(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetSync | None]:
        """Return MirrorMaker's best sync of each partition.

        Its topic is in the source and named after the target, or the other way round.  Without it,
        or a right to read it, there are none.
        """
        found: dict[TopicPartition, list[OffsetSync]] = {each: [] for each in offsets}
        here, there = self._source, self._target
        for cluster, name in ((here, there.name), (there, here.name)):
            where = TopicPartition(f"mm2-offset-syncs.{name}.internal", 0)
            log = cluster.reader.log_ranges([where])[where]
            starts = {} if isinstance(log, OffsetManagerError) else {where: OFFSET_BEGINNING}
            for record in cluster.read(starts, {}).get(where, []):
                parsed = parse_sync(record.key or b"", record.value or b"")
                if parsed is not None and parsed[0] in found:
                    found[parsed[0]].append(parsed[1])
        return {where: best_sync(syncs, offsets[where]) for where, syncs in found.items()}


class _Cluster(GroupChanges):
    """Groups, logs and records of one cluster."""

    def __init__(self, name: str, kafka: Mapping[str, object], timeout_s: float) -> None:
        super().__init__(kafka, timeout_s=timeout_s)
        self.name = name
        self.logs: dict[TopicPartition, PartitionRange] = {}  # that a plan is about
        self.unread: dict[TopicPartition, str] = {}
        """Notes on logs that could not be read."""

    def read(
        self, starts: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[Record]]:
        """Return the records of each log from its start up to the first one at its stop or later.

        Up to the end without a stop.  Those of a topic that Kafka refuses are added to ``unread``.
        """
        found: dict[TopicPartition, list[Record]] = {where: [] for where in starts}
        try:
            for message in read_to_end(self._config, starts, self.reader.timeout_s, stops):
                where = TopicPartition(message.topic() or "", message.partition() or 0)
                at_ms, value = message.timestamp()[1], message.value()
                if value and len(value) > sha256().digest_size:  # a thousand are compared
                    value = sha256(value).digest()
                found[where].append(Record(message.offset() or 0, at_ms, message.key(), value))
        except KafkaRequestError as error:
            topics = {where.topic for where in starts}
            if len(topics) == 1:
                self.unread |= dict.fromkeys(starts, f"left as it is: {error}")
                return {}
            found = {}
            for topic in topics:
                own = {where: start for where, start in starts.items() if where.topic == topic}
                found |= self.read(own, stops)
        return found

    def records_at(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[Record]]:
        """Return some records before each offset, and the first one from there on.

        Before it, as many are read as it takes to find one that differs from the last.
        """
        found: dict[TopicPartition, list[Record]] = {}
        left = {w: log for w, log in self.logs.items() if offsets[w] <= log.high_watermark}
        before = _BEFORE
        while left:
            starts = {w: max(log.log_start_offset, offsets[w] - before) for w, log in left.items()}
            found |= self.read(starts, {where: offsets[where] for where in left})
            left = {
                where: log
                for where, log in left.items()
                if where not in self.unread
                and starts[where] > log.log_start_offset
                and all(each[1:] == found[where][-1][1:] for each in found[where])
            }
            before *= 10
        return found

    def from_time_on(
        self, wanted: Mapping[TopicPartition, Record]
    ) -> dict[TopicPartition, list[Record]]:
        """Return the records of each log from the time of a wanted one on: up to 1,000 offsets."""
        times = {where: record.at_ms for where, record in wanted.items() if where in self.logs}
        answers = self.reader.offsets_at(times)
        starts = {where: at for where, at in answers.items() if isinstance(at, int)}
        self.unread |= {
            where: f"left as it is: {answer}"
            for where, answer in answers.items()
            if isinstance(answer, OffsetManagerError)
        }
        stops = {where: at + _FROM_ITS_TIME for where, at in starts.items()}
        return self.read(starts, stops)
