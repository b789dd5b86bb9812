"""A factory on a simulated system and a coordinator in memory, for tests to play with."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Literal

from pykka.messages import ProxyCall

from actors.testing import SimSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.manager import Factory
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import ActorRef, Future
    from offsetmgr.coordinator.memory import SentRequest
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import ManagerHandle

POISON = ProxyCall(attr_path=("no_such_method",), args=(), kwargs={})
"""A message over which any actor crashes."""

TIMED_OUT, LOADING, TOPIC_DENIED, GROUP_DENIED, UNKNOWN_TOPIC = -185, 14, 29, 30, 3


def at(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata)


def tp(partition: int = 0) -> TopicPartition:
    """Write a partition of the topic that all tests use."""
    return TopicPartition("t", partition)


class Listener:
    """An observer that remembers everything."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[ManagerKey, OffsetAndMetadata]] = []
        self.failures: list[tuple[ManagerKey, OffsetManagerError]] = []
        self.ended: list[tuple[ManagerKey, StopResult]] = []
        self.asked: list[tuple[str, str, int, int]] = []

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        self.acknowledged += offsets.items()

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self.failures.append((key, error))

    def requested(
        self,
        kind: Literal["commit", "fetch"],
        group: str,
        partitions: int,
        failures: int,
        duration_s: float,
    ) -> None:
        del duration_s
        self.asked.append((kind, group, partitions, failures))

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        self.ended.append((key, result))


class Core:
    def __init__(self, *, seed: int = 0, latency_s: float = 0.01, **settings: Any) -> None:
        self.system = SimSystem(seed)
        self.coordinator = MemoryCoordinator(
            call_after=self.system.timers.call_after, latency_s=latency_s
        )
        self.broker = self.coordinator.broker
        self.listener = Listener()
        self.factory = Factory(
            self.coordinator,
            CommitSettings(**settings),
            system=self.system,
            observer=self.listener,
            rng=Random(1),  # noqa: S311 -- jitter
        )
        self.advance = self.system.advance

    def spawn(self, partition: int = 0, group: str = "g") -> ManagerHandle:
        """Spawn a manager and let it learn its initial offset."""
        handle = self.factory.spawn(group, "t", partition)
        self.advance(0.1)
        return handle

    def submit(self, handle: ManagerHandle, offset: int, metadata: str = "") -> None:
        """Submit an offset, and let its interval pass."""
        handle.submit(offset, metadata)
        self.advance(2.0)

    def create_topic(self, end: int, *, partitions: int = 3) -> None:
        """Create the topic of all tests, with logs that hold 0 to ``end``."""
        self.broker.create_topic("t", partitions)
        for partition in range(partitions):
            self.broker.set_log(tp(partition), 0, end)

    def holds(self, partition: int = 0, group: str = "g") -> OffsetAndMetadata | None:
        return self.broker.committed(group).get(tp(partition))

    def put(self, value: OffsetAndMetadata, partition: int = 0, group: str = "g") -> None:
        self.broker.commit_externally(group, {tp(partition): value})

    def requests(self, operation: str, group: str = "g") -> list[SentRequest]:
        asked = self.coordinator.requests
        return [r for r in asked if r.operation == operation and r.group == group]

    def commits(self, group: str = "g") -> list[dict[int, int]]:
        """The offsets of each commit so far, by partition."""
        return [
            {where.partition: value.offset for where, value in request.offsets.items()}
            for request in self.requests("commit", group)
        ]

    def stop(self, handle: ManagerHandle, timeout_s: float) -> Future[dict[ManagerKey, StopResult]]:
        return self.factory._ask([handle._manager], timeout_s, stopping=True)

    def flush(self, handles: Iterable[ManagerHandle], timeout_s: float) -> list[StopResult]:
        future = self.factory.flush([handle.key for handle in handles], timeout_s)
        return list(self.system.wait(future, timeout_s).values())

    def committer(self, group: str = "g") -> ActorRef[Any]:
        return self.factory._groups[group].committer

    def manager(self, handle: ManagerHandle) -> ActorRef[Any]:
        return handle._manager.actor_ref
