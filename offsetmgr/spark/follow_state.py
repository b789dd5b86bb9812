"""Decides when a followed checkpoint is read, what is asked for, and what follows; pure.

Spark numbers its batches, so the next one is asked for by its name, which is cheap everywhere.  A
list is asked for at the first look, and where names are not enough: a query that tracks its
progress asynchronously skips numbers, and Spark removes the oldest hundred.  Whether that is so is
found out by lists, a minute after the last batch and then ever less often; once a gap was found,
the checkpoint is listed at each look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from offsetmgr.spark.checkpoint import Batch, Checkpoint

QUIET_INTERVALS: Final = 6
"""A query without a batch for ``keep_alive_s`` is looked at this many times less often."""

MOST_NAMES: Final = 10
"""Batches that are asked for by name in one look; if all are there, a list finds the newest."""

LATE_INTERVALS: Final = 3
"""After a longer pause between two looks a list is asked for."""

LEAST_LIST_S: Final = 60.0
"""Pause after a batch before a list looks for a gap; then the pauses double."""

LIST_S: Final = 600.0
"""Longest pause between the lists that look for a gap."""

LONGEST_FAILURE_S: Final = 60.0
"""Longest pause after failures in a row."""


class Seen(NamedTuple):
    """A checkpoint as of one look."""

    query_id: str = ""
    batch: Batch | None = None
    """The newest finished batch; None if there is none yet."""

    @property
    def batch_id(self) -> int:
        return -1 if self.batch is None else self.batch.batch_id


class FollowedCheckpoint:
    """A checkpoint that is looked at again and again.  All times are of one clock, in seconds."""

    def __init__(
        self, interval_s: float, keep_alive_s: float, now_s: float, rng: Random, run: int = 0
    ) -> None:
        """``run`` is that of the last checkpoint in this place, which was removed."""
        self.seen = Seen()
        self.due_s = now_s
        """The next look."""
        self.run = run
        """Counts up when the query may go back."""
        self.is_running = False
        """True while the query commits batches."""
        self.is_gapped = False
        self._changed_s = now_s
        self._is_replaced = True
        """Another query, or one whose batches were all removed: no batch of it was seen yet."""
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s
        self._looked_s = now_s
        self._list_s = now_s
        self._rng = rng
        self._backoff = Backoff(interval_s, max(LONGEST_FAILURE_S, interval_s), rng)

    def look(self, checkpoint: Checkpoint, now: Callable[[], float]) -> bool:
        """Return True if there is a batch to commit.  Raises InvalidValueError, OSError."""
        is_late = self._is_late(now())
        # Before the batches: if the checkpoint is replaced meanwhile, its batches are taken for
        # those of the old query, which do not put the group ahead.
        query_id, known = checkpoint.query_id(), self.seen
        is_other = query_id != known.query_id
        if is_other:
            known, self._is_replaced, self.is_gapped = Seen(), True, False
        is_listed = is_other or is_late or self.is_gapped
        newest, most = known.batch_id, known.batch_id + MOST_NAMES
        while not is_listed and newest < most and checkpoint.is_finished(newest + 1):
            newest += 1
        has_next, batch = newest > known.batch_id, known.batch
        is_listed |= newest == most or (not has_next and now() >= self._list_s)
        if has_next and not is_listed:
            batch = checkpoint.batch(newest)
            # In a checkpoint that was replaced meanwhile, it may be a batch that has begun.
            is_listed = not checkpoint.is_finished(newest)
        if is_listed:
            # After batches were removed, a known number may be that of another batch.
            batch = checkpoint.last_finished()
        now_s = now()
        is_late |= self._is_late(now_s)
        self.seen, self._looked_s = Seen(query_id, batch), now_s
        self._backoff.succeeded()
        is_emptied = batch is None and known.batch is not None
        self._is_replaced |= is_emptied
        is_news = batch is not None and batch != known.batch
        goes_on = self.seen.batch_id > known.batch_id
        is_gap = is_listed and is_news and goes_on and not has_next
        self.is_gapped |= is_gap and not (is_other or is_late)
        if is_news:
            if self._is_replaced or not goes_on or not self.is_running:
                self.run += 1
            self.is_running, self._is_replaced, self._changed_s = True, False, now_s
        if is_other or is_emptied:
            self._list_s = now_s  # at the next look that finds nothing by name
        elif is_listed or is_news:
            idle_s = now_s - self._changed_s
            self._list_s = now_s + min(max(idle_s, LEAST_LIST_S), LIST_S)
        self.due_s = now_s + self._pause_s(now_s) * self._rng.uniform(0.9, 1.0)
        return is_news

    def failed(self, now_s: float) -> None:
        """Take in a look that failed; files that come back may be those of a backup."""
        self._list_s = now_s
        self._looked_s, self.due_s = now_s, now_s + self._backoff.failed()

    def ends(self, now_s: float) -> bool:
        """Return True, once, when the query has committed no batch for ``keep_alive_s``."""
        if not self.is_running or now_s - self._changed_s < self._keep_alive_s:
            return False
        self.is_running = False
        return True

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._looked_s > LATE_INTERVALS * self._pause_s(now_s)

    def _pause_s(self, now_s: float) -> float:
        is_quiet = now_s - self._changed_s >= self._keep_alive_s
        return self._interval_s * (QUIET_INTERVALS if is_quiet else 1)
