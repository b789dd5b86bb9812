"""Several processes in one simulation: one clock, one seeded schedule, and each can be killed.

A process has actors, timers, threads and an event loop of its own (``threads``, ``loop``).  One
that is frozen goes on later, with what has come for it meanwhile.  A killed one does nothing any
more, as after ``kill -9``: what others hold of it (the answer that Kafka sends) reaches nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from actors import ActorSystem
from actors.testing import SimSystem
from actors.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.dispatcher import Runnable
    from actors.future import Future

_T = TypeVar("_T")


class Host(SimSystem):
    """The machine: its clock and schedule are those of all its processes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.processes: list[Process] = []

    def advance(self, seconds: float, max_steps: int = 100_000) -> int:
        until_s = self.clock.now() + seconds
        steps = self.run_until_idle(max_steps)
        while (due_s := self._next_due_s()) is not None and due_s <= until_s:
            if steps >= max_steps:
                raise self._not_idle(max_steps)
            self._manual_clock.advance_to(max(due_s, self.clock.now()))
            for timers in self._heaps():
                steps += timers.fire_due()
            steps += self.run_until_idle(max(0, max_steps - steps))
        self._manual_clock.advance_to(until_s)
        return steps

    def timer_count(self) -> int:
        return len(self.timers) + sum(len(process.timers) for process in self.processes)

    def _heaps(self) -> list[Timers]:
        """Those that run: a frozen process finds out later what was due."""
        running = (process.timers for process in self.processes if not process.frozen)
        return [self.timers, *running]

    def _next_due_s(self) -> float | None:
        return min(
            (due for timers in self._heaps() if (due := timers.next_due_s()) is not None),
            default=None,
        )


class _Guest:
    """Work of a process; none once that is dead."""

    def __init__(self, process: Process, runnable: Runnable) -> None:
        self._process = process
        self._runnable = runnable

    @property
    def path(self) -> str:
        return f"{self._process.name}:{self._runnable.path}"

    def run(self, budget: int) -> str | None:
        if self._process.dead:
            return None
        if self._process.frozen:
            self._process.put_off.append(self)
            return None
        return self._runnable.run(budget)


class _Ports:
    """The dispatcher that a process sees."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def schedule(self, runnable: Runnable) -> None:
        if not self._process.dead:
            self._process.host.dispatcher.schedule(_Guest(self._process, runnable))

    def stop(self, timeout_s: float) -> bool:
        del timeout_s
        return True


class Process(ActorSystem):
    """A process of the host, as the actor system inside of it."""

    def __init__(self, host: Host, name: str) -> None:
        timers = Timers(host.clock)
        super().__init__(name=name, clock=host.clock, dispatcher=_Ports(self), timers=timers)
        self.host = host
        self.dead = False
        self.frozen = False
        """True if it stands still, as behind SIGSTOP; others go on, and so does the time."""
        self.frozen_s = 0.0
        """The total time for which it was frozen."""
        self.put_off: list[Runnable] = []
        """The turns that it takes once it continues."""
        self._frozen_at = 0.0
        self.on_kill: list[Callable[[], None]] = []
        """Callbacks that clear up after it was killed."""
        host.processes.append(self)

    def kill(self) -> None:
        if self.dead:
            return
        self.dead, self.frozen = True, False
        self.timers.close()
        if self in self.host.processes:
            self.host.processes.remove(self)
        for clear in self.on_kill:
            clear()

    def freeze(self) -> None:
        if not self.frozen:
            self.frozen, self._frozen_at = True, self.clock.now()

    def thaw(self, *, timers_first: bool = False) -> None:
        """Go on: with what was due meanwhile, or with what has come."""
        if not self.frozen:
            return
        self.frozen = False
        self.frozen_s += self.clock.now() - self._frozen_at
        if timers_first:
            self.timers.fire_due()
        work, self.put_off = self.put_off, []
        for each in work:
            self.host.dispatcher.schedule(each)

    def wait(self, future: Future[_T], timeout_s: float | None) -> _T:
        from tests.sim.threads import wait_for_future  # noqa: PLC0415 -- threads live in processes

        return wait_for_future(future, timeout_s)
