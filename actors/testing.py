"""For tests: a manual clock, and a system that replays any schedule from a seed.

system = SimSystem(seed=7)
ref = system.spawn(Counter, name="counter")
ref.tell("up")
system.run_until_idle()
system.advance(seconds=60)      # fires the timers that are due meanwhile, in order
system.trace                    # the steps, which are the same for the same seed
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from actors.actor import ActorSystem
from actors.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.dispatcher import Runnable
    from actors.future import Future

T = TypeVar("T")

_TRACE_LIMIT = 1_000_000


class SimulationError(RuntimeError):
    """The simulation cannot go on; the message names the seed that replays it."""


class ManualClock:
    """A clock that moves only when it is advanced."""

    def __init__(self, start: float = 0.0) -> None:
        self._now_s = start

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self.advance_to(self._now_s + seconds)

    def advance_to(self, at_s: float) -> None:
        self._now_s = max(self._now_s, at_s)


class SimStep(NamedTuple):
    """One message handled by one actor."""

    step: int  # counted from 1
    path: str
    message_type: str
    """The class of the message, or a step of the runtime, such as ``Start`` and ``Stop``."""


class _SimDispatcher:
    """Keeps ready actors until the simulation picks one."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice
        self._ready: list[Runnable] = []

    def schedule(self, runnable: Runnable) -> None:
        self._ready.append(runnable)

    def pick(self) -> Runnable | None:
        if not self._ready:
            return None
        index = self._choice.randrange(len(self._ready))
        self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
        return self._ready.pop()

    def stop(self, timeout_s: float) -> bool:
        del timeout_s
        return True


class SimSystem(ActorSystem):
    """An ``ActorSystem`` without threads: in each step, a randomly chosen actor handles a message.

    All steps run inside ``run_until_idle`` and ``advance``, in the thread that calls them.
    """

    def __init__(
        self, seed: int, *, name: str = "sim", on_step: Callable[[SimStep], object] | None = None
    ) -> None:
        choice = random.Random(seed)  # noqa: S311 - a schedule to replay, no secret
        self._manual_clock = clock = ManualClock()
        self._sim_dispatcher = _SimDispatcher(choice)
        super().__init__(
            name=name,
            clock=clock,
            dispatcher=self._sim_dispatcher,
            timers=Timers(clock, order=choice.random),
        )
        self.seed = seed
        self.on_step = on_step
        self.trace: deque[SimStep] = deque(maxlen=_TRACE_LIMIT)
        self._steps = 0
        self._inside = False

    def run_until_idle(self, max_steps: int = 100_000) -> int:
        """Run steps until no actor has a message; return their number.

        Raises SimulationError if there are more than ``max_steps``.
        """
        steps = 0
        while (runnable := self._sim_dispatcher.pick()) is not None:
            if steps >= max_steps:
                self._sim_dispatcher.schedule(runnable)
                raise self._not_idle(max_steps)
            steps += 1
            self._step(runnable)
        return steps

    def run_steps(self, count: int) -> None:
        """Run ``count`` steps, or fewer if no actor has a message."""
        for _ in range(count):
            runnable = self._sim_dispatcher.pick()
            if runnable is None:
                return
            self._step(runnable)

    def advance(self, seconds: float, max_steps: int = 100_000) -> int:
        """Let ``seconds`` pass: timers fire in order of time, each when all actors are idle.

        Simultaneous timers fire in a seeded order.  Return the number of steps.  Raises
        SimulationError if there are more than ``max_steps``, timers included.
        """
        until_s = self.clock.now() + seconds
        steps = self.run_until_idle(max_steps)
        while (due_s := self.timers.next_due_s()) is not None and due_s <= until_s:
            if steps >= max_steps:
                raise self._not_idle(max_steps)
            self._manual_clock.advance_to(due_s)
            steps += self.timers.fire_due()
            steps += self.run_until_idle(max(0, max_steps - steps))
        self._manual_clock.advance_to(until_s)
        return steps

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Run until idle, then for up to ``timeout_s`` simulated seconds, and return the value.

        Raises pykka.Timeout; SimulationError if an actor calls it.
        """
        if self._inside:
            raise SimulationError(
                f"seed {self.seed}: an actor blocks on another one, which can deadlock a pool"
            )
        self.run_until_idle()
        if not future.done() and timeout_s:
            self.advance(timeout_s)
        return future.get(timeout=0)

    def _let_end(self, timeout_s: float) -> None:
        self.run_until_idle()
        if self.actor_count():
            self.advance(timeout_s)

    def _step(self, runnable: Runnable) -> None:
        self._inside = True
        try:
            handled = runnable.run(1)
        finally:
            self._inside = False
        if handled is None:
            return
        self._steps += 1
        step = SimStep(self._steps, runnable.path, handled)
        self.trace.append(step)
        if self.on_step is not None:
            self.on_step(step)

    def _not_idle(self, max_steps: int) -> SimulationError:
        last = list(self.trace)[-1:]
        return SimulationError(
            f"seed {self.seed}: actors are not idle after {max_steps} steps; last: {last}"
        )
