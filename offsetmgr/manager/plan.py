"""Decides what the committer of a group asks of the coordinator next.

No actor, clock or Kafka: methods take ``now`` and return what to send.  The rules:

- One request is in flight, always, reads included; a read does not make a due commit wait twice.
- A commit takes everything dirty that is not blocked by a read or by a back-off of its own.
- An error of the whole group backs the group off.  What was due before an error is due after the
  back-off, not an interval later.
- Now and then all commits are verified, right before a commit that is due, because that commit
  would hide external changes.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.coordinator.logs import refusal, unreadable
from offsetmgr.errors import Verdict
from offsetmgr.manager.events import Committed, Read, ReadFailed, Recreated, Refused, Unknown
from offsetmgr.manager.offset_manager import Phase, Version
from offsetmgr.manager.step import next_version
from offsetmgr.types import new_tuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
    from offsetmgr.coordinator.logs import TopicId
    from offsetmgr.manager.events import Effects, Event
    from offsetmgr.manager.offset_manager import Group, OffsetManager
    from offsetmgr.manager.timing import Timing
    from offsetmgr.types import TopicPartition


_STOPPED: Final = Phase.STOPPED  # to get an enum's member takes a call in Python 3.11


class ReadRequest(NamedTuple):
    """Read what is committed: initial offsets, unknown outcomes, or whether commits still stand."""

    managers: tuple[OffsetManager, ...]
    """The managers that ask: a new one may take a partition over meanwhile."""
    verifies: bool = False
    """True if the ends of their logs are to be looked at as well."""


class CommitRequest(NamedTuple):
    """Commit these, and nothing else meanwhile."""

    managers: Mapping[OffsetManager, Version]
    """The version of each manager."""


GroupRequest: TypeAlias = ReadRequest | CommitRequest


def forbidden(request: GroupRequest, ids: Mapping[str, TopicId]) -> dict[TopicPartition, Failure]:
    """Return the partitions of topics whose id forbids to read or commit them."""
    commits = isinstance(request, CommitRequest)
    failures: dict[TopicPartition, Failure] = {}
    for manager in request.managers:
        topic, topic_id = manager.key.topic, manager.topic_id
        found = ids.get(topic)
        if found is not None and found != topic_id:
            why = refusal(topic, topic_id, found) if commits else unreadable(found)
            if why is not None:
                failures[manager.topic_partition] = why
    return failures


class Retry:
    """Consecutive failures of the whole group, and the time of the next try."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0
        self.not_before = -inf

    def forgive(self) -> None:
        """Let it be tried at once."""
        self._failures, self.not_before = 0, -inf

    def enter(self, now: float, *, failed: bool) -> None:
        """Back off after a failure; forgive after a success."""
        if failed:
            self._failures += 1
            self.not_before = now + self._timing.backoff_s(self._failures)
        else:
            self._failures, self.not_before = 0, -inf


