"""A service with a fence, as the simulation runs it: the real core over the real keeper."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from offsetmgr.coordinator.fence.coordinator import FencedCoordinator
from offsetmgr.coordinator.fence.keeper import Identity, Keeper
from offsetmgr.coordinator.fence.link import Links
from offsetmgr.coordinator.fence.seat import Standing
from offsetmgr.coordinator.fence.security import Security
from offsetmgr.coordinator.fence.wire import Broker
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.manager import Factory, ManagerHandle
from tests.sim.fence_judge import SESSION_S
from tests.sim.loop import Loop
from tests.sim.processes import Host, Process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from actors import Future
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.memory import BrokerState
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition
    from tests.sim.fence_judge import FenceJudge

CLOSE_S: Final = 10.0
_GRACE_S: Final = 0.001
"""For what is answered at a deadline, in the same moment of the simulation."""


class _Runner:
    """The loop's steps are the simulation's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """As asyncio's users know it."""
        return cast("asyncio.AbstractEventLoop", self._loop)

    def join(self, timeout_s: float) -> None:
        """Nobody waits in a simulation: whether it ends in time is looked at later."""


class FencedService:
    """One process, from its start until it is killed or closed."""

    def __init__(
        self,
        host: Host,
        number: int,
        settings: CommitSettings,
        broker: BrokerState,
        judge: FenceJudge,
        rng: random.Random,
        latency_s: float,
    ) -> None:
        self.number = number
        self.name = f"service{number}"
        self.process = Process(host, self.name)
        self.born_s = host.clock.now()
        self.loop = Loop(self.process)
        self.groups: dict[str, None] = {}
        """Those that it ever had managers of."""
        self.handles: dict[ManagerKey, ManagerHandle] = {}
        self._promises: dict[int, float] = {}
        self._judge = judge
        self._host = host
        memory = MemoryCoordinator(
            call_after=self.process.timers.call_after, clock=host.clock, latency_s=latency_s
        )
        memory.broker = broker
        self.keeper = Keeper(
            Links(Security(None, None), self.name),
            [Broker("kafka", 9092)],
            Identity(self.name, self.name, self.name, SESSION_S, host.clock.now),
            self._members_of,
        )
        inner = cast("Any", memory)
        self.coordinator = FencedCoordinator(self.keeper, inner, _Runner(self.loop))
        self.factory = Factory(
            self.coordinator,
            settings,
            system=self.process,
            observer=self,
            rng=random.Random(rng.getrandbits(32)),  # noqa: S311 -- to be replayed
        )

    def __str__(self) -> str:
        return self.name

    @staticmethod
    async def _members_of(group: str) -> str:
        return f"group {group} has live members"

    @property
    def dead(self) -> bool:
        """Whether the process is gone."""
        return self.process.dead

    @property
    def promises(self) -> list[float]:
        """By when its flushes and stops are to be answered, where it can."""
        held = self.dead or self.process.frozen
        return [] if held else [each + _GRACE_S for each in self._promises.values()]

    def standing(self, group: str) -> Standing:
        """How it stands to a group, as far as it knows."""
        seat = self.keeper._seats.get(group)
        return Standing.OUT if seat is None else seat.standing

    def has_had(self, group: str) -> bool:
        """Whether it had the group's seat and did not give it up, as far as it knows."""
        seat = self.keeper._seats.get(group)
        return not self.dead and seat is not None and seat.place is not None

    # What its users do.

    def spawn(self, group: str, partitions: list[TopicPartition]) -> None:
        """Start managers."""
        self.groups[group] = None
        for made in self.factory.spawn_many(group, partitions).values():
            if isinstance(made, ManagerHandle):
                self.handles[made.key] = made

    def flush(self, timeout_s: float) -> None:
        """Commit everything now."""
        keys = [handle.key for handle in self.factory.managers()]
        self._promise(timeout_s, self.factory.flush(keys, timeout_s))

    def stop(self, group: str, timeout_s: float) -> None:
        """Stop the managers of a group: it leaves the group."""
        desks = [handle._desk for handle in self.factory.managers(group)]
        self._promise(timeout_s, self.factory.stop_desks(desks, timeout_s))

    def _promise(self, timeout_s: float, answer: Future[dict[ManagerKey, StopResult]]) -> None:
        number = self._judge.next_order()
        self._promises[number] = self._host.clock.now() + timeout_s
        answer.add_done_callback(lambda _: self._promises.pop(number, None))

    # How it ends, and stands still.

    def freeze(self) -> None:
        """What it promised it cannot keep while it is frozen."""
        self.process.freeze()
        self._promises.clear()

    def close(self, then: Callable[[], None]) -> None:
        """As on SIGTERM: commit, leave all groups, end; ``then`` when that should be over."""
        timers = self.process.timers
        answer = self.factory.begin_stop(CLOSE_S)
        self._promise(CLOSE_S, answer)
        answer.add_done_callback(lambda _: timers.call_after(0.0, self._leave))
        timers.call_after(2 * CLOSE_S + 1.0, then)

    def _leave(self) -> None:
        self.coordinator.close(CLOSE_S)

    # What its managers tell.

    def committed(self, key: ManagerKey, offset: OffsetAndMetadata) -> None:
        """The coordinator acknowledged ``offset``."""
        self._judge.acknowledged(key, offset)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Expected."""

    def requested(
        self,
        kind: Literal["commit", "fetch"],
        group: str,
        partitions: int,
        failures: int,
        duration_s: float,
    ) -> None:
        """Not looked at."""

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        """It is gone."""
        del result
        self.handles.pop(key, None)
