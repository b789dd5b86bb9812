"""The common part of all judges: watch the coordinator, remember the first violation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.base import CommitResult, FetchResult
from offsetmgr.coordinator.memory import BrokerState
from offsetmgr.errors import Verdict
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from actors.testing import SimSystem
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.coordinator.memory import MemoryCoordinator, SentRequest
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class ViolationError(AssertionError):
    """An invariant does not hold."""


LEVEL: Final = 1_000_000
"""Offsets are multiples of it; what is left tells the order of those without metadata."""


def order_of(value: OffsetAndMetadata | None) -> int:
    """The place of ``value`` in the order of submits; 0 where nothing is committed."""
    if value is None:
        return 0
    return int(value.metadata) if value.metadata else value.offset % LEVEL


class WatchedBroker(BrokerState):
    """A broker that shows a judge all that is read and all that takes effect."""

    def __init__(self, judge: Referee) -> None:
        super().__init__()
        self._judge = judge

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found = super().fetch(group, partitions)
        self._judge.read(group, found)
        return found

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Failure]:
        failures = super().commit(group, offsets)
        self._judge.took_effect(group, {p: o for p, o in offsets.items() if p not in failures})
        return failures


class Referee(ABC):
    """Watches one coordinator at a time."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        """Counts of the situations that a simulation is meant to reach."""
        self._orders = 0
        self._sent: dict[str, SentRequest] = {}
        """The last request of each group."""
        self._learned: set[str] = set()
        """Groups whose last answer has been looked at."""
        self._unread: dict[str, set[TopicPartition]] = defaultdict(set)
        self._violation: str | None = None

    def begin(self, system: SimSystem) -> None:
        self._system = system

    def follow(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self._sent.clear()
        self._learned.clear()
        self._unread.clear()

    def blame(self, what: str) -> None:
        """Remember the first violation: inside of an actor, raising it would only crash that."""
        if self._violation is None:
            self._violation = f"{what} (at {self._system.clock.now():.3f} s)"

    def now(self) -> float:
        return self._system.clock.now()

    def check(self) -> None:
        if self._violation is not None:
            raise ViolationError(self._violation)

    def next_order(self) -> int:
        self._orders += 1
        return self._orders

    def sent(self, request: SentRequest) -> None:
        group = request.group
        self.learn_answer(group)
        self._sent[group] = request
        self._learned.discard(group)
        if self._coordinator.most_in_flight[group] > 1:
            self.blame(f"{group}: two requests in flight: {request}")
        unread = self._unread[group].intersection(request.offsets)
        if unread:
            self.blame(f"{group}: after an unknown outcome {unread} was written before it was read")

    def learn_answer(self, group: str) -> None:
        """Look once at the answer to the last request: what is unknown has to be read."""
        last = self._sent.get(group)
        if last is None or group in self._learned or not last.future.done():
            return
        self._learned.add(group)
        answer = last.future.get(timeout=0)
        unread, failures = self._unread[group], getattr(answer, "failures", {})
        refused = {p for p, failure in failures.items() if not failure.info.retriable}
        if isinstance(answer, CommitResult):
            unread.update(p for p, f in failures.items() if f.info.verdict is Verdict.UNKNOWN)
        elif isinstance(answer, FetchResult):
            unread.difference_update(answer.offsets)
            # What may not be read would be waited for forever.
            unread.difference_update(refused)
        for partition in refused:
            self.refused(ManagerKey(group, *partition))

    @abstractmethod
    def refused(self, key: ManagerKey) -> None:
        """The committer was refused a commit or a read for good.

        What would put an offset right is not tried again for a manager that is gone.
        """

    def saw_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Count what takes effect now, and how; whether its request had been given up before."""
        late = self.is_late(group, offsets)
        whole = late or self._sent[group].offsets.keys() == offsets.keys()
        self.met["effect: " + ("late" if late else "whole" if whole else "half")] += 1
        return late

    def is_late(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """True if a commit that takes effect now was given up before."""
        last = self._sent.get(group)
        if last is None or not self._coordinator.in_flight(group):
            return True
        return any(last.offsets.get(partition) != value for partition, value in offsets.items())

    @abstractmethod
    def read(self, group: str, found: Collection[TopicPartition]) -> None:
        """A fetch is answered by the broker."""

    @abstractmethod
    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The broker holds ``offsets`` now."""
