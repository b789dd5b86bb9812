"""Who runs the actors: a fixed pool of threads that serves every actor that has work."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Final, Protocol

import structlog

__all__ = ["Dispatcher", "PoolDispatcher", "Runnable"]

PATIENCE_S: Final = 0.02
"""How long a turn may hold up what waits before another thread takes over."""

log = structlog.get_logger("actors.dispatcher")


class Runnable(Protocol):
    """What has work for a dispatcher: an actor's cell."""

    @property
    def lineage(self) -> str:
        """The name in logs and traces."""

    def run(self, budget: int) -> str | None:
        """Do at most `budget` pieces of work; if more is left, schedule itself again.

        Returns the class name of the last message handled, None when there was nothing to do.
        """


class Dispatcher(Protocol):
    """Runs what is scheduled, each runnable once per `schedule`."""

    def schedule(self, runnable: Runnable) -> None:
        """Run it soon, in a thread of the dispatcher's. Never blocks."""


class PoolDispatcher:
    """A fixed pool of daemon threads on one first-come, first-served queue.

    One thread at a time has the lead and does all the work: the interpreter runs
    one at a time anyway, and others that wake for each runnable cost more than
    their turns. While the lead is busy another one watches. Where nothing was
    begun for `PATIENCE_S`, though something waits, it takes the lead; who was
    stuck stands by once its turn ends. So a turn that blocks holds up the others
    for no longer than that, unless `threads` of them block at once. Shorter ones
    come one after another: who waits often should not do so in a turn.

    A runnable does at most `throughput` pieces of work each turn and then goes
    to the back of the queue, so that no busy one starves the others. The queue
    is bounded by the number of actors: each is in it at most once.

    Raises:
        ValueError: `threads` or `throughput` is below 1.

    """

    def __init__(self, threads: int, throughput: int, *, name: str = "actors") -> None:
        if threads < 1:
            raise ValueError(f"threads={threads}: a dispatcher needs at least 1 thread")
        if throughput < 1:
            raise ValueError(f"throughput={throughput}: a turn must allow at least 1 message")
        self._throughput = throughput
        self._ready: SimpleQueue[Runnable | None] = SimpleQueue()
        self._stopping = False
        # Whoever does the work. These are written by several threads without a lock: none is right
        # for longer than it takes to read it, and a wrong one costs a moment, never a runnable.
        self._lead: object = None
        self._begun = 0
        self._idle = False
        self._watch = threading.Lock()
        self._dozes = False
        self._roused = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def schedule(self, runnable: Runnable) -> None:
        """Put the runnable at the back of the queue."""
        self._ready.put(runnable)

    def stop(self, timeout_s: float) -> bool:
        """End the threads after their current turn; True when all ended in time."""
        self._stopping = True
        for _ in self._threads:
            self._ready.put(None)
        self._roused.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._stopping:
            with self._watch:
                self._stand_by()
                me = self._lead = object()
            while self._lead is me and self._turn():
                pass

    def _stand_by(self) -> None:
        """Return when there is no lead, or when it has been stuck."""
        while self._lead is not None:
            self._roused.clear()
            self._dozes = True
            if self._stopping:
                return
            if self._idle:
                self._roused.wait()
                continue
            self._dozes = False
            begun = self._begun
            if not self._roused.wait(PATIENCE_S) and begun == self._begun and self._waits():
                return

    def _waits(self) -> bool:
        return not self._idle and not self._ready.empty()

    def _turn(self) -> bool:
        """Run what is next; False when the pool is to end."""
        if self._ready.empty():
            self._idle = True
            runnable = self._ready.get()
            self._idle = False
            if self._dozes:  # else it looks by itself
                self._roused.set()
        else:
            runnable = self._ready.get()
        if runnable is None or self._stopping:
            return False
        self._begun += 1
        try:
            runnable.run(self._throughput)
        except BaseException:
            # A cell handles what its actor raises: only a fault of the runtime comes here, and it
            # must not cost the pool a thread.
            log.exception("actor_turn_failed", lineage=runnable.lineage)
        return True
