"""One simulated run of the fence: services that take the same groups over from one another.

Their core, their keeper of seats and its connections are the real ones.  Kafka's coordinator, the
network and the clock are simulated; services are killed, frozen and thawed, cut off and closed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final
from unittest import mock

from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.fence.seat import UNKNOWN_MEMBER_ID
from offsetmgr.coordinator.memory import BrokerState
from offsetmgr.errors import OffsetManagerError, error_info
from offsetmgr.types import TopicPartition
from tests.sim.fence_judge import SESSION_S, FenceJudge
from tests.sim.fenced import FencedService
from tests.sim.processes import Host
from tests.sim.queues import LOOK_EVERY, look_at_factory, look_at_parts, look_everywhere
from tests.sim.seats import Seats
from tests.sim.wires import Wires

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.testing import Step
    from offsetmgr.types import OffsetAndMetadata

STEPS: Final = 30
"""Things that happen in one run."""

MOST_SERVICES: Final = 4
MOST_TIMERS: Final = 400
MOST_EACH: Final = 4
"""More seats, questions, connections or requests under way for each group would pile up."""

_PARTITIONS = [TopicPartition("t", number) for number in range(2)]
_PAUSES_S = (0.0, 0.0, 0.01, 0.3, 1.0, 3.0, SESSION_S + 2.0)
_TIMEOUTS_S = (0.0, 0.5, 3.0, 10.0)
_DELAYS_S = (0.0, 3.0)


class Broker(BrokerState):
    """Takes commits of those who are no members only where a group has none, as Kafka does."""

    def __init__(self, world: FenceWorld) -> None:
        super().__init__()
        self._world = world

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Failure]:
        """Answer a commit by somebody who is no member."""
        if self._world.seats.holder(group):
            return dict.fromkeys(offsets, Failure(error_info(UNKNOWN_MEMBER_ID)))
        self._world.took_effect(group, "", offsets)
        return {}


class FenceWorld:
    """A run: everything in it follows from its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 -- to be replayed
        self.system = Host(rng.getrandbits(32))
        self.judge = FenceJudge()
        self.judge.begin(self.system)
        self.system.on_step = self._after_step
        self.broker = Broker(self)
        network_rng = random.Random(rng.getrandbits(32))  # noqa: S311 -- to be replayed
        self.wires = Wires(self.system, network_rng, self.judge.met)
        self.wires.sending = self.judge.sending
        self.seats = self.wires.seats = Seats(self.system, self, rng.choice(_DELAYS_S))
        self.settings = CommitSettings(
            commit_interval_s=rng.choice((0.5, 5.0)),
            request_timeout_s=2.0,
            retry_backoff_s=0.1,
            retry_backoff_max_s=2.0,
            error_limit=8,
            recommit_interval_s=0.0,
            verify_interval_s=rng.choice((0.0, 5.0)),
        )
        self.groups = [f"g{number}" for number in range(rng.randint(1, 2))]
        self.living: list[FencedService] = []
        self.actions = self._draw_actions()
        self.judge.calm = self.wires.calm and self.cut not in self.actions

    def _draw_actions(self) -> list[Callable[[], None]]:
        """Each seed has its own mix, so that rare mixes are met as often as common ones."""
        usual: list[Callable[[], None]] = [self.submit, self.spawn, self.flush]
        rare: list[Callable[[], None]] = [
            self.stop, self.close, self.kill, self.freeze, self.cut, self.move_coordinator,
        ]  # fmt: skip
        mix = self.rng.sample(rare, self.rng.randint(1, len(rare)))
        return [*[self.submit] * 4, *usual, self.spawn, self.start, self.mend, *mix]

    # What Kafka tells.

    def granted(self, group: str, client_id: str) -> None:
        """A member is given the place."""
        self.judge.granted(group, client_id)

    def seated(self, group: str, client_id: str) -> None:
        """A member is in its place."""
        self.judge.seated(group, client_id)

    def left(self, group: str, client_id: str, asked_by: str) -> None:
        """A member's place was given up."""
        self.judge.left(group, client_id, asked_by)

    def took_effect(
        self, group: str, client_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """A commit of the member, or of somebody else where there is none."""
        del client_id
        self.broker.commit_externally(group, offsets)
        self.judge.took_effect(group, offsets)

    # The run.

    def run(self) -> None:
        """Live, then let the faults end and see what is left."""
        with mock.patch("asyncio.open_connection", self.wires.open):
            try:
                self._live()
            finally:
                for service in self.judge.services.values():
                    service.process.kill()

    def _live(self) -> None:
        self.start()
        for _ in range(STEPS):
            action = self.rng.choice(self.actions)
            self.judge.met[f"fence: {action.__name__}"] += 1
            action()
            self.pass_time(self.rng.choice(_PAUSES_S))
        self.recover()

    def pass_time(self, pause_s: float) -> None:
        """Let everybody work: sometimes only a few steps."""
        if pause_s == 0.0:
            self.system.few_steps(self.rng.randint(0, 20))
        else:
            self.system.advance(pause_s)
        if self.system.timer_count() > MOST_TIMERS:
            self.judge.blame(f"{self.system.timer_count()} timers")
        self.judge.look()

    def _after_step(self, step: Step) -> None:
        # Here, and not only when time has passed: after an outage queues are short again.
        if step.step % LOOK_EVERY == 0:
            self._look_at_queues()
        self.judge.check()

    def recover(self) -> None:
        """Faults end: who took a group last commits all it has, without any help."""
        look_everywhere(self.judge, {each.name: each.factory for each in self.living})
        self.mend()
        self.wires.heal()
        self.pass_time(6 * SESSION_S)
        for service in self.living:
            self._submit(service)
        self.pass_time(3 * SESSION_S)
        self.judge.final()
        for service in list(self.living):
            self._close(service)
        self.pass_time(30.0)
        for group in self.groups:
            if self.seats.holder(group):
                self.judge.blame(f"{self.seats.holder(group)} is closed and still has {group}")
        self.judge.look()

    # What users do.

    def _some(self) -> FencedService | None:
        awake = [each for each in self.living if not each.process.frozen]
        return self.rng.choice(awake) if awake else None

    def start(self) -> None:
        """One more service."""
        number = len(self.judge.services) + 1
        if number > MOST_SERVICES:
            return
        service = FencedService(
            self.system, number, self.settings, self.broker, self.judge, self.rng,
            self.wires.latency_s,
        )  # fmt: skip
        self.judge.services[service.name] = service
        self.living.append(service)
        service.spawn(self.rng.choice(self.groups), _PARTITIONS)

    def spawn(self) -> None:
        """A service gets managers of a group, which takes that over."""
        service = self._some()
        if service is not None:
            service.spawn(self.rng.choice(self.groups), _PARTITIONS)

    def submit(self) -> None:
        """A service gets new offsets."""
        service = self._some()
        if service is not None:
            self._submit(service)

    def _submit(self, service: FencedService) -> None:
        for handle in list(service.handles.values()):
            offset = self.judge.next_order()
            try:
                handle.submit(offset, str(service.number))
            except OffsetManagerError as error:
                if not handle._desk.slot.closed:
                    self.judge.blame(f"{handle.key}: refused {offset}: {error}")

    def flush(self) -> None:
        """A service is to commit now."""
        service = self._some()
        if service is not None:
            service.flush(self.rng.choice(_TIMEOUTS_S))

    def stop(self) -> None:
        """A service gives a group up."""
        service = self._some()
        if service is not None:
            service.stop(self.rng.choice(self.groups), self.rng.choice(_TIMEOUTS_S))

    # What goes wrong.

    def close(self) -> None:
        """A service ends properly."""
        service = self._some()
        if service is not None:
            self._close(service)

    def _close(self, service: FencedService) -> None:
        self.living.remove(service)

        def over() -> None:
            if not service.loop.stopped:
                self.judge.blame(f"{service} has not ended by its deadline")
            service.process.kill()

        service.close(over)

    def kill(self) -> None:
        """A service dies."""
        service = self._some()
        if service is not None:
            self.living.remove(service)
            service.process.kill()

    def freeze(self) -> None:
        """A service stands still, with offsets in hand."""
        service = self._some()
        if service is not None:
            self._submit(service)
            service.freeze()

    def cut(self) -> None:
        """A service loses the network."""
        service = self._some()
        if service is not None:
            self.wires.cut.add(service.name)

    def mend(self) -> None:
        """Who was frozen thaws, and who was cut off gets the network back."""
        self.wires.cut.clear()
        for service in self.living:
            if service.process.frozen:
                service.process.thaw()

    def move_coordinator(self) -> None:
        """Groups go to another broker, which reads them from their log."""
        for group in self.seats.move():
            self.judge.forgotten(group)

    # What must not grow.

    def _look_at_queues(self) -> None:
        """At what services hold for their groups."""
        for service in self.living:
            keeper = service.keeper
            parts = (service.coordinator, keeper, keeper._finder, keeper._links)
            look_at_parts(self.judge, service.name, parts, MOST_EACH * len(self.groups))
            error_limit, partitions = self.settings.error_limit, len(_PARTITIONS)
            look_at_factory(self.judge, service.factory, error_limit, partitions)
