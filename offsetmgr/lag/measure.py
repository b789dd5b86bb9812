"""The lag of groups at one moment, in records and in seconds.

Lag in seconds is the age of the first record that a group has not committed.  It lies between two
measured ends of the log, where these are close together; else the record's own timestamp is read.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.acked_ranges import pending_below
from offsetmgr.errors import OffsetManagerError, OffsetStoreError
from offsetmgr.kafka.cluster import GroupListings
from offsetmgr.kafka.log_reader import NextRecord
from offsetmgr.lag.store_reader import StoreReader, listings_of
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.answers import GroupMember
    from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
    from offsetmgr.lag.burrow import ObservedCommit, Status
    from offsetmgr.types import OffsetAndMetadata, PartitionRange

POINTS: Final = 60
"""Kept of each log, as by kafka-lag-exporter; beyond it every second one goes, never the oldest."""

CLOSE_S: Final = 60.0
CLOSE_SHARE: Final = 0.1
"""Two measured ends are close if their times differ by at most CLOSE_S, or by this share of the age
that lies between them."""

_Place: TypeAlias = tuple[TopicPartition, int]
_Age: TypeAlias = NextRecord | OffsetManagerError | float
"""The first uncommitted record, or its age in seconds; why neither is known."""


class PartitionLag(NamedTuple):
    """A partition that a group has committed, or that is assigned to one of its members."""

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None = None
    """The offset after the last record; None where it could not be read."""
    lag: int | None = None
    """Records between the two, never below 0; None where one of them is not known."""
    start: int | None = None
    """The offset of the oldest record of the log."""
    seconds: float | None = None
    """Age of the first record that is not committed; None where it is not known."""
    seconds_unknown: str = ""
    """Why it is not known although there is lag."""
    held_back: bool = False
    """True if an open transaction holds these records back."""
    member: GroupMember | None = None
    """The live member it is assigned to."""
    error: OffsetManagerError | None = None
    """Why the end of the log could not be read."""
    status: Status | None = None
    """OK or worse by Burrow's rules; this and what follows is known only of a watched group."""
    commits: tuple[ObservedCommit, ...] = ()
    """The last commits, oldest first."""
    rate_in: float | None = None
    """Records written a second; None after a single round."""
    rate_out: float | None = None
    """Records committed a second."""

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until the lag is gone at these rates; None where it does not shrink."""
        arriving, leaving = self.rate_in, self.rate_out
        if self.status is not None and self.lag == 0:
            return 0.0
        if self.lag is None or arriving is None or leaving is None or leaving <= arriving:
            return None
        return self.lag / (leaving - arriving)

    @property
    def pending_acks(self) -> int | None:
        """The offsets below the highest acknowledged one that are not acknowledged.

        0 for a group that commits no acks, None where the metadata is none of acks.
        """
        if self.committed is None or self.end is None:
            return None
        return pending_below(self.committed.offset, self.committed.metadata, self.end)

    @property
    def out_of_range(self) -> bool:
        """True if the committed offset lies outside its log."""
        if self.committed is None or self.end is None or self.start is None:
            return False
        return not self.start <= self.committed.offset <= self.end

    @property
    def is_beyond_end(self) -> bool:
        """True if the committed offset lies behind the end of its log."""
        offset = self.committed.offset if self.committed else 0
        return self.out_of_range and offset > (self.end or 0)


class GroupLag(NamedTuple):
    """A group with its partitions, sorted."""

    name: str
    description: GroupDescription | None
    partitions: tuple[PartitionLag, ...]
    error: OffsetManagerError | None = None
    """Why it could not be read; of a watched group all else is then of an earlier round.

    The offsets of a group in a store are known also where Kafka does not describe the group.
    """
    status: Status | None = None
    """Of a watched group; None until it was read once."""
    lag_points: tuple[int | None, ...] = ()
    """Its lag in the last rounds of the watch, oldest first; None where it was not known."""

    @property
    def exists(self) -> bool:
        """True if Kafka knows the group: it has members or committed offsets."""
        dead = self.description is not None and self.description.state == "Dead"
        return self.error is None and not (dead and not self.partitions)

    @property
    def members(self) -> tuple[GroupMember, ...]:
        """Its live members, as far as they are known."""
        return self.description.members if self.description else ()

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets."""
        return {
            each.partition: each.committed for each in self.partitions if each.committed is not None
        }

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

    Those without lag count only where all are without: theirs is not an answer for the others.
    """
    known = [(lag, seconds) for lag, seconds in behind if lag is not None]
    lagging = [seconds for lag, seconds in known if lag]
    if not lagging:
        return 0.0 if known else None
    return max((seconds for seconds in lagging if seconds is not None), default=None)


def read_groups(
    source: ClusterReader, groups: Iterable[str], also: Iterable[TopicPartition] = ()
) -> tuple[dict[str, GroupLag], dict[TopicPartition, PartitionRange | OffsetManagerError]]:
    """Return ``groups`` with their lag in records, and the logs of these and of ``also``."""
    names = list(dict.fromkeys(groups))
    described = source.describe(names)
    # Before the ends: a record that arrives in between makes lag, never a negative one.
    # A coordinator that does not answer is not waited for twice; a store is another place.
    waited_for = OffsetStoreError if isinstance(source, StoreReader) else OffsetManagerError
    answered = [name for name in names if not isinstance(described[name], waited_for)]
    committed = source.committed(answered)
    read = [_group(name, described[name], committed.get(name, {})) for name in names]
    partitions = (each.partition for group in read for each in group.partitions)
    logs = source.log_ranges(dict.fromkeys(chain(also, partitions)))
    measured = {group.name: _with_logs(group, logs) for group in read}
    # A log whose records are deleted as soon as they are committed may have moved on meanwhile.
    passed = [name for name, group in measured.items() if any(map(_expired, group.partitions))]
    for name, offsets in source.committed(passed).items() if passed else ():
        measured[name] = _with_logs(_group(name, described[name], offsets), logs)
    return measured, logs


def as_listed(source: ClusterReader, groups: Iterable[GroupLag]) -> dict[str, GroupLag]:
    """Return those of ``groups`` that commit no offsets, with the state and type of Kafka's list.

    Kafka describes share groups, and others of newer types, as if they did not exist.  If the list
    lacks some groups, so that this is not known, the group has the error.
    """
    dead = {each.name: each for each in groups if each.error is None and not each.exists}
    listings = listings_of(source.groups) if dead else GroupListings([])
    found = {}
    if listings.errors:
        found = {name: GroupLag(name, None, (), listings.errors[0]) for name in dead}
    for name, state, kind in listings.groups:
        group = dead.get(name)
        if group is not None and group.description is not None:
            described = group.description._replace(state=state, type=kind)
            found[name] = group._replace(description=described)
    return found


def _group(
    name: str,
    described: GroupDescription | OffsetManagerError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | OffsetManagerError,
) -> GroupLag:
    """Return the partitions that a group has committed or that its members read, without ends."""
    if isinstance(committed, OffsetManagerError):
        return GroupLag(name, None, (), committed)
    error = described if isinstance(described, OffsetManagerError) else None
    description = None if isinstance(described, OffsetManagerError) else described
    known = description.members if description else ()
    members = {each: member for member in known for each in member.partitions}
    partitions = (
        PartitionLag(each, committed.get(each), member=members.get(each))
        for each in sorted({*committed, *members})
    )
    return GroupLag(name, description, tuple(partitions), error)


def _with_logs(
    group: GroupLag, logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError]
) -> GroupLag:
    partitions = (_with_log(each, logs.get(each.partition)) for each in group.partitions)
    return group._replace(partitions=tuple(partitions))


def _with_log(lag: PartitionLag, log: PartitionRange | OffsetManagerError | None) -> PartitionLag:
    if isinstance(log, OffsetManagerError):
        return lag._replace(error=log)
    if log is None:
        return lag
    start, end = log
    behind = None if lag.committed is None else max(end - lag.committed.offset, 0)
    seconds = 0.0 if behind == 0 else None
    return lag._replace(start=start, end=end, lag=behind, seconds=seconds)


def _expired(lag: PartitionLag) -> bool:
    return lag.committed is not None and lag.committed.offset < (lag.start or 0)


class _Point(NamedTuple):
    """The log ended at ``offset`` from ``first_s`` to ``last_s``, as far as is known."""

    offset: int
    first_s: float
    last_s: float


class LogTimeline(NamedTuple):
    """Measured ends of one log with their times."""

    points: tuple[_Point, ...] = ()

    def with_end(self, end: int, at_s: float) -> LogTimeline:
        """Return the timeline with one more end.

        It begins anew if the log shrank, as it was recreated, and if the clock was set back.
        """
        *earlier, last = self.points or (_Point(end, at_s, at_s),)
        if end < last.offset or at_s < last.last_s:
            return LogTimeline((_Point(end, at_s, at_s),))
        if end == last.offset:
            return LogTimeline((*earlier, last._replace(last_s=at_s)))
        points = (*self.points, _Point(end, at_s, at_s))
        if len(points) > POINTS:
            points = (points[0], *points[2:-1:2], points[-1])
        return LogTimeline(points)

    def seconds_behind(self, committed: int, now_s: float) -> float | None:
        """Return the age of the record at ``committed``: 0 or more, 0 where all is read.

        It is interpolated between two measured ends.  None where no two are close around it.
        """
        points = self.points
        if not points or committed < points[0].offset:
            return None
        if committed >= points[-1].offset:
            return 0.0
        index = bisect_right(points, committed, key=lambda point: point.offset)
        earlier, later = points[index - 1], points[index]
        width_s = later.first_s - earlier.last_s
        share = (committed - earlier.offset) / (later.offset - earlier.offset)
        age_s = max(now_s - earlier.last_s - share * width_s, 0.0)
        return age_s if width_s <= max(CLOSE_S, CLOSE_SHARE * age_s) else None


class RecordAges:
    """Fills in lags in seconds, and remembers the times of records that it has read."""

    def __init__(self, source: ClusterReader) -> None:
        self._source = source
        self._ages: Mapping[_Place, _Age] = MappingProxyType({})
        """Those of all committed offsets with lag, as of the last round."""
        self.timelines: Mapping[TopicPartition, LogTimeline] = MappingProxyType({})
        """The measured ends of logs."""

    def fill(
        self, groups: Iterable[GroupLag], now_s: float, *, is_round: bool = False
    ) -> list[GroupLag]:
        """Return ``groups`` with their seconds; ``now_s`` is the time in seconds since 1970.

        Records are read where no measured ends are close, and where the committed offset was the
        same in the last round: there nothing but the marker of a transaction may wait.  After a
        round (for one thread) what was read is remembered.
        """
        found = list(groups)
        places = {
            place: each
            for group in found
            for each in group.partitions
            if (place := _place(each)) is not None
        }
        ages: dict[_Place, _Age] = {}
        wanted: dict[TopicPartition, list[int]] = {}
        for place, each in places.items():
            before, seconds = self._ages.get(place), self._measured(place, each, now_s)
            if isinstance(before, NextRecord) and (
                before.at_s is not None or before.offset >= (each.end or 0)
            ):
                ages[place] = before
                continue
            if seconds is not None:
                ages[place] = seconds
            if seconds is None or before is not None:
                wanted.setdefault(place[0], []).append(place[1])
        for place, answer in self._source.next_records(wanted).items():
            is_age = isinstance(answer, NextRecord) and not _is_future(answer, now_s)
            if is_age or place not in ages:
                ages[place] = answer
        if is_round:
            self._ages = ages

        def filled(each: PartitionLag) -> PartitionLag:
            place = _place(each)
            return each if place is None else _with_age(each, ages[place], now_s)

        return [group._replace(partitions=tuple(map(filled, group.partitions))) for group in found]

    def _measured(self, place: _Place, lag: PartitionLag, now_s: float) -> float | None:
        timeline = self.timelines.get(place[0])
        if timeline is None or lag.end is None:
            return None
        return timeline.with_end(lag.end, now_s).seconds_behind(place[1], now_s)


def _place(lag: PartitionLag) -> _Place | None:
    """Return where the first uncommitted record is looked for; None if there is none."""
    if not lag.lag or lag.committed is None:
        return None
    return lag.partition, max(lag.committed.offset, lag.start or 0)


def _is_future(record: NextRecord, now_s: float) -> bool:
    """Return True if the record's time is in the future, so that it does not tell its age."""
    return record.at_s is not None and record.at_s > now_s + CLOSE_S


def _with_age(lag: PartitionLag, found: _Age, now_s: float) -> PartitionLag:
    if isinstance(found, OffsetManagerError):
        return lag._replace(seconds_unknown=str(found))
    if not isinstance(found, NextRecord):
        return lag._replace(seconds=found)
    if _is_future(found, now_s):
        why = f"the record at offset {found.offset} has a time in the future"
        return lag._replace(seconds_unknown=why)
    if found.at_s is not None:
        return lag._replace(seconds=max(now_s - found.at_s, 0.0))
    if found.offset >= (lag.end or 0):  # nothing but markers of transactions, or aborted records
        return lag._replace(lag=0, seconds=0.0)
    why = f"an open transaction holds back the records from offset {found.offset} on"
    return lag._replace(seconds_unknown=why, held_back=True)


def measure(
    source: ClusterReader,
    groups: Iterable[str],
    now_s: float,
    ages: RecordAges | None = None,
) -> list[GroupLag]:
    """Return the lag of ``groups``; ``now_s`` is the time in seconds since 1970.

    ``ages`` are those of a watcher, which knows earlier ends of the logs.
    """
    found, _ = read_groups(source, groups)
    found |= as_listed(source, found.values())
    return (ages or RecordAges(source)).fill(found.values(), now_s)
