"""How long a caller is willing to wait, counted down over every step of what it asked for."""

from __future__ import annotations

import time
from typing import Final

from offsetmgr.types import check_timeout

LONGEST_WAIT_S: Final = 60.0
"""Longest single wait inside a longer one; threading takes no endless number."""


class Deadline:
    """A point in time by which a call answers; with `forever`, None stands for none.

    Raises:
        InvalidValueError: the seconds are not a number from 0 up.

    """

    __slots__ = ("_at", "timeout")

    def __init__(self, timeout: float | None, *, forever: bool = False) -> None:
        self._at = time.monotonic() + check_timeout(timeout, forever=forever)
        self.timeout = timeout

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when it is over; infinite where the caller waits for ever."""
        return max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        """True if nothing is left."""
        return self.left_s <= 0

    def within_s(self, longest_s: float = LONGEST_WAIT_S) -> float:
        """What is left, but at most `longest_s`."""
        return min(self.left_s, longest_s)

    def for_service_s(self) -> float:
        """What to grant the service, so that its answer is back here before the deadline."""
        left_s = self.within_s()
        return max(0.001, left_s - min(0.25, left_s / 5))
