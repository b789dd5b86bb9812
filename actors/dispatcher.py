"""Who runs the actors: a fixed pool of threads that serves every actor that has work."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Protocol

import structlog

__all__ = ["Dispatcher", "PoolDispatcher", "Runnable"]

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
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (runnable := self._ready.get()) is not None and not self._stopping:
            try:
                runnable.run(self._throughput)
            except BaseException:
                # A cell handles what its actor raises: only a fault of the runtime comes here,
                # and it must not cost the pool a thread.
                log.exception("actor_turn_failed", lineage=runnable.lineage)
            del runnable  # an idle thread must not keep a dead actor alive
