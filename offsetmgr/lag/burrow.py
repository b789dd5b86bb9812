"""Burrow's rules, which judge a consumer by the last commits of a partition.

The rules are those of ``evaluator/caching.go`` of Burrow (github.com/linkedin/Burrow).
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INTERVALS: Final = 10
"""Commits, and ends of the log, that are kept of each partition."""


class Status(IntEnum):
    """Burrow's codes, from good to bad, and one of our own."""

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
    OUT_OF_RANGE = 7
    """The committed offset lies outside its log.  Burrow, which does not have it, would say ERR."""

    @property
    def text(self) -> str:
        """The status as people read it."""
        return self.name.replace("_", " ")


class ObservedCommit(NamedTuple):
    """One of the last commits of a partition."""

    offset: int
    timestamp_ms: int
    """When it was committed; of merged commits, the first."""
    observed_ms: int
    """When it was seen here."""
    lag: int | None
    """Records behind when it was committed; None where the end of the log was not known."""


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
    worst = max(partitions, default=Status.OK)
    return worst if worst is Status.OUT_OF_RANGE else min(worst, Status.ERR)


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
