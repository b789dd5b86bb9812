"""Decides when a followed checkpoint is read, what is asked for, and what follows; pure.

Spark numbers its batches, so the next one is asked for by its name, which is cheap everywhere.  A
list is asked for at the first look, and where names are not enough: a query that tracks its
progress asynchronously skips numbers, and Spark removes the oldest hundred.  Whether that is so is
found out by a list now and then; once a gap was found, the checkpoint is listed at each look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from offsetmgr.spark.checkpoint import Checkpoint, FinishedBatch

QUIET_INTERVALS: Final = 6
"""A query without a batch for ``keep_alive_s`` is looked at this many times less often."""

LATE_INTERVALS: Final = 3
"""After a longer pause between two looks a list is asked for."""

FIRST_LIST_S: Final = 60.0
LONGEST_LIST_S: Final = 600.0
"""Pauses between the lists that look for a gap; each is twice as long as the one before."""

LONGEST_FAILURE_S: Final = 60.0
"""Longest pause after failures in a row."""


class Seen(NamedTuple):
    """A checkpoint as of one look."""

    query_id: str
    batch: FinishedBatch | None
    """The newest finished batch; None if there is none yet."""
    at_s: float | None = None
    """When Spark planned the batch, in seconds since 1970; None if not known."""
    was_listed: bool = False


def look(checkpoint: Checkpoint, before: Seen | None, *, lists: bool, is_gapped: bool) -> Seen:
    """Read a checkpoint that was as ``before``, if it was looked at.

    With ``lists`` it is listed if asking by names finds nothing new, with ``is_gapped`` at once.
    Raises InvalidValueError, OSError.
    """
    # Before the batches: if the checkpoint is replaced meanwhile, its batches are taken for those
    # of the old query, which do not put the group ahead.
    query_id = checkpoint.query_id()
    if before is None or before.query_id != query_id or is_gapped:
        return _listed(checkpoint, query_id)
    known = -1 if before.batch is None else before.batch.batch_id
    newest = newest_by_name(checkpoint.is_finished, known)
    if newest > known:
        return Seen(query_id, *checkpoint.timed_batch(newest))
    return _listed(checkpoint, query_id) if lists else before._replace(was_listed=False)


def _listed(checkpoint: Checkpoint, query_id: str) -> Seen:
    newest = checkpoint.newest_finished()
    if newest is None:
        return Seen(query_id, None, was_listed=True)
    # Also where the number is known: after batches were removed, it may be that of another batch.
    return Seen(query_id, *checkpoint.timed_batch(newest), was_listed=True)


def newest_by_name(is_finished: Callable[[int], bool], known: int) -> int:
    """Return the newest finished batch from ``known`` on, in about 2 log2(n) questions.

    Where numbers are missing it may be an older one, but always a finished one.
    """
    step = 1
    while is_finished(known + step):
        known, step = known + step, step * 2
    missing = known + step
    while missing - known > 1:
        middle = (known + missing) // 2
        if is_finished(middle):
            known = middle
        else:
            missing = middle
    return known


class FollowedCheckpoint:
    """A checkpoint that is looked at again and again.  All times are of one clock, in seconds."""

    def __init__(self, interval_s: float, keep_alive_s: float, now_s: float, rng: Random) -> None:
        self.seen: Seen | None = None
        self.due_s = now_s
        """The next look."""
        self.run = 0
        """Counts up when the query may go back."""
        self.is_running = False
        """True while the query commits batches."""
        self.changed_s = now_s
        """The last news."""
        self.is_gapped = False
        self._is_replaced = True
        """Another query, of which no batch was seen yet."""
        self._interval_s = interval_s
        self._keep_alive_s = keep_alive_s
        self._looked_s = now_s
        self._list_s = now_s
        self._list_pause_s = FIRST_LIST_S
        self._rng = rng
        self._backoff = Backoff(interval_s, max(LONGEST_FAILURE_S, interval_s), rng)

    def lists(self, now_s: float) -> bool:
        """Return True if a look that finds nothing by name is to ask for a list."""
        is_late = now_s - self._looked_s > LATE_INTERVALS * self._pause_s(now_s)
        return is_late or now_s >= self._list_s

    def saw(self, seen: Seen, now_s: float) -> bool:
        """Take in a look; return True if there is a batch to commit."""
        before, was_late = self.seen, now_s - self._looked_s > LATE_INTERVALS * self._pause_s(now_s)
        self.seen, self._looked_s = seen, now_s
        self._backoff.succeeded()
        is_other = before is None or before.query_id != seen.query_id
        known = None if is_other or before is None else before.batch
        is_news = seen.batch is not None and seen.batch != known
        old, new = (-1 if each is None else each.batch_id for each in (known, seen.batch))
        if is_other:
            self._is_replaced, self.is_gapped = True, False
            # A list at the first look that finds nothing new, and then less and less often.
            self._list_s, self._list_pause_s = now_s, FIRST_LIST_S
        elif seen.was_listed:
            self.is_gapped |= is_news and new > old and not was_late
            self._list_s = now_s + self._list_pause_s
            self._list_pause_s = min(2 * self._list_pause_s, LONGEST_LIST_S)
        if is_news:
            if self._is_replaced or new <= old or not self.is_running:
                self.run += 1
            self.is_running, self._is_replaced, self.changed_s = True, False, now_s
        self.due_s = now_s + self._pause_s(now_s) * self._rng.uniform(0.9, 1.0)
        return is_news

    def failed(self, now_s: float) -> None:
        """Take in a look that failed; files that come back may be those of a backup."""
        self._list_s = now_s
        self._looked_s, self.due_s = now_s, now_s + self._backoff.failed()

    def ends(self, now_s: float) -> bool:
        """Return True, once, when the query has committed no batch for ``keep_alive_s``."""
        if not self.is_running or now_s - self.changed_s < self._keep_alive_s:
            return False
        self.is_running = False
        return True

    def _pause_s(self, now_s: float) -> float:
        is_quiet = now_s - self.changed_s >= self._keep_alive_s
        return self._interval_s * (QUIET_INTERVALS if is_quiet else 1)
