"""Watches groups: their lag, rates and Burrow's status, from one round of reads to the next."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import OffsetManagerError
from offsetmgr.lag.burrow import (
    INTERVALS,
    ObservedCommit,
    Status,
    group_status,
    partition_status,
)
from offsetmgr.lag.measure import CLOSE_S, LogTimeline, RecordAges, read_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.lag.measure import GroupLag, PartitionLag
    from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

POINTS: Final = 30
"""Rounds whose lag is kept of each group."""

_RATE_ROUNDS: Final = 6
"""Rates are of so many rounds, so that a batch job's commits do not make them jump."""


class Watcher:
    """Reads its groups once a round.  ``poll`` is for one thread, all else for any."""

    def __init__(
        self,
        source: ClusterReader,
        clock: Callable[[], float],
        *,
        min_distance_s: float = 0.0,
        allowed_lag: int = 0,
    ) -> None:
        """``clock`` returns seconds since 1970.

        Burrow's settings: commits closer than ``min_distance_s`` are merged, ``allowed_lag``
        records behind are accepted.
        """
        self._source = source
        self._clock = clock
        self._new_watch = partial(_PartitionWatch, min_distance_s, allowed_lag)
        self._groups: dict[str, dict[TopicPartition, _PartitionWatch]] = {}
        self.view: Mapping[str, GroupLag] = {}
        """The groups that exist, as of the last round; those that could not be read have an error
        and all else of before."""
        self.ages = RecordAges(source)
        """The ages of the first uncommitted records, by the ends of the logs in all rounds."""

    def poll(
        self, groups: Iterable[str], commits: Iterable[CommitRecord] | None = None
    ) -> Mapping[str, GroupLag]:
        """Read ``groups``, forget all others, and return the new view.

        ``commits`` are all commits since the last round, in their order.  Where they are not
        known, an offset that differs from that of the last round counts as a commit; one that was
        committed again unchanged is not seen then.
        """
        kept = {where for watches in self._groups.values() for where in watches}
        read, logs = read_groups(self._source, groups, kept)  # kept while a group has an error
        now_s = self._clock()
        self._take_logs(logs, now_s)
        for key, offset, _, at_s in commits or ():
            where = key.topic_partition
            watch = self._groups.get(key.group, {}).get(where)
            if watch is not None and offset is not None:
                watch.add(offset, at_s, now_s, self.ages.timelines[where].points[-1].offset)
        view: dict[str, GroupLag] = {}
        for found in self.ages.fill(read.values(), now_s, is_round=True):
            before = self.view.get(found.name, found._replace(partitions=()))
            if found.error is not None:
                view[found.name] = _unread(before, found.error)
            elif found.exists:
                points = (*before.lag_points, found.total)[-POINTS:]
                seen = self._watched(found, now_s, logged=commits is not None)
                view[found.name] = seen._replace(lag_points=points)
        for name in self._groups.keys() - view.keys():
            del self._groups[name]
        self.view = view
        return view

    def fail(self, error: OffsetManagerError) -> None:
        """Mark all groups as not read in the last round, which has failed."""
        self.view = {name: _unread(group, error) for name, group in self.view.items()}

    def _take_logs(
        self, logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError], now_s: float
    ) -> None:
        timelines = {where: self.ages.timelines.get(where, LogTimeline()) for where in logs}
        for where, log in logs.items():
            if not isinstance(log, OffsetManagerError):
                timelines[where] = timelines[where].with_end(log.high_watermark, now_s)
        self.ages.timelines = {where: each for where, each in timelines.items() if each.points}

    def _watched(self, found: GroupLag, now_s: float, *, logged: bool) -> GroupLag:
        before = self._groups.get(found.name, {})
        watches = self._groups[found.name] = {}
        partitions = []
        for each in found.partitions:
            where = each.partition
            seen = each._replace(status=Status.OK)
            if each.committed is not None and where in self.ages.timelines:
                watch = watches[where] = before.get(where) or self._new_watch()
                if each.end is not None:
                    seen = watch.seen(each, each.committed, each.end, now_s, logged=logged)
            partitions.append(seen)
        status = group_status(each.status or Status.OK for each in partitions)
        return found._replace(partitions=tuple(partitions), status=status)


