"""Lag in seconds: the age of the first record that a group has not committed.

It lies between two measured ends of the log, where these are close together; else the record's own
timestamp is read.
"""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.log_reader import NextRecord
from offsetmgr.lag.measure import as_listed, read_groups
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.lag.measure import GroupLag, PartitionLag

POINTS: Final = 60
"""Kept of each log, as by kafka-lag-exporter; beyond it every second one goes, never the oldest."""

CLOSE_S: Final = 60.0
CLOSE_SHARE: Final = 0.1
"""Two measured ends are close if their times differ by at most CLOSE_S, or by this share of the age
that lies between them."""

_Place: TypeAlias = tuple[TopicPartition, int]
_Age: TypeAlias = NextRecord | OffsetManagerError | float
"""The first uncommitted record, or its age in seconds; why neither is known."""


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
