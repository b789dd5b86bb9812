"""A recording actor, and systems with and without threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import ActorRef, ActorSystem, PooledActor
from actors.testing import SimSystem
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator


class Recorder(PooledActor):
    """Appends its messages and the calls of its hooks to a list."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self.notes = notes
        self.handled = 0

    def on_start(self) -> None:
        self.notes.append("on_start")

    def on_restart(self, reason: BaseException) -> None:
        self.notes.append(f"on_restart {reason!r}")

    def on_stop(self) -> None:
        self.notes.append("on_stop")

    def on_failure(self, *exc_info: object) -> None:
        self.notes.append(f"on_failure {exc_info[1]!r}")

    def on_receive(self, message: Any) -> Any:
        """Raise exceptions; note and count anything else."""
        if isinstance(message, BaseException):
            raise message
        self.handled += 1
        self.notes.append(message)
        return self.handled


class Simulation(SimSystem):
    """A simulated system with the same seed at each run."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.notes: list[object] = []

    def recorder(self, **options: Any) -> ActorRef[Any]:
        return self.spawn(Recorder, self.notes, name="r", **options)

    def ask(self, ref: Any, message: object) -> Any:
        return self.wait(ref.ask(message, block=False), 10)


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    """A system of two threads, which must stop after the test."""
    system = ActorSystem(threads=2, name="test")
    yield system
    assert system.stop(timeout_s=WAIT_S), "actors, timers or threads were left behind"
