"""The lag of groups at one moment, in records and in seconds."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.acked_ranges import pending_below
from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.kafka.cluster import ClusterReader, GroupDescription, GroupMember
    from offsetmgr.lag.store_reader import StoreReader
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_AGES_S: Final = tuple(10 * 3**step for step in range(11))
"""Ages, from 10 s to a week, for which the end of a lagging log is asked: one after the other,
until one lies at or before the committed offset."""


POINTS: Final = 60
"""Kept of each log, as by kafka-lag-exporter; beyond it every second one goes, never the oldest."""


class _Point(NamedTuple):
    """The log ended at ``offset`` from ``first_s`` to ``last_s``, as far as is known."""

    offset: int
    first_s: float
    last_s: float


class LogTimeline:
    """Known ends of one log, each with its time: an estimate of the age of a record in it."""

    def __init__(self, points: Iterable[_Point] = ()) -> None:
        self.points = list(points)

    def add(self, end: int, at_s: float) -> None:
        """Take in that the log ended at ``end``; a log that shrank was made anew."""
        points = self.points
        last = points[-1] if points else None
        if last is not None and at_s < last.last_s:
            return
        if last is not None and end == last.offset:
            points[-1] = last._replace(last_s=at_s)
            return
        if last is not None and end < last.offset:
            points.clear()
        points.append(_Point(end, at_s, at_s))
        if len(points) > POINTS:
            del points[1:-1:2]

    def with_end(self, end: int, at_s: float) -> LogTimeline:
        """Return a copy with one more end, while another thread may add ends."""
        copy = LogTimeline(self.points)
        copy.add(end, at_s)
        return copy

    def reaches(self, offset: int) -> bool:
        """Return True if an end at or before ``offset`` is known."""
        return bool(self.points) and self.points[0].offset <= offset

    def seconds_behind(self, committed: int, now_s: float) -> float | None:
        """Return the age of the record at ``committed``: 0 or more, 0 where all is read.

        It is interpolated between two known ends, and beyond the oldest one by the rate of all.
        None where too little is known.
        """
        points = self.points
        if not points:
            return None
        newest, oldest = points[-1], points[0]
        if committed >= newest.offset:
            return 0.0
        if committed < oldest.offset:
            earlier, later = oldest, newest
        else:
            index = bisect_right(points, committed, key=lambda point: point.offset)
            earlier, later = points[index - 1], points[index]
        if earlier is later:
            return None
        seconds_per_record = (later.first_s - earlier.last_s) / (later.offset - earlier.offset)
        written_s = earlier.last_s + (committed - earlier.offset) * seconds_per_record
        return max(now_s - written_s, 0.0)


class PartitionLag(NamedTuple):
    """A partition that a group has committed, or that is assigned to one of its members."""

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None
    """The offset after the last record; None where it could not be read."""
    lag: int | None
    """Records between the two, never below 0; None where one of them is not known."""
    seconds: float | None = None
    """Age of the first record that is not committed; None where it is not known."""
    member: GroupMember | None = None
    """The live member it is assigned to."""
    error: OffsetManagerError | None = None
    """Why the end of the log could not be read."""

    @property
    def pending_acks(self) -> int | None:
        """The offsets below the highest acknowledged one that are not acknowledged.

        0 for a group that commits no acks, None where the metadata is none of acks.
        """
        if self.committed is None or self.end is None:
            return None
        return pending_below(self.committed.offset, self.committed.metadata, self.end)

    @property
    def beyond_end(self) -> bool:
        """True if the committed offset lies above the end of the log."""
        if self.committed is None or self.end is None:
            return False
        return self.committed.offset > self.end


class GroupLag(NamedTuple):
    """A group with its partitions, sorted; or the reason why they are not known."""

    name: str
    description: GroupDescription | None
    partitions: tuple[PartitionLag, ...]
    error: OffsetManagerError | None = None

    @property
    def exists(self) -> bool:
        """True if Kafka knows the group: it has members or committed offsets."""
        dead = self.description is not None and self.description.state == "Dead"
        return self.error is None and not (dead and not self.partitions)

    @property
    def total(self) -> int | None:
        """Records behind in all partitions; None where nothing is committed."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        """The most seconds that a partition is behind; None where none is known."""
        return worst_seconds((each.lag, each.seconds) for each in self.partitions)


def worst_seconds(behind: Iterable[tuple[int | None, float | None]]) -> float | None:
    """Return the worst of some partitions' seconds, each given with its lag in records.

    Those without lag count only where all are without: theirs is no answer for the others.
    """
    known = [(lag, seconds) for lag, seconds in behind if lag is not None]
    lagging = [seconds for lag, seconds in known if lag]
    if not lagging:
        return 0.0 if known else None
    return max((seconds for seconds in lagging if seconds is not None), default=None)


def measure(
    source: ClusterReader | StoreReader,
    groups: Iterable[str],
    now_s: float,
    known: Mapping[TopicPartition, LogTimeline] = MappingProxyType({}),
) -> list[GroupLag]:
    """Return the lag of ``groups``; ``now_s`` is the time in seconds since 1970.

    ``known`` are earlier ends of logs, for which Kafka is not asked then.
    """
    found, _ = read_groups(source, groups)
    partitions = (each for group in found.values() for each in group.partitions)
    times = timelines(source, partitions, now_s, known)
    return [_with_seconds(group, times, now_s) for group in found.values()]


def read_groups(
    source: ClusterReader | StoreReader, groups: Iterable[str], also: Iterable[TopicPartition] = ()
) -> tuple[dict[str, GroupLag], dict[TopicPartition, int | OffsetManagerError]]:
    """Return ``groups`` with their lag in records, and the ends of their logs and of ``also``."""
    names = list(dict.fromkeys(groups))
    described = source.describe(names)
    # Before the ends: a record that arrives in between makes lag, never a negative one.
    committed = source.committed(names)
    read = [_group(name, described[name], committed[name]) for name in names]
    partitions = (each.partition for group in read for each in group.partitions)
    ends = source.log_ends(dict.fromkeys(chain(also, partitions)))
    measured = {}
    for group in read:
        with_ends = (_with_end(each, ends[each.partition]) for each in group.partitions)
        measured[group.name] = group._replace(partitions=tuple(with_ends))
    return measured, ends


def _group(
    name: str,
    described: GroupDescription | OffsetManagerError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | OffsetManagerError,
) -> GroupLag:
    """Return the partitions that a group has committed or that its members read, without ends."""
    if isinstance(committed, OffsetManagerError):
        return GroupLag(name, None, (), committed)
    if isinstance(described, OffsetManagerError):
        return GroupLag(name, None, (), described)
    members = {each: member for member in described.members for each in member.partitions}
    partitions = (
        PartitionLag(each, committed.get(each), None, None, member=members.get(each))
        for each in sorted({*committed, *members})
    )
    return GroupLag(name, described, tuple(partitions))


def _with_end(found: PartitionLag, end: int | OffsetManagerError) -> PartitionLag:
    if isinstance(end, OffsetManagerError):
        return found._replace(error=end)
    if found.committed is None:
        return found._replace(end=end)
    lag = max(end - found.committed.offset, 0)
    return found._replace(end=end, lag=lag, seconds=None if lag else 0.0)


def timelines(
    source: ClusterReader | StoreReader,
    partitions: Iterable[PartitionLag],
    now_s: float,
    known: Mapping[TopicPartition, LogTimeline] = MappingProxyType({}),
) -> dict[TopicPartition, LogTimeline]:
    """Return earlier ends of the logs that have unread records: ``known`` ones, else Kafka's.

    Kafka is asked for older and older ends.
    """
    made: dict[TopicPartition, LogTimeline] = {}
    lowest: dict[TopicPartition, int] = {}
    points: dict[TopicPartition, list[tuple[int, float]]] = {}
    for each in partitions:
        where, at = each.partition, each.committed
        if each.lag and at is not None and each.end is not None:
            timeline = known.get(where, LogTimeline()).with_end(each.end, now_s)
            if timeline.reaches(at.offset):
                made[where] = timeline
            else:
                lowest[where] = min(lowest.get(where, at.offset), at.offset)
                points[where] = [(each.end, now_s)]
    for age_s in _AGES_S:
        at_s = now_s - age_s
        open_ = [where for where, low in lowest.items() if points[where][-1][0] > low]
        if not open_:
            break
        found = source.offsets_at(dict.fromkeys(open_, int(at_s * 1000)))
        for where, offset in found.items():
            if isinstance(offset, OffsetManagerError):
                del lowest[where]
            else:
                end = points[where][0][0] if offset is None else offset
                points[where].append((end, at_s))
    for where, ends in points.items():
        made[where] = LogTimeline()
        for end, at_s in reversed(ends):
            made[where].add(end, at_s)
    return made


def _with_seconds(
    group: GroupLag, times: Mapping[TopicPartition, LogTimeline], now_s: float
) -> GroupLag:
    partitions = []
    for each in group.partitions:
        if each.lag and each.committed:
            seconds = times[each.partition].seconds_behind(each.committed.offset, now_s)
            partitions.append(each._replace(seconds=seconds))
        else:
            partitions.append(each)
    return group._replace(partitions=tuple(partitions))
