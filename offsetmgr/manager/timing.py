"""The times of all steps, from the settings; with the jitter of back-offs."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from offsetmgr.backoff import pause_s

if TYPE_CHECKING:
    from random import Random

    from offsetmgr.config import CommitSettings

LANDING_TIMEOUTS: Final = 2
"""Request time-outs between a coordinator's first answer and the verification of commits in doubt:
by then nearly all that it still held have landed."""

STOPPED_TIMEOUTS: Final = 12
"""The same for a stopped manager, of which only one verification follows.  Later than that, a
difference is more likely an operator's reset of the group."""

RECOMMIT_SOON_S: Final = 60.0
"""Delay until an offset found at the start is committed again: its age is unknown, so it may be
about to expire."""


class Timing:
    """The times of all steps, from the settings; with the jitter of back-offs."""

    def __init__(self, settings: CommitSettings, rng: Random) -> None:
        self.commit_interval_s = settings.commit_interval_s
        self.verify_interval_s = settings.verify_interval_s
        self.request_timeout_s = settings.request_timeout_s
        self.landing_s = LANDING_TIMEOUTS * settings.request_timeout_s
        self.stopped_s = STOPPED_TIMEOUTS * settings.request_timeout_s
        self.recommit_s = settings.recommit_interval_s or inf
        self.recommit_soon_s = min(RECOMMIT_SOON_S, settings.recommit_interval_s) or inf
        self.backoff_max_s = settings.retry_backoff_max_s
        self.rng = rng
        self._backoff_s = settings.retry_backoff_s

    def backoff_s(self, failures: int) -> float:
        """Return the pause after ``failures`` in a row."""
        return pause_s(failures, self._backoff_s, self.backoff_max_s, self.rng)