def _unread(group: GroupLag, error: OffsetManagerError) -> GroupLag:
    return group._replace(error=error, lag_points=(*group.lag_points, None)[-POINTS:])


class _Sample(NamedTuple):
    """The offsets of one round."""

    at_s: float
    end: int
    committed: int


class _PartitionWatch:
    """The last commits of one partition by one group, and its offsets in the last rounds."""

    def __init__(self, min_distance_s: float, allowed_lag: int) -> None:
        self._min_distance_ms = min_distance_s * 1_000
        self._allowed_lag = allowed_lag
        self._commits: deque[ObservedCommit] = deque(maxlen=INTERVALS)
        self._newest: OffsetAndMetadata | None = None
        self._unlogged: ObservedCommit | None = None
        """The newest known commit, if the log of commits has not shown what followed it."""
        self._samples: deque[_Sample] = deque(maxlen=INTERVALS + 1)

    def add(self, offset: int, at_s: float, now_s: float, end: int) -> None:
        """Take in a commit; one that is older than the newest is left out.

        One that is much older begins a new window: the clock of a broker was set back.
        """
        at_ms, commits = int(at_s * 1_000), self._commits
        if commits and at_ms < commits[-1].timestamp_ms - CLOSE_S * 1_000:
            commits.clear()
        if commits and at_ms < commits[-1].timestamp_ms:
            return
        if commits and at_ms - commits[-1].timestamp_ms < self._min_distance_ms:
            # With the new time, frequent commits would be merged into one forever.
            at_ms = commits.pop().timestamp_ms
        commits.append(ObservedCommit(offset, at_ms, int(now_s * 1_000), max(end - offset, 0)))

    def seen(
        self,
        found: PartitionLag,
        committed: OffsetAndMetadata,
        end: int,
        now_s: float,
        *,
        logged: bool,
    ) -> PartitionLag:
        """Take in what a round has read, and return it with its status and rates."""
        if self._samples and now_s < self._samples[-1].at_s:  # the clock was set back
            self._samples.clear()
            self._commits.clear()
            self._newest = None
        last = self._commits[-1] if self._commits else None
        # An open transaction, of whatever group, hides what the log has behind its start.
        is_hidden = last is not None and last is self._unlogged
        if committed != self._newest and (last is None or is_hidden or not logged):
            self.add(committed.offset, now_s, now_s, end)
        self._newest = committed
        if is_hidden or (last is not None and committed.offset != last.offset):
            self._unlogged = self._commits[-1]
        self._samples.append(_Sample(now_s, end, committed.offset))
        commits, status = tuple(self._commits), Status.OK
        if found.out_of_range:
            status = Status.OUT_OF_RANGE
        # Of one that was first seen just now it is not known how long it has stood there.
        elif len(commits) == INTERVALS or len(self._samples) > INTERVALS:
            lag, ends = found.lag or 0, [each.end for each in self._samples][-INTERVALS:]
            status = partition_status(commits, ends, lag, now_s, self._allowed_lag)
        rate_in, rate_out = _rates(self._samples)
        return found._replace(status=status, commits=commits, rate_in=rate_in, rate_out=rate_out)


def _rates(samples: deque[_Sample]) -> tuple[float | None, float | None]:
    """Return records written and committed a second; never below 0."""
    recent = list(samples)[-_RATE_ROUNDS:]
    first, last = recent[0], recent[-1]
    elapsed_s = last.at_s - first.at_s
    if elapsed_s <= 0:
        return None, None
    written, read = last.end - first.end, last.committed - first.committed
    return max(written, 0) / elapsed_s, max(read, 0) / elapsed_s
