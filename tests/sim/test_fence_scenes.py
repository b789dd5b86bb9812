"""Single scenes of the fence that random runs meet too rarely, in the simulation's world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.fence.seat import Standing
from tests.sim.fence_judge import SESSION_S
from tests.sim.fence_world import FenceWorld
from tests.sim.run import silence
from tests.sim.seats import COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.sim.seats import Message

LATE_S: Final = 1.0


class LateCommit(FenceWorld):
    """A commit is overtaken by the heartbeat behind it, and by the request for the seat after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(seed=1)
        self.wires.rate, self.wires.latency_s = 0.0, 0.001
        self.groups = ["g0"]
        self.landed_at: list[str] = []
        """Who had the seat when the late commit arrived."""
        self._receive = self.seats.receive
        monkeypatch.setattr(self.seats, "receive", self._late)

    def _late(self, message: Message, answer: Callable[[bytes], None]) -> None:
        if message.key == COMMIT and not self.seats.holder("g0"):
            self.system.timers.call_after(LATE_S, lambda: self._land(message, answer))
        else:
            self._receive(message, answer)

    def _land(self, message: Message, answer: Callable[[bytes], None]) -> None:
        self.landed_at.append(self.seats.holder("g0"))
        self._receive(message, answer)

    def _live(self) -> None:
        """The service is frozen for longer than its session, with an offset to commit."""
        self.seats._join_delay_s = 0.0
        self.start()
        self.pass_time(5.0)
        self.freeze()
        self.pass_time(SESSION_S + 2.0)
        self.mend()
        self.pass_time(3 * LATE_S)
        assert self.landed_at == ["service1"]
        assert self.living[0].standing("g0") is Standing.SEATED
        self.recover()


def test_a_late_commit_that_meets_its_own_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka refuses a commit from a place that the service itself has replaced: not fenced."""
    with silence():
        LateCommit(monkeypatch).run()
