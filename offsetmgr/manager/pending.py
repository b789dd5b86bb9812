"""The partitions a group has to read and to commit, and when each may be tried."""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.errors import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import FetchResult
    from offsetmgr.manager.submits import SubmitBuffer, Version
    from offsetmgr.types import TopicPartition

_DOUBLINGS: Final = 16
"""Past this many the longest pause has long been reached; bounds the exponent."""


class PlanMember(Protocol):
    """A manager, as the plan sees it."""

    @property
    def submits(self) -> SubmitBuffer: ...

    @property
    def concerned(self) -> bool:
        """True if its actor has to hear of a success."""

    def acknowledge(self, version: Version, now: float) -> bool:
        """Publish that the coordinator holds ``version``; return True if nothing newer waits."""


class ReadRequest(NamedTuple):
    """Read what is committed: initial offsets, unknown outcomes, or whether commits still stand."""

    members: Mapping[TopicPartition, PlanMember]
    """The managers that asked: a new one may take a partition over meanwhile."""
    verified: Mapping[TopicPartition, Version]
    """Offsets to be compared with the ends of their logs, which are read beside."""


class CommitRequest(NamedTuple):
    """Commit these, and nothing else meanwhile."""

    versions: Mapping[TopicPartition, Version]
    members: Mapping[TopicPartition, PlanMember]
    """The managers whose versions they are."""


GroupRequest: TypeAlias = ReadRequest | CommitRequest


class Retry:
    """Consecutive failures, and the time of the next try."""

    attempts: int = 0
    not_before: float = -inf

    def forgive(self) -> None:
        """Let it be tried at once."""
        self.attempts, self.not_before = 0, -inf


class Backoff:
    """Exponential, with jitter, bounded; one for all requests of a group."""

    def __init__(self, settings: CommitSettings, rng: Random) -> None:
        self.longest_s = settings.retry_backoff_max_s
        self._first_s = settings.retry_backoff_s
        self._rng = rng

    def pace(self, retry: Retry, now: float, *, failed: bool) -> None:
        """Forgive after a success; after an error wait between half and the whole of the pause."""
        if not failed:
            retry.forgive()
            return
        pause = min(self.longest_s, self._first_s * 2 ** min(retry.attempts, _DOUBLINGS))
        retry.attempts += 1
        retry.not_before = now + pause * (0.5 + self._rng.random() / 2)


class Dirty(Retry):
    """A partition with something to commit, and its back-off after an error of its own."""

    def __init__(self, since: float, *, recommit: bool = False) -> None:
        self.since = since
        """Time of the submit; ``-inf`` once it was due: after an error only back-off counts."""
        self.recommit = recommit
        """True if the last committed version is to be committed again, not the newest one."""


class DirtySet:
    """Everything dirty of one group."""

    def __init__(self, commit_interval_s: float) -> None:
        self._commit_interval_s = commit_interval_s
        self.entries: dict[TopicPartition, Dirty] = {}
        self.group = Retry()
        """Back-off after an error of the whole group."""
        self._first_at = inf  # never later than the first entry is due

    @property
    def due_at(self) -> float:
        """Time to look for something to commit; ``inf`` for never."""
        return max(self._first_at, self.group.not_before)

    def take(self) -> list[tuple[TopicPartition, Dirty]]:
        """Return all entries; what is not committed now has to be expected again."""
        self._first_at = inf
        return list(self.entries.items())

    def mark(self, partitions: Sequence[TopicPartition], since: float) -> None:
        """The newest versions are to be committed; they wait since ``since``."""
        for partition in partitions:
            entry = self.entries.get(partition)
            if entry is None:
                self.entries[partition] = Dirty(since)
            else:
                entry.since = min(entry.since, since)
                entry.recommit = False
        if partitions:
            self._first_at = min(self._first_at, since + self._commit_interval_s)

    def mark_recommit(self, partition: TopicPartition) -> Dirty:
        """Commit the last committed version again, unless something newer is to be anyway."""
        entry = self.entries.get(partition)
        if entry is None:
            entry = self.entries[partition] = Dirty(-inf, recommit=True)
        self._expect(entry)
        return entry

    def remove(self, partition: TopicPartition) -> Dirty | None:
        return self.entries.pop(partition, None)

    def expedite(self) -> None:
        """Make everything due now, past errors forgiven once."""
        for entry in self.entries.values():
            entry.since = -inf
            entry.forgive()
        self.group.forgive()
        # Also for what is in flight now and turns out not to be the newest.
        self._first_at = -inf

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Look again no later than any of these is due that is still dirty."""
        if self.entries:
            for partition in partitions:
                entry = self.entries.get(partition)
                if entry is not None:
                    self._expect(entry)

    def _expect(self, entry: Dirty) -> None:
        due_at = max(entry.since + self._commit_interval_s, entry.not_before)
        self._first_at = min(self._first_at, due_at)


class OpenReads:
    """The reads that must precede a commit; a partition that cannot be read backs off alone."""

    def __init__(self, backoff: Backoff) -> None:
        self.awaiting: dict[TopicPartition, PlanMember] = {}
        """Managers whose initial offset is wanted."""
        self.unknown: dict[TopicPartition, Version] = {}
        """Commits with an unknown outcome."""
        self._backoff = backoff
        self._unreadable: dict[TopicPartition, Retry] = {}
        self._group = Retry()
        self.verify_not_before = -inf
        """Earliest time of the next verification; not expedited, as no caller waits for one."""

    @property
    def blocked(self) -> set[TopicPartition]:
        """The partitions that have to be read before they are written."""
        return self.unknown.keys() | self.awaiting.keys()

    def ready(self, now: float) -> list[TopicPartition]:
        """Return what to read now, with repetitions."""
        if now < self._group.not_before:
            return []
        return [each for each in self._wanted() if self._not_before(each) <= now]

    def next_at(self) -> float:
        """Return when there is something to read; ``inf`` for never."""
        first_at = min(map(self._not_before, self._wanted()), default=inf)
        return max(first_at, self._group.not_before)

    def _wanted(self) -> Iterable[TopicPartition]:
        return chain(self.unknown, self.awaiting)

    def _not_before(self, partition: TopicPartition) -> float:
        retry = self._unreadable.get(partition)
        return -inf if retry is None else retry.not_before

    def answered(
        self, members: Mapping[TopicPartition, PlanMember], result: FetchResult, now: float
    ) -> None:
        """Back off where the coordinator refused: the group, or single partitions."""
        failures = result.failures
        group_wide = any(f.info.scope is Scope.GROUP for f in failures.values())
        blocked = self.blocked
        if not group_wide or not blocked.isdisjoint(members):
            self._backoff.pace(self._group, now, failed=group_wide)
        self.verify_not_before = now + self._backoff.longest_s if group_wide else -inf
        for partition in members:
            failure = failures.get(partition)
            if failure is None:
                self._unreadable.pop(partition, None)
            elif failure.info.scope is Scope.PARTITION and partition in blocked:
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
