"""Single scenes of the fence that random runs meet too rarely, in the simulation's world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr.coordinator.fence.seat import Standing
from tests.sim.fence_judge import SESSION_S
from tests.sim.fence_world import FenceWorld
from tests.sim.run import silence
from tests.sim.seats import COMMIT, JOIN, LEAVE, SYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.seats import Message

LATE_S: Final = 1.0


class Scene(FenceWorld):
    """Nothing happens by chance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(seed=1)
        self.wires.rate, self.wires.latency_s = 0.0, 0.001
        self.seats._join_delay_s = 0.0
        self.groups = ["g0"]
        self.landed_at: list[str] = []
        """Who had the seat when a late request arrived."""
        self._receive = self.seats.receive
        monkeypatch.setattr(self.seats, "receive", self._late)

    def late_s(self, message: Message) -> float:
        """How much later than sent a request is to arrive; here it is not."""
        del message
        return 0.0

    def _late(self, message: Message, answer: Callable[[bytes], None]) -> None:
        late_s = self.late_s(message)
        if late_s:
            self.system.timers.call_after(late_s, lambda: self._land(message, answer))
        else:
            self._receive(message, answer)

    def _land(self, message: Message, answer: Callable[[bytes], None]) -> None:
        self.landed_at.append(self.seats.holder("g0"))
        self._receive(message, answer)

    def freeze_for_too_long(self) -> None:
        """One service, with an offset to commit, loses its seat and does not know it."""
        self.start()
        self.pass_time(5.0)
        self.freeze()
        self.pass_time(SESSION_S + 2.0)

    def standings(self) -> list[Standing]:
        """How the services stand, the oldest first."""
        return [each.standing("g0") for each in self.living]


class LateCommit(Scene):
    """A commit is overtaken by the heartbeat behind it, and by the request for the seat after."""

    def late_s(self, message: Message) -> float:
        """Only where it has lost its seat."""
        return LATE_S if message.key == COMMIT and not self.seats.holder("g0") else 0.0

    def _live(self) -> None:
        self.freeze_for_too_long()
        self.mend()
        self.pass_time(3 * LATE_S)
        assert self.landed_at == ["service1"]
        assert self.standings() == [Standing.SEATED]
        self.recover()


class Overtaken(Scene):
    """A newcomer was given its place and has not sat down when its predecessor asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.asked = 0
        """How often the predecessor has asked for a seat."""

    def late_s(self, message: Message) -> float:
        """The predecessor asks late, and is heard late when it leaves again."""
        if message.client_id == "service2":
            return 2 * LATE_S if message.key == SYNC and not self.landed_at else 0.0
        self.asked += message.key == JOIN
        # For its first seat, for the one it had, and for a new one.
        again = message.key == JOIN and self.asked == 3
        return LATE_S if again else 3 * LATE_S if message.key == LEAVE else 0.0

    def _live(self) -> None:
        self.freeze_for_too_long()
        self.mend()
        self.pass_time(LATE_S / 2)
        self.start()
        self.pass_time(2.5 * LATE_S)
        assert self.landed_at == ["service2", "service1"]
        assert self.standings() == [Standing.OUT, Standing.OUT]
        self.pass_time(5 * LATE_S)
        assert self.standings() == [Standing.FENCED, Standing.SEATED]
        self.recover()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is fenced on purpose is not logged."""
    with silence():
        yield


def test_a_late_commit_that_meets_its_own_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka refuses a commit from a place that the service itself has replaced: not fenced."""
    LateCommit(monkeypatch).run()


def test_a_newcomer_that_its_predecessor_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is there is older, and leaves when it sees that it was replaced: not fenced."""
    Overtaken(monkeypatch).run()
