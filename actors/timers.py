"""One clock and one heap of what is due later: calls, and messages to actors."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Protocol

from actors.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

# A thread may sleep at most threading.TIMEOUT_MAX; an hour is far below, and waking costs nothing.
_LONGEST_WAIT_S = 3600.0
# Below this many cancelled entries the heap is not worth rebuilding.
_CANCELLED_KEPT = 64

log = get_logger("actors.timers")


class Clock(Protocol):
    """The clock of actors and timers."""

    def now(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class Recipient(Protocol):
    """The reference to an actor, as timers know it."""

    def tell_due(self, timed: TimedMessage) -> None:
        """Put a message that is due into the inbox, full or not; drop it if the actor is dead."""


class TimerHandle:
    """A call that the timers will make, unless it is cancelled."""

    __slots__ = ("__weakref__", "_call", "_timers", "cancelled", "due_s", "queued")

    def __init__(self, timers: Timers, due_s: float, call: Callable[..., object]) -> None:
        self._timers = timers
        self._call = call
        self.due_s = due_s
        self.cancelled = False
        self.queued = False

    def cancel(self) -> None:
        """Let it not happen any more. Twice, or after it happened, is harmless."""
        self._timers.cancel(self)

    def fire(self) -> None:
        self._call()


class TimedMessage(TimerHandle):
    """A message for an actor, which can be cancelled even while it waits in the inbox.

    It is its own envelope there.
    """

    __slots__ = ("message",)

    reply_to = None

    def __init__(self, timers: Timers, due_s: float, recipient: Recipient, message: object) -> None:
        super().__init__(timers, due_s, recipient.tell_due)
        self.message = message

    def fire(self) -> None:
        self._call(self)


class Timers:
    """The heap of what is due, without the thread: whoever drives it calls `fire_due`.

    `order` breaks the tie between timers due at the same moment; what it does
    not break is first come, first served.
    """

    def __init__(self, clock: Clock, order: Callable[[], float] = float) -> None:
        self._clock = clock
        self._order = order
        self._lock = threading.Lock()
        self._sequence = itertools.count()
        self._heap: list[tuple[float, float, int, TimerHandle]] = []
        self._cancelled = 0
        self._closed = False

    def tell_after(self, delay_s: float, recipient: Recipient, message: object) -> TimerHandle:
        """Tell `message` to the actor `delay_s` seconds from now; nothing if it is dead by then.

        Raises ValueError.
        """
        return self._add(TimedMessage(self, self._due_s(delay_s), recipient, message))

    def call_after(self, delay_s: float, call: Callable[[], object]) -> TimerHandle:
        """Call `call()` in the timers' thread `delay_s` seconds from now; it must not block.

        An exception in it is logged.  Raises ValueError.
        """
        return self._add(TimerHandle(self, self._due_s(delay_s), call))

    def cancel(self, handle: TimerHandle) -> None:
        """Mark the handle; its entry leaves the heap when due, or when half the heap is such."""
        with self._lock:
            if handle.cancelled:
                return
            handle.cancelled = True
            if not handle.queued:
                return
            self._cancelled += 1
            if self._cancelled > max(_CANCELLED_KEPT, len(self._heap) // 2):
                self._heap = [entry for entry in self._heap if not entry[3].cancelled]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def next_due_s(self) -> float | None:
        """Return when something is next due on the clock; None when nothing waits."""
        with self._lock:
            return self._next_due_s()

    def fire_due(self) -> int:
        """Do what is due by now, in order; returns how many. What this adds waits its turn."""
        fired = 0
        for handle in self._take_due():
            if handle.cancelled:
                continue
            fired += 1
            try:
                handle.fire()
            except BaseException:
                log.exception("timer_failed", timer=repr(handle))
        return fired

    def close(self, timeout_s: float = 0.0) -> bool:
        """Forget everything that waits and take nothing more; True as nothing runs on."""
        del timeout_s  # there is no thread to wait for
        with self._lock:
            self._closed = True
            self._heap.clear()
        return True

    def __len__(self) -> int:
        """Count the entries of the heap, cancelled ones included."""
        return len(self._heap)

    def _due_s(self, delay_s: float) -> float:
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"a timer's delay of {delay_s} s must be 0 or more, and finite")
        return self._clock.now() + delay_s

    def _add(self, handle: TimerHandle) -> TimerHandle:
        with self._lock:
            if not self._closed:
                handle.queued = True
                entry = (handle.due_s, self._order(), next(self._sequence), handle)
                heapq.heappush(self._heap, entry)
                if self._heap[0] is entry:
                    self._sooner()
        return handle

    def _sooner(self) -> None:
        """Something is due before everything else; called under the lock."""

    def _next_due_s(self) -> float | None:
        while self._heap and self._heap[0][3].cancelled:
            self._pop()
        return self._heap[0][0] if self._heap else None

    def _pop(self) -> TimerHandle:
        handle = heapq.heappop(self._heap)[3]
        handle.queued = False
        self._cancelled -= handle.cancelled
        return handle

    def _take_due(self) -> list[TimerHandle]:
        now_s = self._clock.now()
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_s:
                due.append(self._pop())
        return due


class ThreadTimers(Timers):
    """Timers with a thread of their own, which sleeps until the next one is due."""

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

    def _sooner(self) -> None:
        self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            self.fire_due()

    def _wait(self) -> bool:
        """Sleep until something is due; False once closed."""
        with self._changed:
            while not self._closed:
                due_s = self._next_due_s()
                wait_s = _LONGEST_WAIT_S if due_s is None else due_s - self._clock.now()
                if wait_s <= 0:
                    return True
                self._changed.wait(min(wait_s, _LONGEST_WAIT_S))
        return False
