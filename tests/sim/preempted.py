"""A run in which turns are not whole: other threads come in between, as on a pool of real ones.

Wherever an actor takes a lock of the core's or tells another one something, its thread may lose the
interpreter: other actors take some turns then, and users ask for something.  Never with such a lock
held, for whoever came to want it would wait.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from actors.actor import ActorLoop
from offsetmgr.manager import factory, offset_manager
from tests.sim.world import World, _level

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

OFTEN: Final = (0.01, 0.05, 0.2)
"""Probabilities that a thread is preempted at a possible place; each seed has one of these."""

MOST_CALLERS: Final = 40
"""Of flushes and stops that wait at once; with more, each turn would lead to more turns."""

MOST_TURNS: Final = 6
"""Of others meanwhile."""


class PreemptedWorld(World):
    """As its parent, with threads that get into each other's way."""

    def __init__(self, seed: int) -> None:
        self._thread = get_ident()
        self._held = 0
        self._away = False
        self._often = OFTEN[seed % len(OFTEN)]
        with self._locks():
            super().__init__(seed)
        self._asks: list[Callable[[], None]] = [
            self.submit,
            self.submit,
            self.submit_groupwise,
            self.rewind_anew,
            self.flush,
            self.stop,
            self.submit_and_stop,
            self.submit_and_stop,
            self.spawn,
        ]

    def _live(self) -> None:
        put = ActorLoop.put

        def told(inbox: ActorLoop, envelope: Any) -> None:
            self.preempt()
            put(inbox, envelope)
            self.preempt()

        with self._locks(), mock.patch.object(ActorLoop, "put", told):
            super()._live()

    def rewind_anew(self) -> None:
        """Go back, but not to what may just have been dropped: nobody could tell which is meant."""
        handle = self._some_handle()
        newest = None if handle is None else self._newest(handle.key)
        if handle is not None and newest is not None:
            lower = self._value(_level(newest) - self.rng.randint(1, 6))
            self._offer(handle, lower, rewind=True)

    def submit_and_stop(self) -> None:
        handle = self._some_handle()
        if handle is not None:
            self._offer(handle, self._plain(_level(self._newest(handle.key)) + 1))
            self._stop([handle.key], 10.0)

    def recover(self) -> None:
        """Users leave it alone at last; threads go on as before."""
        self._asks.clear()
        super().recover()

    def _locks(self) -> ExitStack:
        """The core's own locks are such as a thread may be preempted at."""
        stack = ExitStack()
        for module in (factory, offset_manager):
            stack.enter_context(mock.patch.object(module, "RLock", partial(_Lock, self)))
        return stack

    def preempt(self) -> None:
        """Let others run for a while, maybe, in the middle of an actor's turn.

        Actors that other tests have left in this process are none of this run's.
        """
        inside = self.system._inside and get_ident() == self._thread
        if not inside or self._held or self._away or self.rng.random() >= self._often:
            return
        self._away, self.system._inside = True, False
        try:
            may_ask = self._asks and len(self.judge.promises) < MOST_CALLERS
            for _ in range(self.rng.randint(0, 2) if may_ask else 0):
                self.judge.met["preempted: by a user"] += 1
                self.rng.choice(self._asks)()
            self.system.run_steps(self.rng.randint(0, MOST_TURNS))
            self.judge.met["preempted"] += 1
        finally:
            self._away, self.system._inside = False, True

    def taken(self, more: int) -> None:
        """A lock of the core's was taken (1) or given back (-1)."""
        self._held += more


class _Lock:
    """A lock, before which its thread may be preempted."""

    def __init__(self, world: PreemptedWorld) -> None:
        self._world = world
        self._lock = RLock()

    def acquire(self) -> None:
        self._world.preempt()
        self._world.taken(1)
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
        self._world.taken(-1)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
