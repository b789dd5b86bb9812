"""Back-off after errors: exponential, with jitter, bounded."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

    from offsetmgr.config import CommitSettings

_DOUBLINGS: Final = 16
"""Past this many the cap has long been reached; bounds the exponent."""


class Retry:
    """How often something failed in a row, and when it may be tried again."""

    attempts: int = 0
    not_before: float = -inf

    def forgive(self) -> None:
        """Let it be tried at once."""
        self.attempts, self.not_before = 0, -inf


class Backoff:
    """Decides how long to wait; one for all requests of a group."""

    def __init__(self, settings: CommitSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng

    def pace(self, retry: Retry, now: float, *, failed: bool) -> None:
        """Forgive after a success; after an error wait between half and the whole of the pause."""
        if not failed:
            retry.forgive()
            return
        doubled = self._settings.retry_backoff_s * 2 ** min(retry.attempts, _DOUBLINGS)
        pause = min(self._settings.retry_backoff_max_s, doubled)
        retry.attempts += 1
        retry.not_before = now + pause * (0.5 + self._rng.random() / 2)
