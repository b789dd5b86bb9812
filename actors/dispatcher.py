"""A fixed pool of threads that serves every actor that has work."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Protocol

from actors.logs import report


class Runnable(Protocol):
    """An actor, as a dispatcher sees it."""

    @property
    def path(self) -> str:
        """Its name in logs and traces."""

    def run(self, budget: int) -> str | None:
        """Do at most ``budget`` pieces of work; if more is left, schedule itself again.

        Return the name of the last one, or None if there was nothing to do.
        """


class TurnQueue(Protocol):
    """Runs what is scheduled, each runnable once per ``schedule``.

    A signal handler may raise in the middle of a caller that schedules.  So callers schedule first,
    and then note that they have: a turn too many finds nothing to do, while one too few would stop
    the actor for good.
    """

    def schedule(self, runnable: Runnable) -> None:
        """Run it soon, in a thread of the dispatcher.  Never blocks."""


class Dispatcher(TurnQueue, Protocol):
    """The turns of a whole system."""

    def stop(self, timeout_s: float) -> bool:
        """End after the current turns; return True if that was done in time."""


class Strand:
    """Runnables of which one runs at a time, first come, first served.

    Actors of one strand may call each other directly in their turns.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.RLock()
        self._ready: deque[Runnable] = deque()
        self._running = False
        self.path = "strand"
        """The path of the actor that runs, or ran last."""

    def schedule(self, runnable: Runnable) -> None:
        with self._lock:
            if not self._ready and not self._running:
                self._dispatcher.schedule(self)
            self._ready.append(runnable)

    def run(self, budget: int) -> str | None:
        """Give the first of the queue its turn, unless another one has it."""
        with self._lock:
            if self._running or not self._ready:
                return None
            self._running = True
            runnable = self._ready.popleft()
        self.path = runnable.path
        try:
            return runnable.run(budget)
        finally:
            with self._lock:
                self._running = False
                if self._ready:
                    self._dispatcher.schedule(self)


class PoolDispatcher:
    """Daemon threads on one first-come, first-served queue.

    A runnable does at most ``throughput`` pieces of work each turn and then goes to the back of the
    queue, so that a busy one does not starve the others.  Each is in the queue at most once.
    """

    def __init__(self, threads: int, throughput: int, *, name: str = "actors") -> None:
        self._throughput = throughput
        self._ready: SimpleQueue[Runnable | None] = SimpleQueue()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def schedule(self, runnable: Runnable) -> None:
        self._ready.put(runnable)

    def stop(self, timeout_s: float) -> bool:
        self._stopping = True
        for _ in self._threads:
            self._ready.put(None)
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (runnable := self._ready.get()) is not None and not self._stopping:
            try:
                runnable.run(self._throughput)
            except BaseException as error:  # noqa: BLE001 -- it must not cost the pool a thread
                # An actor's own exceptions end in its supervision: this is a fault of the runtime.
                report("the turn of actor %s failed", runnable.path, error=error)
