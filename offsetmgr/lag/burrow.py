"""Burrow's rules, which judge a consumer by the last commits of a partition, and its HTTP answers.

Burrow (github.com/linkedin/Burrow) keeps the last commits of each partition and judges them
whenever it is asked.  The rules here are those of its ``evaluator/caching.go``, the window is
that of its ``storage/inmemory.go``, and the paths and the JSON of ``/v3/kafka`` are those of its
``core/internal/httpserver``, so that what reads Burrow reads this.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.lag.watcher import WatchedGroup, WatchedPartition

INTERVALS: Final = 10
"""Commits, and ends of the log, that are kept of each partition."""

_NO_CLUSTER: Final = "cluster not found"


class Status(IntEnum):
    """Burrow's codes, from good to bad."""

    NOTFOUND = 0
    """There is no such group; of groups alone."""
    OK = 1
    WARN = 2
    """It makes progress and falls further behind."""
    ERR = 3
    """A partition is in one of the states below; of groups alone."""
    STOP = 4
    """Nothing has been committed for some time although records wait."""
    STALL = 5
    """The same offset is committed again and again although records wait."""
    REWIND = 6
    """The committed offset went back, and is not yet where it was."""


class ObservedCommit(NamedTuple):
    """A commit as the window keeps it."""

    offset: int
    timestamp_ms: int
    """When it was committed; of merged commits, the first."""
    observed_ms: int
    """When it was seen here."""
    lag: int | None
    """Records behind when it was committed; None where the end of the log was not known."""


class CommitWindow:
    """The last commits of one partition, oldest first."""

    def __init__(self, min_distance_s: float = 0.0) -> None:
        """Commits closer than ``min_distance_s`` are merged into one."""
        self.commits: deque[ObservedCommit] = deque(maxlen=INTERVALS)
        self._min_distance_ms = min_distance_s * 1000

    def add(self, commit: ObservedCommit) -> None:
        """Take in the newest commit."""
        if self.commits:
            last = self.commits[-1]
            if commit.timestamp_ms - last.timestamp_ms < self._min_distance_ms:
                # With the new time, frequent commits would be merged into one for ever.
                self.commits[-1] = commit._replace(timestamp_ms=last.timestamp_ms)
                return
        self.commits.append(commit)

    @property
    def complete(self) -> float:
        """The filled share of the window, from 0 to 1."""
        return len(self.commits) / INTERVALS


def partition_status(
    commits: Sequence[ObservedCommit],
    log_ends: Iterable[int],
    current_lag: int,
    now_s: float,
    allowed_lag: int = 0,
) -> Status:
    """Return OK, WARN, STOP, STALL or REWIND.

    ``commits`` and ``log_ends`` are the last ones, oldest first; ``current_lag`` is from the last
    commit to the last end.
    """
    if not commits or current_lag <= allowed_lag:
        return Status.OK
    if _stopped(commits, now_s) and all(end > commits[-1].offset for end in log_ends):
        return Status.STOP
    if _rewound(commits):
        return Status.REWIND
    lags = [commit.lag for commit in commits if commit.lag is not None]
    if any(lag <= allowed_lag for lag in lags):
        return Status.OK
    if all(commit.offset == commits[0].offset for commit in commits):
        return Status.STALL
    falls = any(later < earlier for earlier, later in pairwise(lags))
    return Status.OK if falls else Status.WARN


def group_status(partitions: Iterable[Status]) -> Status:
    """Return the worst status; STOP, STALL and REWIND show as ERR."""
    return min(max(partitions, default=Status.OK), Status.ERR)


def _stopped(commits: Sequence[ObservedCommit], now_s: float) -> bool:
    """True if nothing was committed for longer than the window covers."""
    first_ms, last_ms = commits[0].timestamp_ms, commits[-1].timestamp_ms
    # In whole seconds, as Burrow's clock.
    return int(now_s) * 1000 - last_ms > last_ms - first_ms


def _rewound(commits: Sequence[ObservedCommit]) -> bool:
    """True if the first fall of the offset has not been made good."""
    for index, (earlier, later) in enumerate(pairwise(commits), start=1):
        if later.offset < earlier.offset:
            since = [commit.offset for commit in commits][index:]
            return max(since) < earlier.offset
    return False


