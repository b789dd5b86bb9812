"""One clock and one heap: messages and calls for later, once or at a fixed rate."""

from __future__ import annotations

import abc
import heapq
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from actors.signals import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.cell import Cell
    from actors.ref import ActorRef

__all__ = ["Clock", "MonotonicClock", "ThreadTimers", "TimerHandle", "Timers"]

# A thread may sleep at most threading.TIMEOUT_MAX; an hour is far below, and waking costs nothing.
_LONGEST_WAIT_S = 3600.0
# Below this many cancelled entries the heap is not worth rebuilding.
_CANCELLED_KEPT = 64

log = structlog.get_logger("actors.timers")


class Clock(Protocol):
    """Where actors and timers read the time."""

    def now(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some moment before the process began."""
        return time.monotonic()


class TimerHandle(abc.ABC):
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("_timers", "cancelled", "due_s", "interval_s", "owner", "queued")

    def __init__(self, timers: Timers, due_s: float, interval_s: float | None) -> None:
        self._timers = timers
        self.due_s = due_s
        self.interval_s = interval_s
        self.cancelled = False
        self.queued = False
        # The timers of the actor whose life bounds this one: what is over leaves it.
        self.owner: set[TimerHandle] | None = None

    def cancel(self) -> None:
        """Let it not happen any more. Twice, or after it happened, is harmless.

        A message that the timer has put into an inbox, but that is not handled
        yet, is taken back as well.
        """
        self._timers.cancel(self)
        self.leave()

    def leave(self) -> None:
        """Be forgotten by the owner."""
        if self.owner is not None:
            self.owner.discard(self)

    @abc.abstractmethod
    def fire(self) -> None:
        """Do it, in the thread of the timers."""


class _TellTimer(TimerHandle, Signal):
    """Puts itself into the inbox, so that a cancel can still take the message back there.

    At most one tick of a timer waits in an inbox, which is why it may go past
    the inbox's limit, and why a slow actor never finds a burst of ticks.
    """

    __slots__ = ("_cell", "_message", "_waiting")

    def __init__(
        self, timers: Timers, due_s: float, interval_s: float | None, cell: Cell, message: object
    ) -> None:
        super().__init__(timers, due_s, interval_s)
        self._cell = cell
        self._message = message
        self._waiting = False

    def fire(self) -> None:
        if not self._waiting:
            self._waiting = True
            if not self._cell.signal(self):
                self.cancel()

    def apply(self, cell: Cell) -> object:
        self._waiting = False
        if self.interval_s is None:
            self.leave()
        if not self.cancelled:
            cell.receive(self._message, None)
        return self._message


class _CallTimer(TimerHandle):
    __slots__ = ("_call",)

    def __init__(self, timers: Timers, due_s: float, call: Callable[[], object]) -> None:
        super().__init__(timers, due_s, None)
        self._call = call

    def fire(self) -> None:
        self._call()


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

    def tell_after(self, delay_s: float, ref: ActorRef[Any], message: object) -> TimerHandle:
        """Tell `message` to the actor `delay_s` seconds from now; nothing if it is dead by then.

        Raises:
            ValueError: the delay is negative or not finite.

        """
        due_s = self._due_s(delay_s)
        return self._add(_TellTimer(self, due_s, None, ref.cell, message))

    def tell_every(self, interval_s: float, ref: ActorRef[Any], message: object) -> TimerHandle:
        """Tell `message` every `interval_s` seconds, first after one interval, while it lives.

        The rate is fixed. Ticks that were missed, or that would meet an
        unhandled one in the inbox, are skipped: there is never a burst.

        Raises:
            ValueError: the interval is not positive or not finite.

        """
        if interval_s == 0:
            raise ValueError("interval_s=0 must be above 0 seconds")
        due_s = self._due_s(interval_s)
        return self._add(_TellTimer(self, due_s, interval_s, ref.cell, message))

    def call_after(self, delay_s: float, call: Callable[[], object]) -> TimerHandle:
        """Call `call()` in the timers' thread `delay_s` seconds from now; it must not block.

        An exception in it is logged.

        Raises:
            ValueError: the delay is negative or not finite.

        """
        return self._add(_CallTimer(self, self._due_s(delay_s), call))

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
        """Tell when something is next due on the clock; None when nothing waits."""
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
            self._push(handle)
        return handle

    def _push(self, handle: TimerHandle) -> None:
        if self._closed:
            return
        handle.queued = True
        entry = (handle.due_s, self._order(), next(self._sequence), handle)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._sooner()

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
            for handle in due:
                if handle.interval_s is not None and not handle.cancelled:
                    missed = (now_s - handle.due_s) // handle.interval_s
                    handle.due_s += (missed + 1) * handle.interval_s
                    self._push(handle)
        return due


class ThreadTimers(Timers):
    """Timers with a thread of their own, which sleeps until the next one is due."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        super().__init__(clock)
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 0.0) -> bool:
        """Forget everything that waits and end the thread; True when it ended in time."""
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
