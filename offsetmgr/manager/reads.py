"""Reads that a group needs before it may write: initial offsets, and unknown outcomes."""

from __future__ import annotations

from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING

from offsetmgr.errors import Scope
from offsetmgr.manager.backoff import Retry
from offsetmgr.manager.requests import BATCH_LIMIT, InitialRequest, ReadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.coordinator.base import FetchResult
    from offsetmgr.manager.backoff import Backoff
    from offsetmgr.manager.requests import Member
    from offsetmgr.manager.submits import Version
    from offsetmgr.types import TopicPartition


class Reads:
    """The open reads of one group; a partition that cannot be read backs off alone."""

    def __init__(self, backoff: Backoff) -> None:
        self.awaiting: dict[TopicPartition, Member] = {}
        """Managers whose initial offset is wanted."""
        self.unknown: dict[TopicPartition, Version] = {}
        """Commits with an unknown outcome."""
        self.failed_at = -inf
        """When the last read failed for the whole group; ``-inf`` if it did not."""
        self._backoff = backoff
        self._unreadable: dict[TopicPartition, Retry] = {}
        self._group = Retry()
        self._background = Retry()
        """Back-off of verifications, which no caller waits for."""

    @property
    def not_before(self) -> float:
        """When anything may be read again, after an error of the whole group."""
        return self._group.not_before

    @property
    def verify_not_before(self) -> float:
        """The same for verifications; a caller that waits for a commit does not expedite them."""
        return max(self._group.not_before, self._background.not_before)

    @property
    def open(self) -> bool:
        """True if there is anything to read before something is written."""
        return bool(self.unknown or self.awaiting)

    def must_precede(self, partition: TopicPartition) -> bool:
        """Return True if the partition has to be read before it is written."""
        return partition in self.unknown or partition in self.awaiting

    def request(
        self, members: Mapping[TopicPartition, Member], now: float
    ) -> InitialRequest | ReadRequest | None:
        """Return what to read now: first unknown outcomes, then initial offsets."""
        if not (self.unknown or self.awaiting) or now < self._group.not_before:
            return None
        unknown = self._ready(self.unknown, members, now)
        if unknown:
            return ReadRequest(unknown)
        fresh = self._ready(self.awaiting, members, now)
        return InitialRequest(fresh) if fresh else None

    def _ready(
        self,
        wanted: Iterable[TopicPartition],
        members: Mapping[TopicPartition, Member],
        now: float,
    ) -> dict[TopicPartition, Member]:
        ready = (
            (partition, members[partition])
            for partition in wanted
            if partition not in self._unreadable or self._unreadable[partition].not_before <= now
        )
        return dict(islice(ready, BATCH_LIMIT))

    def next_at(self) -> float:
        """Return when there is something to read; ``inf`` for never."""
        if not (self.unknown or self.awaiting):
            return inf
        wanted = (
            self._unreadable[partition].not_before if partition in self._unreadable else -inf
            for partition in chain(self.unknown, self.awaiting)
        )
        return max(min(wanted, default=inf), self._group.not_before)

    def answered(
        self, members: Mapping[TopicPartition, Member], result: FetchResult, now: float
    ) -> None:
        """Back off where the coordinator refused: the group, or single partitions."""
        failures = result.failures
        group_wide = any(f.info.scope is Scope.GROUP for f in failures.values())
        if not group_wide or any(map(self.must_precede, members)):
            self._backoff.pace(self._group, now, failed=group_wide)
        self._backoff.pace(self._background, now, failed=group_wide)
        self.failed_at = now if group_wide else -inf
        for partition in members:
            failure = failures.get(partition)
            if failure is None:
                self._unreadable.pop(partition, None)
            elif failure.info.scope is Scope.PARTITION and self.must_precede(partition):
                retry = self._unreadable.setdefault(partition, Retry())
                self._backoff.pace(retry, now, failed=True)

    def forgive(self) -> None:
        """Try everything at once: a caller waits."""
        self._group.forgive()
        self._unreadable.clear()

    def forget(self, partition: TopicPartition) -> None:
        """The manager is gone."""
        for held in (self.awaiting, self.unknown, self._unreadable):
            held.pop(partition, None)