class CommitPlan:
    """The open work of one group: indexes of its managers by what they wait for."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.managers: dict[TopicPartition, OffsetManager] = {}
        """The live managers, and stopped ones while a commit of theirs may still land."""
        self.in_flight: GroupRequest | None = None
        """Set by the caller."""
        self._dirty: dict[OffsetManager, None] = {}
        self._to_read: dict[OffsetManager, None] = {}
        self.to_look: dict[OffsetManager, None] = {}
        self._commit_at = inf
        """Time to look for managers to commit; never later than the first is due."""
        self._commits = Retry(timing)
        self._reads = Retry(timing)
        self._check_at = inf
        """Time to look for managers that have to be read; never later than the first is due."""
        self._verify_at = inf
        self._verify_not_before = -inf
        self._read_last = False

    # Managers.

    def collect(self, group: Group, now: float) -> None:
        """Empty the queue of the group, whose lock must be held, into the indexes."""
        queue, since = group.queue, group.since
        group.queue, group.since = [], None
        since_s, fetching = now if since is None else since, Phase.FETCHING
        due_at = since_s + self._timing.commit_interval_s
        for manager in queue:
            # It counts as queued as long as it is dirty.
            dirty = manager.queued = manager.number > manager.settled
            if not dirty:
                manager.rewind_number = 0  # a rewind to what is committed permits nothing later
            if manager.phase is _STOPPED:
                continue
            if manager.phase is fetching:
                if manager.read_at == inf:
                    self._admit(manager, now)
                    failures = manager.read_failures
                    manager.read_at = now + (self._timing.backoff_s(failures) if failures else 0.0)
                self.index(manager)
                continue
            if manager.suspect:
                manager.suspect, manager.read_at = False, min(manager.read_at, now)
                self.index(manager)
            if dirty:
                manager.recommit = False
                if due_at < manager.commit_at:
                    manager.commit_at = due_at
                    self.index(manager)

    def _admit(self, manager: OffsetManager, now: float) -> None:
        """Let a manager take over from one that stopped, with the commits that may still land."""
        former = self.managers.get(manager.topic_partition)
        if former is manager:
            return
        self.managers[manager.topic_partition] = manager
        every_s = self._timing.verify_interval_s
        if every_s and self._verify_at == inf:
            # Groups that begin together do not verify together.
            self._verify_at = now + every_s * (0.5 + self._timing.rng.random() / 2)
        if former is not None:
            manager.topic_id, manager.committed = former.topic_id, former.committed
            manager.in_doubt, manager.former_commits = former.in_doubt, former.former_commits
            manager.doubted_since, manager.verify_at = former.doubted_since, former.verify_at
            former.in_doubt, former.commit_at = (), inf
            former.read_at = former.look_at = inf
            former.stray = False
            self.index(former)

    def index(self, manager: OffsetManager) -> None:
        """Enter what a manager waits for, after each of its steps."""
        # Runs three times in each commit of each manager.
        if manager.commit_at < inf:
            self._dirty[manager] = None
            if manager.commit_at < self._commit_at:  # noqa: PLR1730 -- faster than min
                self._commit_at = manager.commit_at
        else:
            self._dirty.pop(manager, None)
        if manager.read_at < inf:
            self._to_read[manager] = None
        elif self._to_read:
            self._to_read.pop(manager, None)
        if manager.look_at < inf:
            self.to_look[manager] = None
        elif self.to_look:
            self.to_look.pop(manager, None)
        if manager.recommit_at < self._check_at or manager.verify_at < self._check_at:
            self._check_at = min(manager.verify_at, manager.recommit_at)
        if manager.phase is _STOPPED:
            self._end(manager)

    def clear(self) -> None:
        """Empty the indexes: each manager that is left has to be entered again."""
        for index in (self._dirty, self._to_read, self.to_look):
            index.clear()

    def _end(self, manager: OffsetManager) -> None:
        """Forget a stopped manager if nothing has to be done for it any more."""
        busy = manager.in_doubt or manager.commit_at < inf or manager.blocked
        flight = self.in_flight
        if busy or (isinstance(flight, CommitRequest) and manager in flight.managers):
            return
        if self.managers.get(manager.topic_partition) is manager:
            del self.managers[manager.topic_partition]

    def expedite(self, managers: Iterable[OffsetManager]) -> None:
        """Forgive past errors of the group once, as a caller waits for ``managers``.

        Those of reads only where one of these has to be read first.
        """
        self._commits.forgive()
        if not self._to_read.keys().isdisjoint(managers):
            self._reads.forgive()

    # The next request.

    def next_request(
        self, now: float
    ) -> tuple[GroupRequest | None, list[tuple[OffsetManager, Effects]]]:
        """Return the request to send now, and effects on managers that need none.

        None must be in flight, and the group's lock must be held.
        """
        effects: list[tuple[OffsetManager, Effects]] = []
        request: GroupRequest | None = None if self._read_last else self._read(now)
        if request is None and now >= self._commit_at and now >= self._commits.not_before:
            request = self._commit(now, effects)
        if request is None and self._read_last:
            request = self._read(now)
        if request is not None:
            self._read_last = isinstance(request, ReadRequest)
        return request, effects

    def wake_at(self) -> float:
        """Return when to ask again though nothing happened; ``inf`` for never."""
        read_at = min((manager.read_at for manager in self._to_read), default=inf)
        look_at = min((manager.look_at for manager in self.to_look), default=inf)
        return min(
            look_at,
            max(read_at, self._reads.not_before),
            max(self._commit_at, self._commits.not_before),
            max(min(self._check_at, self._verification_at()), self._verify_not_before),
        )

    def _commit(
        self, now: float, effects: list[tuple[OffsetManager, Effects]]
    ) -> CommitRequest | None:
        """Return everything dirty that may be tried."""
        versions: dict[OffsetManager, Version] = {}
        for manager in tuple(self._dirty):
            if manager.read_at < inf or manager.look_at < inf:  # ``blocked``, without a call
                continue
            if manager.commit_failures and manager.commit_at > now:
                continue
            found = next_version(manager, now)
            if isinstance(found, Version):
                manager.commit_at = now
                versions[manager] = found
                continue
            effects.append((manager, found))
            self.index(manager)
        self._commit_at = inf
        if len(versions) < len(self._dirty):
            left = (m.commit_at for m in self._dirty if m not in versions and not m.blocked)
            self._commit_at = min(left, default=inf)
        return CommitRequest(versions) if versions else None

    def _read(self, now: float) -> ReadRequest | None:
        """Return first what must precede a commit, then verifications."""
        if self._to_read and now >= self._reads.not_before:
            ready = tuple(manager for manager in self._to_read if manager.read_at <= now)
            if ready:
                return ReadRequest(ready)
        if now < self._verify_not_before:
            return None
        request: ReadRequest | None = None
        if now >= self._verify_at and now >= self._verification_at():
            request = self._verify(now)
        if request is None and now >= self._check_at:
            request = self._check(now)
        return request

    def next_look(self, now: float) -> list[OffsetManager]:
        """Return the managers whose logs are to be looked at now; again without an answer."""
        due = [manager for manager in self.to_look if manager.look_at <= now]
        for manager in due:
            manager.look_at = now + self._timing.request_timeout_s
        return due

    # Verification.

    def _verification_at(self) -> float:
        """Return when to verify.

        A foreign offset stands until the next commit covers it, so a verification that is due
        waits for that commit, at most an interval, and goes right before it.
        """
        commit_at = max(self._commit_at, self._commits.not_before)
        latest_at = self._verify_at + self._timing.commit_interval_s
        return max(self._verify_at, min(commit_at, latest_at))

    def _verify(self, now: float) -> ReadRequest | None:
        """Read whether all that was committed stands, and whether its topics are the same."""
        if all(manager.phase is _STOPPED for manager in self.managers.values()):
            self._verify_at = inf
            return None
        self._verify_at = now + self._timing.verify_interval_s
        ready = tuple(manager for manager in self.managers.values() if not manager.blocked)
        return ReadRequest(ready, verifies=True) if ready else None

    def _check(self, now: float) -> ReadRequest | None:
        """Read single partitions: commits in doubt, and old ones."""
        times = {m: min(m.verify_at, m.recommit_at) for m in self.managers.values()}
        self._check_at = min(times.values(), default=inf)
        due = tuple(manager for manager, at in times.items() if at <= now)
        return ReadRequest(due) if due else None

    # Answers.

    def committed(
        self, request: CommitRequest, result: CommitResult, now: float, *, failed: bool
    ) -> Iterator[tuple[OffsetManager, Event]]:
        """Have the group back off if it ``failed`` as a whole; return each manager's event.

        The heir of a stopped one gets its doubt.
        """
        self._commits.enter(now, failed=failed)
        failures = result.failures
        for manager, version in request.managers.items():
            failure = failures.get(manager.topic_partition) if failures else None
            unknown = failure is not None and failure.info.verdict is Verdict.UNKNOWN
            heir = self.heir(manager) if manager.phase is _STOPPED else None
            if heir is not None:
                if unknown:
                    heir.doubt(version, now)
                    self.index(heir)
            elif failure is None:
                yield manager, new_tuple(Committed, (version,))
            else:
                yield manager, (Unknown if unknown else Refused)(version, failure)

    def read(
        self,
        request: ReadRequest,
        result: FetchResult,
        ids: Mapping[str, TopicId],
        now: float,
        *,
        failed: bool,
    ) -> Iterator[tuple[OffsetManager, Event]]:
        """Have the group back off if it ``failed`` as a whole; return each manager's event.

        ``ids`` are those of the topics, as they were just before.
        """
        if not failed or not self._to_read.keys().isdisjoint(request.managers):
            self._reads.enter(now, failed=failed)
        self._verify_not_before = now + self._timing.backoff_max_s if failed else -inf
        existing = {topic: each for topic, each in ids.items() if isinstance(each, str)}
        for manager in request.managers:
            if manager.phase is _STOPPED and self.heir(manager) is not None:
                continue
            partition, topic = manager.topic_partition, manager.key.topic
            failure, found = result.failures.get(partition), result.offsets.get(partition)
            known = existing.get(topic)
            if failure is not None:
                yield manager, ReadFailed(failure)
            elif known and manager.topic_id and known != manager.topic_id:
                yield manager, Recreated(found, known)
            else:
                yield manager, new_tuple(Read, (found, known, topic in existing))

    def heir(self, manager: OffsetManager) -> OffsetManager | None:
        """Return the manager that has taken the partition over from a stopped one, if any."""
        heir = self.managers.get(manager.topic_partition)
        return None if heir is manager else heir
