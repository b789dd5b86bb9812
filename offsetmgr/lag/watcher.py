"""Watches groups: their lag, rates and Burrow's status, from one round of reads to the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import OffsetManagerError
from offsetmgr.lag.ages import CLOSE_S, LogTimeline, RecordAges
from offsetmgr.lag.burrow import (
    INTERVALS,
    CommitWindow,
    ObservedCommit,
    Status,
    group_status,
    partition_status,
)
from offsetmgr.lag.measure import GroupLag, PartitionLag, read_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.lag.store_reader import StoreReader
    from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

POINTS: Final = 30
"""Rounds whose lag is kept of each group."""

_RATE_ROUNDS: Final = 6
"""Rates are of so many rounds, so that a batch job's commits do not make them jump."""


class WatchedPartition(NamedTuple):
    """A partition of a watched group after the last round."""

    now: PartitionLag
    status: Status
    complete: float
    """The filled share of the window of commits, from 0 to 1."""
    commits: tuple[ObservedCommit, ...]
    """The window, oldest first."""
    rate_in: float | None = None
    """Records written a second; None after a single round."""
    rate_out: float | None = None
    """Records committed a second."""

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until the lag is gone at these rates; None where it does not shrink."""
        lag, arriving, leaving = self.now.lag, self.rate_in, self.rate_out
        if lag == 0:
            return 0.0
        if lag is None or arriving is None or leaving is None or leaving <= arriving:
            return None
        return lag / (leaving - arriving)


class WatchedGroup(NamedTuple):
    """A watched group after the last round in which it could be read."""

    now: GroupLag
    status: Status
    partitions: tuple[WatchedPartition, ...]
    error: OffsetManagerError | None = None
    """Why it could not be read in the last round; all else is then of before."""
    lag_points: tuple[int | None, ...] = ()
    """Its lag in the last rounds, oldest first; None where it was not known."""


class Watcher:
    """Reads its groups once a round.  ``poll`` is for one thread, all else for any."""

    def __init__(
        self,
        source: ClusterReader | StoreReader,
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
        self._min_distance_s = min_distance_s
        self._allowed_lag = allowed_lag
        self._groups: dict[str, dict[TopicPartition, _PartitionWatch]] = {}
        self._logs: dict[TopicPartition, _LogWatch] = {}
        self.view: Mapping[str, WatchedGroup] = {}
        """The groups that exist, as of the last round."""
        self.ages = RecordAges(source)
        """The ages of the first uncommitted records, by the ends of the logs in all rounds."""

    def poll(
        self, groups: Iterable[str], commits: Iterable[CommitRecord] | None = None
    ) -> Mapping[str, WatchedGroup]:
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
            watch = self._groups.get(key.group, {}).get(key.topic_partition)
            if watch is not None and offset is not None:
                watch.add(offset, int(at_s * 1000), int(now_s * 1000))
        view: dict[str, WatchedGroup] = {}
        for found in self.ages.fill(read.values(), now_s, is_round=True):
            if found.error is not None:
                before = self.view.get(found.name) or WatchedGroup(found, Status.NOTFOUND, ())
                view[found.name] = _unread(before, found.error)
            elif found.exists:
                seen = self._watched(found, now_s, logged=commits is not None)
                known = self.view[found.name].lag_points if found.name in self.view else ()
                view[found.name] = seen._replace(lag_points=(*known, found.total)[-POINTS:])
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
        for where, log in logs.items():
            if not isinstance(log, OffsetManagerError):
                self._logs.setdefault(where, _LogWatch()).add(log.high_watermark, now_s)
        for where in self._logs.keys() - logs.keys():
            del self._logs[where]
        self.ages.timelines = {where: log.timeline for where, log in self._logs.items()}

    def _watched(self, found: GroupLag, now_s: float, *, logged: bool) -> WatchedGroup:
        before = self._groups.get(found.name, {})
        watches = self._groups[found.name] = {}
        partitions = []
        for each in found.partitions:
            where = each.partition
            watched = WatchedPartition(each, Status.OK, 0.0, ())
            if each.committed is not None and where in self._logs:
                watch = before.get(where) or _PartitionWatch(
                    CommitWindow(self._min_distance_s), self._allowed_lag, self._logs[where]
                )
                watches[where] = watch
                if each.end is not None:
                    watched = watch.seen(each, each.committed, each.end, now_s, logged=logged)
            partitions.append(watched)
        now = found._replace(partitions=tuple(each.now for each in partitions))
        status = group_status(each.status for each in partitions)
        return WatchedGroup(now, status, tuple(partitions))


def _unread(group: WatchedGroup, error: OffsetManagerError) -> WatchedGroup:
    return group._replace(error=error, lag_points=(*group.lag_points, None)[-POINTS:])


class _LogWatch:
    """The last ends of one log."""

    def __init__(self) -> None:
        self.ends: deque[int] = deque(maxlen=INTERVALS)
        self.timeline = LogTimeline()

    def add(self, end: int, now_s: float) -> None:
        if self.ends and end < self.ends[-1]:  # the topic was recreated
            self.ends.clear()
        self.ends.append(end)
        self.timeline = self.timeline.with_end(end, now_s)


class _Sample(NamedTuple):
    """The offsets of one round."""

    at_s: float
    end: int
    committed: int


class _PartitionWatch:
    """The commits of one partition by one group."""

    def __init__(self, window: CommitWindow, allowed_lag: int, log: _LogWatch) -> None:
        self._window = window
        self._allowed_lag = allowed_lag
        self._log = log
        self._newest: OffsetAndMetadata | None = None
        self._samples: deque[_Sample] = deque(maxlen=_RATE_ROUNDS)
        self._rounds = 0

    def add(self, offset: int, timestamp_ms: int, observed_ms: int) -> None:
        """Take in a commit; one that is older than the newest is left out.

        One that is much older begins a new window: the clock of a broker was set back.
        """
        commits = self._window.commits
        if commits and timestamp_ms < commits[-1].timestamp_ms - CLOSE_S * 1_000:
            commits.clear()
        if not commits or timestamp_ms >= commits[-1].timestamp_ms:
            lag = max(self._log.ends[-1] - offset, 0)
            self._window.add(ObservedCommit(offset, timestamp_ms, observed_ms, lag))

    def seen(
        self,
        found: PartitionLag,
        committed: OffsetAndMetadata,
        end: int,
        now_s: float,
        *,
        logged: bool,
    ) -> WatchedPartition:
        """Take in what a round has read, and judge it."""
        if self._samples and now_s < self._samples[-1].at_s:  # the clock was set back
            self._samples.clear()
            self._window.commits.clear()
            self._rounds, self._newest = 0, None
        now_ms = int(now_s * 1000)
        if committed != self._newest and not (logged and self._window.commits):
            self.add(committed.offset, now_ms, now_ms)
        self._newest = committed
        self._rounds += 1
        self._samples.append(_Sample(now_s, end, committed.offset))
        commits, complete = tuple(self._window.commits), self._window.complete
        status = Status.OK
        if found.out_of_range:
            status = Status.OUT_OF_RANGE
        # Of one that was first seen just now it is not known how long it has stood there.
        elif complete == 1 or self._rounds > INTERVALS:
            ends, lag = self._log.ends, found.lag or 0
            status = partition_status(commits, ends, lag, now_s, self._allowed_lag)
        return WatchedPartition(found, status, complete, commits, *_rates(self._samples))


def _rates(samples: deque[_Sample]) -> tuple[float | None, float | None]:
    """Return records written and committed a second; never below 0."""
    first, last = samples[0], samples[-1]
    elapsed_s = last.at_s - first.at_s
    if elapsed_s <= 0:
        return None, None
    written, read = last.end - first.end, last.committed - first.committed
    return max(written, 0) / elapsed_s, max(read, 0) / elapsed_s
