"""The clock, and a heap of delayed calls."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from actors.logs import report

if TYPE_CHECKING:
    from collections.abc import Callable

# A thread may sleep at most threading.TIMEOUT_MAX; an hour is far below, and waking costs nothing.
_LONGEST_WAIT_S: Final = 3600.0

_SMALL: Final = 64
"""A heap of fewer entries is not worth rebuilding."""


class Clock(Protocol):
    """The clock of actors and timers."""

    def now(self) -> float:
        """Return the seconds since an arbitrary start; they never go back."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class TimerHandle:
    """A delayed call that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call
        """None once it was made or cancelled."""

    def cancel(self) -> None:
        """Cancel the call.  Twice, or after the call was made, is harmless."""
        self.call = None


class Timers:
    """The heap of delayed calls, without a thread: its owner calls ``fire_due``.

    ``order`` gives simultaneous calls their order; by default it is that in which they were set.
    """

    def __init__(self, clock: Clock, order: Callable[[], float] = float) -> None:
        self._clock = clock
        self._order = order
        self._lock = threading.RLock()
        self._changed: threading.Condition | None = None
        """Notified of a call that is due before all others."""
        self._sequence = itertools.count()
        self._heap: list[tuple[float, float, int, TimerHandle]] = []
        self._full = _SMALL
        self._newest: TimerHandle | None = None
        self._closed = False

    def call_after(self, delay_s: float, call: Callable[[], object]) -> TimerHandle:
        """Call ``call()`` in the timers' thread ``delay_s`` seconds from now; it must not block.

        An exception in it is logged.  Raises ValueError.
        """
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"a timer's delay of {delay_s} s must be 0 or more, and finite")
        due_s = self._clock.now() + delay_s
        handle = TimerHandle(call)
        with self._lock:
            if self._closed:
                return handle
            entry = (due_s, self._order(), next(self._sequence), handle)
            # Before the call is set: a signal handler that raises here may cost a look at the
            # heap too many, but never the one for this call.
            if self._changed is not None and (not self._heap or entry < self._heap[0]):
                self._changed.notify_all()
            self._newest = handle
            heapq.heappush(self._heap, entry)
            if len(self._heap) > self._full:
                self._drop_cancelled()
        return handle

    def next_due_s(self) -> float | None:
        """Return the time of the next call on the clock, or None."""
        with self._lock:
            while self._heap and self._heap[0][3].call is None:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def fire_due(self) -> int:
        """Make the calls that are due, in order, without those they add; return their number."""
        now_s, fired = self._clock.now(), 0
        due: list[TimerHandle] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_s:
                due.append(heapq.heappop(self._heap)[3])
        for handle in due:
            call, handle.call = handle.call, None
            if call is None:
                continue
            fired += 1
            try:
                call()
            except BaseException as error:  # noqa: BLE001 -- the other timers fire all the same
                report("the call %r of a timer failed", call, error=error)
        return fired

    def close(self, timeout_s: float = 0.0) -> bool:
        """Drop all calls, now and later; return True, as no thread is left."""
        del timeout_s  # there is no thread to wait for
        with self._lock:
            self._closed = True
            self._heap.clear()
        return True

    def __len__(self) -> int:
        """Count the entries of the heap, cancelled ones included."""
        return len(self._heap)

    def _drop_cancelled(self) -> None:
        """Rebuild the heap, which has doubled since the last time."""
        newest = self._newest
        left = [entry for entry in self._heap if entry[3].call is not None]
        heapq.heapify(left)
        full = max(_SMALL, 2 * len(left))
        if self._newest is newest:  # else a signal handler has set a timer meanwhile
            self._heap, self._full = left, full


class ThreadTimers(Timers):
    """Timers with a thread of their own, which sleeps until the next one is due."""

    _changed: threading.Condition

    def __init__(self, clock: Clock, *, name: str) -> None:
        super().__init__(clock)
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 0.0) -> bool:
        super().close()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._wait():
            self.fire_due()

    def _wait(self) -> bool:
        """Sleep until a call is due; return False once closed."""
        with self._changed:
            while not self._closed:
                due_s = self.next_due_s()
                wait_s = _LONGEST_WAIT_S if due_s is None else due_s - self._clock.now()
                if wait_s <= 0:
                    return True
                self._changed.wait(min(wait_s, _LONGEST_WAIT_S))
        return False
