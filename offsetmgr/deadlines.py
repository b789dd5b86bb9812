"""Deadlines of calls that wait; standard library only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from offsetmgr.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_WAIT_S: Final = 60.0
"""Longest wait for one answer, and of a thread that has nothing to do."""

POLL_S: Final = 0.1
"""Pause between two questions whose answer may change at any time."""


class Deadline:
    """A point in time by which a call returns; with ``forever``, None means no limit.

    ``now`` is the clock, in seconds, by default the monotonic one.  Raises InvalidValueError, which
    names ``field``, if ``timeout`` is not a number of seconds from 0 up.
    """

    __slots__ = ("_at_s", "_now", "timeout")

    def __init__(
        self,
        timeout: float | None,
        field: str = "timeout",
        *,
        forever: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        # Looked up here, so that a simulation can replace the module's clock.
        self._now = now or time.monotonic
        self._at_s = self._now() + check_timeout(timeout, field, forever=forever)
        self.timeout = timeout

    @property
    def left_s(self) -> float:
        """Seconds left, 0 when it is over; as many as threads can wait."""
        return min(max(0.0, self._at_s - self._now()), threading.TIMEOUT_MAX)

    @property
    def over(self) -> bool:
        """True once no time is left."""
        return self.left_s <= 0

    def polls(self, pause_s: float = POLL_S) -> Iterator[None]:
        """Yield at once, and after each pause until the deadline is over; for a loop that asks."""
        yield
        while not self.over:
            time.sleep(min(pause_s, self.left_s))
            yield

    def within_s(self, longest_s: float = LONGEST_WAIT_S) -> float:
        """Return the seconds left, at most ``longest_s``; never 0, which a socket cannot wait."""
        return max(0.001, min(self.left_s, longest_s))

    def for_service_s(self) -> float:
        """Return the seconds to grant another process, so that its answer is here in time."""
        left_s = self.within_s()
        return left_s - min(1.0, left_s / 5)


class Latch:
    """A flag to wait for.

    Unlike threading.Event, a signal handler may set it while the frame below waits for it, and may
    raise anywhere: the lock itself is entered, as a condition is entered by Python code, which a
    handler could leave with the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; return True if it is set."""
        with self._lock:
            return self._changed.wait_for(self.is_set, timeout_s)