class BurrowApi:
    """Answers of one cluster's watched groups.

    Each is the values of a JSON object without its ``request``, or a text for what is not found.
    """

    def __init__(self, cluster: str, view: Mapping[str, WatchedGroup]) -> None:
        self._cluster = cluster
        self._view = view

    def clusters(self) -> dict[str, Any] | str:
        """Of ``/v3/kafka``."""
        return {"message": "cluster list returned", "clusters": [self._cluster]}

    def consumers(self, cluster: str) -> dict[str, Any] | str:
        """Of ``.../consumer``."""
        if cluster != self._cluster:
            return _NO_CLUSTER
        return {"message": "consumer list returned", "consumers": sorted(self._view)}

    def consumer(self, cluster: str, consumer: str) -> dict[str, Any] | str:
        """Of ``.../consumer/GROUP``: the windows of its partitions that exist."""
        group = self._group(cluster, consumer)
        if group is None:
            return "cluster or consumer not found"
        # The place in the list is the number of the partition.  A partition that does not exist may
        # be committed as well: 1,000,000 of a topic must not make a list of a million windows.
        counts = Counter(each.now.partition.topic for each in group.partitions)
        logs = (each.now.partition for each in group.partitions if each.now.end is not None)
        for topic, number in logs:
            counts[topic] = max(counts[topic], number + 1)
        topics: dict[str, list[dict[str, Any]]] = {}
        for each in group.partitions:
            topic, number = each.now.partition
            if number < counts[topic]:
                windows = topics.setdefault(topic, [])
                windows += [_window(None) for _ in range(number - len(windows))]
                windows.append(_window(each))
        return {"message": "consumer detail returned", "topics": topics}

    def status(self, cluster: str, consumer: str) -> dict[str, Any]:
        """Of ``.../status``: a group that may not exist, with its bad partitions."""
        found = self.full_status(cluster, consumer)
        partitions = found["status"]["partitions"]
        bad = [each for each in partitions if each["status"] != Status.OK.name]
        found["status"]["partitions"] = bad
        return found

    def full_status(self, cluster: str, consumer: str) -> dict[str, Any]:
        """Of ``.../lag``: the same with all partitions."""
        group = self._group(cluster, consumer)
        status = {
            "cluster": cluster,
            "group": consumer,
            "status": Status.NOTFOUND.name,
            "complete": 1.0,
            "partitions": [],
            "partition_count": 0,
            "maxlag": None,
            "totallag": 0,
        }
        if group is not None:
            partitions = [_partition(each) for each in group.partitions]
            full = sum(1 for each in partitions if each["complete"] == 1)
            status |= {
                "status": group.status.name,
                "complete": full / len(partitions) if partitions else 0,
                "partitions": partitions,
                "partition_count": len(partitions),
                "maxlag": max(partitions, key=lambda each: each["current_lag"], default=None),
                "totallag": sum(each["current_lag"] for each in partitions),
            }
        return {"message": "consumer status returned", "status": status}

    def topics(self, cluster: str) -> dict[str, Any] | str:
        """Of ``.../topic``: topics that a watched group reads."""
        if cluster != self._cluster:
            return _NO_CLUSTER
        return {"message": "topic list returned", "topics": sorted(self._ends())}

    def topic(self, cluster: str, topic: str) -> dict[str, Any] | str:
        """Of ``.../topic/TOPIC``: the ends of its logs, by the number of the partition."""
        ends = self._ends().get(topic)
        if cluster != self._cluster or not ends:
            return "cluster or topic not found"
        offsets = [ends.get(number, 0) for number in range(max(ends) + 1)]
        return {"message": "topic offsets returned", "offsets": offsets}

    def _group(self, cluster: str, consumer: str) -> WatchedGroup | None:
        group = self._view.get(consumer) if cluster == self._cluster else None
        return None if group is None or group.status is Status.NOTFOUND else group

    def _ends(self) -> dict[str, dict[int, int]]:
        ends: dict[str, dict[int, int]] = {}
        for group in self._view.values():
            for each in group.now.partitions:
                if each.end is not None:
                    ends.setdefault(each.partition.topic, {})[each.partition.partition] = each.end
        return ends


def _partition(each: WatchedPartition) -> dict[str, Any]:
    member, commits = each.now.member, each.commits
    return {
        "topic": each.now.partition.topic,
        "partition": each.now.partition.partition,
        "owner": member.host if member else "",
        "client_id": member.client_id if member else "",
        "status": each.status.name,
        "start": _commit(commits[0]) if commits else None,
        "end": _commit(commits[-1]) if commits else None,
        "current_lag": each.now.lag or 0,
        "complete": each.complete,
    }


def _window(each: WatchedPartition | None) -> dict[str, Any]:
    member = each.now.member if each else None
    offsets: list[dict[str, Any] | None] = []
    if each is not None and each.commits:
        offsets = [None] * (INTERVALS - len(each.commits)) + [_commit(c) for c in each.commits]
    return {
        "offsets": offsets,
        "owner": member.host if member else "",
        "client_id": member.client_id if member else "",
        "current-lag": (each.now.lag or 0) if each else 0,
    }


def _commit(commit: ObservedCommit) -> dict[str, Any]:
    return {
        "offset": commit.offset,
        "timestamp": commit.timestamp_ms,
        "observedAt": commit.observed_ms,
        "lag": commit.lag,
    }
