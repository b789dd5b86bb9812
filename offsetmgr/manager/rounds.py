"""When all that stands is looked at, lest somebody else has changed it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from offsetmgr.manager.requests import BATCH_LIMIT

if TYPE_CHECKING:
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.manager.ledger import Ledger
    from offsetmgr.types import TopicPartition


class Rounds:
    """A round reads every partition once, in as few requests as can carry them.

    What somebody else commits stands until the next commit from here.  So a round that is due waits
    for the next commit that is due, at most an interval, and is read before it.
    """

    def __init__(self, settings: CommitSettings, rng: Random, ledger: Ledger) -> None:
        self._settings = settings
        self._rng = rng
        self._ledger = ledger
        self._due_at = inf
        self._left: list[TopicPartition] = []

    def begin(self, now: float) -> None:
        """There is somebody to work for; many groups that begin together do not read together."""
        if self._due_at == inf and self._settings.verify_interval_s:
            interval_s = self._settings.verify_interval_s
            self._due_at = now + interval_s * (0.5 + self._rng.random() / 2)

    def end(self) -> None:
        """Nobody is left."""
        self._due_at = inf
        self._left = []

    def is_near(self, now: float) -> bool:
        """Whether to read now, as soon as the next commit is due at least."""
        return bool(self._left) or now >= self._due_at

    def at(self, commit_at: float) -> float:
        """When to read, where the next commit is due at ``commit_at``; ``inf`` for never."""
        if self._left:
            return -inf
        return max(self._due_at, min(commit_at, self._due_at + self._settings.commit_interval_s))

    def take(self, now: float) -> list[TopicPartition]:
        """What to read now."""
        if not self._left:
            self._left = self._ledger.kept_partitions()
            self._due_at = now + self._settings.verify_interval_s
        taken = self._left[-BATCH_LIMIT:]
        del self._left[-BATCH_LIMIT:]
        return taken
