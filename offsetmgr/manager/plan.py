"""Decides what the committer of a group asks of the coordinator next, and what answers mean.

No actor, no clock, no Kafka: methods take ``now`` and return what to do.  The rules:

- One request is in flight, always, reads included; a read does not make a due commit wait twice.
- The outcome of a commit is committed, refused or unknown; after an unknown outcome the partition
  is read before it is written again.
- A refused partition backs off alone, in reads as in commits; an error of the whole group backs the
  group off.  What was due before an error is due after the back-off, not an interval later.
- A permanent refusal suspends the partition until something new is submitted: it stays dirty.
- Now and then all commits are verified, right before a commit that is due; an urgent commit goes
  first, unless urgent ones have kept the verification waiting for an interval.  A commit in doubt
  that landed behind a newer one is corrected, and an external change is reported and followed.
- Unchanged offsets are read and committed again before the broker's retention expires them.
"""

from __future__ import annotations

from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Final

from offsetmgr.codes import TOPIC_RECREATED
from offsetmgr.errors import Scope, Verdict
from offsetmgr.manager.backoff import Backoff
from offsetmgr.manager.dirty_set import DirtySet
from offsetmgr.manager.history import Found, same
from offsetmgr.manager.log_ends import LogEnds
from offsetmgr.manager.reads import Reads
from offsetmgr.manager.requests import (
    BATCH_LIMIT,
    CommitRequest,
    InitialFailed,
    InitialKnown,
    InitialRequest,
    Noticed,
    ReadRequest,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.submits import GroupSubmits, SubmitBuffer, Version
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult, TopicLog
    from offsetmgr.manager.dirty_set import Dirty
    from offsetmgr.manager.history import CommitHistory
    from offsetmgr.manager.log_ends import LogsRequest
    from offsetmgr.manager.requests import Member, Request, Result, Results
    from offsetmgr.types import OffsetAndMetadata

_NOWHERE: Final = TopicPartition("gone", 0)


class Departed:
    """Stands in for a manager that is gone, while a commit in doubt of it is verified."""

    def __init__(self) -> None:
        self.submits = SubmitBuffer(GroupSubmits("gone"), _NOWHERE)

    def acknowledge(self, version: Version, now: float) -> None:
        """There is nobody to publish it to."""


class CommitPlan:
    """The open work of one group; see the module's text for its rules."""

    def __init__(self, settings: CommitSettings, rng: Random, history: CommitHistory) -> None:
        self._settings = settings
        self._rng = rng
        self._history = history
        self._backoff = Backoff(settings, rng)
        self._members: dict[TopicPartition, Member] = {}
        self._departed: set[TopicPartition] = set()
        self._reads = Reads(self._backoff)
        self._dirty = DirtySet(settings.commit_interval_s)
        self._log_ends = LogEnds()
        self._verify_at = inf
        self._to_verify: list[TopicPartition] = []  # the rest of a verification
        self._read_last = False
        for partition in history.partitions_in_doubt:
            # After a crash: what was to be read, and so verified, is not known any more.
            self._keep_departed(partition)
            if partition in self._members:
                self._reads.awaiting[partition] = self._members[partition]

    @property
    def over(self) -> bool:
        """True if no manager is left, nor any commit to verify."""
        return not self._members and not self._history.partitions_in_doubt

    # Managers.

    def attach(self, members: Mapping[TopicPartition, Member]) -> None:
        """Serve managers whose initial offset is wanted: new ones, or restarted ones."""
        for partition, member in members.items():
            if self._members.get(partition) is not member:
                self._forget(partition)
            if not member.submits.established:
                self._history.arrive(partition)
        self._expect_initial(members)

    def detach(self, partition: TopicPartition, now: float) -> None:
        """The manager is gone; what it did not commit is in its answer."""
        self._members.pop(partition, None)
        self._forget(partition)
        self._history.depart(partition, now)
        self._keep_departed(partition)

    def recover(self, members: Mapping[TopicPartition, Member], now: float) -> None:
        """Begin again after a crash: read all that is committed, then commit all that is dirty."""
        self._expect_initial(members)
        for partition, member in members.items():
            if member.submits.dirty and member.submits.established:
                self.mark_dirty(partition, now)

    def _expect_initial(self, members: Mapping[TopicPartition, Member]) -> None:
        self._departed.difference_update(members)
        self._members.update(members)
        self._reads.awaiting.update(members)

    def _forget(self, partition: TopicPartition) -> None:
        self._dirty.remove(partition)
        self._reads.forget(partition)
        self._log_ends.forget(partition)

    def _keep_departed(self, partition: TopicPartition) -> None:
        """Keep verifying what a manager that is gone committed, while a commit may land on it."""
        if self._history.doubts(partition) and self._history.committed(partition) is not None:
            self._members[partition] = Departed()
            self._departed.add(partition)

    def _end_departed(self) -> None:
        for partition in tuple(self._departed):
            open_work = partition in self._dirty or self._reads.must_precede(partition)
            if not open_work and not self._history.doubts(partition):
                self._departed.discard(partition)
                del self._members[partition]
                self._forget(partition)
                self._history.drop(partition)

    # Submits.

    def mark_dirty(self, partition: TopicPartition, since: float, *, urgent: bool = False) -> None:
        """There is something to commit, submitted at ``since``; at once where ``urgent``."""
        if partition in self._members and partition not in self._departed:
            self._dirty.mark(partition, -inf if urgent else since)

    def expedite(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """A caller waits, for ``partitions`` or, with None, for all.

        What is dirty is due now, and past errors are forgiven once; those of reads only where one
        of these has to be read first.
        """
        self._dirty.expedite()
        if partitions is None or (
            self._reads.open and any(map(self._reads.must_precede, partitions))
        ):
            self._reads.forgive()

    # The next request.

    def next_request(self, now: float) -> tuple[Request | None, Results]:
        """Return the request to send now, and results that needed none; none is in flight."""
        results: Results = []
        self._end_departed()
        due = self._dirty.urgent or now >= self._dirty.due_at
        commit_first = due and self._read_last
        read = self._reads.request(self._members, now)
        if read is None and not commit_first:
            read = self._verify(now) or (self._late_check(now) if due else None)
        if read is not None and not commit_first:
            self._read_last = True
            return read, results
        commit = self._commit(now, results) if due else None
        if commit is not None:
            self._read_last = False
            return commit, results
        return read or self._check(now), results

    def wake_at(self) -> float:
        """Return when to ask again though nothing happened; ``inf`` for never."""
        dirty_at = self._dirty.due_at
        verify_at = self._not_failing(self._verification_at(dirty_at))
        return min(self._reads.next_at(), dirty_at, self._check_at(), verify_at)

    def logs_to_read(self) -> LogsRequest | None:
        """Return which logs' ends to read now, beside the one request that is in flight."""
        return self._log_ends.to_read()

    def met_by_recent(self, logs: Mapping[str, TopicLog]) -> bool:
        """Return True if these, though older, will do for what the ends are to be read for."""
        return self._log_ends.met_by(logs)

    def _commit(self, now: float, results: Results) -> CommitRequest | None:
        """Everything dirty that may be tried; computes anew when the rest is due."""
        dirty = self._dirty
        dirty.urgent = False
        dirty.due_at = inf
        versions: dict[TopicPartition, Version] = {}
        reading = self._reads.open
        blocked = now < dirty.group.not_before
        for partition, entry in dirty.entries():
            if reading and self._reads.must_precede(partition):
                continue  # due again when it has been read
            if blocked or now < entry.not_before or len(versions) == BATCH_LIMIT:
                dirty.expect(entry)
                continue
            version = self._to_commit(partition, entry, results, now)
            if version is None:
                dirty.remove(partition)
            else:
                entry.since = -inf
                versions[partition] = version
        if not versions:
            return None
        return CommitRequest(versions, {each: self._members[each] for each in versions})

    def _to_commit(
        self, partition: TopicPartition, entry: Dirty, results: Results, now: float
    ) -> Version | None:
        if entry.recommit:
            return self._history.committed(partition)
        submits = self._members[partition].submits
        while True:
            version = submits.uncommitted
            if version is None:
                return None
            if self._history.stands(partition, version.value):
                if submits.rewinds:
                    self._history.forget_external(partition)
                clean = self._publish(partition, version, now)
                results.append((partition, VersionCommitted(version, clean)))
                continue
            refusal = None
            if not submits.rewinds:
                refusal = self._history.refusal(partition, version.value.offset)
            if refusal is None:
                return version
            final = submits.suspend(version.number)
            results.append((partition, VersionFailed(version, refusal, final)))
            if final:
                return None

    # Verification.

    def _not_failing(self, at: float) -> float:
        return max(at, self._reads.verify_not_before)

    def _verification_at(self, commit_at: float) -> float:
        """Return when to verify, where the next commit is due at ``commit_at``.

        A foreign offset stands until the next commit covers it, so a verification that is due
        waits for that commit, at most an interval, and goes right before it.
        """
        if self._to_verify:
            return -inf
        return max(self._verify_at, min(commit_at, self._verify_at + self._interval_s))

    @property
    def _interval_s(self) -> float:
        return self._settings.commit_interval_s

    def _verify(self, now: float) -> ReadRequest | None:
        """Read whether all that was committed stands, where it is time."""
        if len(self._members) == len(self._departed):
            self._verify_at, self._to_verify = inf, []
            return None
        every_s = self._settings.verify_interval_s
        if self._verify_at == inf and every_s:
            # Groups that begin together do not verify together.
            self._verify_at = now + every_s * (0.5 + self._rng.random() / 2)
        commit_at = inf if self._dirty.urgent else self._dirty.due_at
        at = self._not_failing(self._verification_at(commit_at))
        if now < max(at, self._after_urgent_at()):
            return None
        if not self._to_verify:
            self._to_verify = self._history.partitions()
            self._verify_at = now + every_s
        taken = self._to_verify[-BATCH_LIMIT:]
        del self._to_verify[-BATCH_LIMIT:]
        members = {
            partition: self._members[partition]
            for partition in taken
            if partition in self._members and not self._reads.must_precede(partition)
        }
        committed = {partition: self._history.committed(partition) for partition in members}
        self._log_ends.check({p: version for p, version in committed.items() if version})
        return ReadRequest(members) if members else None

    def _after_urgent_at(self) -> float:
        """Return when a verification may go before a commit that a caller waits for.

        One that is not answered holds the commit up for its whole time-out.
        """
        if not self._dirty.urgent:
            return -inf
        return self._reads.failed_at + self._settings.retry_backoff_max_s

    def _check_at(self) -> float:
        """Return when single partitions have to be read: commits in doubt, and old ones."""
        recommit_at = self._history.recommit_at(self._settings.recommit_interval_s)
        return self._not_failing(min(self._history.verify_in_doubt_at(), recommit_at))

    def _check(self, now: float) -> ReadRequest | None:
        if now < self._check_at():
            return None
        old = self._history.to_recommit(self._settings.recommit_interval_s, now)
        wanted = dict.fromkeys(islice(chain(self._history.to_verify(now), old), BATCH_LIMIT))
        members = {each: self._members[each] for each in wanted if each in self._members}
        for partition in wanted.keys() - members.keys():
            # A successor, if one comes, has to know for a while what may land there.
            self._history.verified(partition, now, again=False)
        return ReadRequest(members) if members else None

    def _late_check(self, now: float) -> ReadRequest | None:
        """A check that commits have kept waiting for an interval: there may always be one due."""
        late_at = self._check_at() + self._interval_s
        return self._check(now) if now >= max(late_at, self._after_urgent_at()) else None

    # Answers: initial offsets.

    def initial_read(self, request: InitialRequest, result: FetchResult, now: float) -> Results:
        """Enter initial offsets; the failed ones are read again after a back-off."""
        results: Results = []
        for partition, member in request.members.items():
            if self._reads.awaiting.get(partition) is not member:
                continue
            failure = result.failures.get(partition)
            if failure is not None:
                results.append((partition, InitialFailed(failure)))
                continue
            del self._reads.awaiting[partition]
            found = self._start(partition, result.offsets.get(partition), now, results)
            results.append((partition, InitialKnown(found)))
            self._dirty.expect(self._dirty.get(partition))
        self._reads.answered(request.members, result, now)
        return results

    def _start(
        self,
        partition: TopicPartition,
        found: OffsetAndMetadata | None,
        now: float,
        results: Results,
    ) -> OffsetAndMetadata | None:
        """Return what is committed, for a manager that starts or was restarted."""
        history = self._history
        kind, version = history.judge(partition, found)
        history.was_read(partition, now)
        last = history.committed(partition)
        established = self._members[partition].submits.established
        if kind is Found.EXTERNAL and last is not None and established:
            results.append((partition, self._follow(partition, last, found, now)))
            return found
        if kind is Found.OLDER and last is not None:
            self._correct(partition, last)
            return last.value
        if found is None:
            history.drop(partition)
        elif version is None:
            history.commit_initial(partition, found, now)
        elif kind is not Found.STANDS:
            history.commit(partition, version, now)
        return found

    # Answers: unknown outcomes and verifications.

    def read(self, request: ReadRequest, result: FetchResult, now: float) -> Results:
        """Enter the outcome of commits, and whether verified ones still stand."""
        results: Results = []
        for partition, member in request.members.items():
            if self._members.get(partition) is not member:
                continue
            failure = result.failures.get(partition)
            if failure is not None:
                entered: Result | None = self._not_read(partition, failure, now)
            else:
                entered = self._was_read(partition, result.offsets.get(partition), now)
            if entered is not None:
                results.append((partition, entered))
        self._reads.answered(request.members, result, now)
        return results

    def _not_read(
        self, partition: TopicPartition, failure: Failure, now: float
    ) -> VersionFailed | None:
        version = self._reads.unknown.get(partition)
        if version is None:
            if partition in self._departed and not failure.info.retriable:
                # Nobody is left for whom to try for ever.
                self._history.verified(partition, now, again=False)
            elif failure.info.scope is Scope.PARTITION:
                self._history.postpone(partition, now)
                self._history.was_read(partition, now)
            return None
        if failure.info.retriable:
            if failure.info.scope is Scope.PARTITION:
                self._history.postpone(partition, now)
            return None
        # It cannot be read, so waiting for it would wait for ever.
        del self._reads.unknown[partition]
        self._history.was_read(partition, now)
        return self._refused(partition, version, failure, now)

    def _was_read(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float
    ) -> Result | None:
        version = self._reads.unknown.pop(partition, None)
        if version is None:
            return self._verified(partition, found, now)
        entry = self._dirty.get(partition)
        result: Result | None = None
        if same(version.value, found):
            self._history.landed(partition, version)
            result = self._landed(partition, version, now)
        elif entry is not None and entry.recommit:
            # It was to be committed again because it stood; now something else may.
            self._dirty.remove(partition)
            result = self._verified(partition, found, now)
        else:
            last = self._history.committed(partition)
            if last is not None and self._history.judge(partition, found)[0] is Found.EXTERNAL:
                result = self._follow(partition, last, found, now)
            self._dirty.expect(self._dirty.get(partition))
        self._history.was_read(partition, now)
        return result

    def _verified(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float
    ) -> Result | None:
        history = self._history
        old = history.is_old(partition, self._settings.recommit_interval_s, now)
        last = history.committed(partition)
        kind, version = history.judge(partition, found)
        departed = partition in self._departed
        again = bool(self._settings.verify_interval_s) and not departed
        history.verified(partition, now, again=again)
        if kind is Found.NEWER and version is not None:
            newest = self._members[partition].submits.newest
            if newest is not None and newest.number == version.number:
                return self._landed(partition, version, now)
            history.commit(partition, version, now)
        elif last is None or (kind is Found.EXTERNAL and departed):
            history.drop(partition)
        elif kind is Found.EXTERNAL:
            return self._follow(partition, last, found, now)
        elif kind is Found.OLDER or old:
            # Entered as if it were new: until it is committed again nobody needs to look.
            history.commit(partition, last, now)
            if kind is Found.OLDER:
                self._correct(partition, last)
            else:
                self._dirty.mark_recommit(partition)
        return None

    def _follow(
        self,
        partition: TopicPartition,
        last: Version,
        found: OffsetAndMetadata | None,
        now: float,
    ) -> Noticed:
        """Somebody else committed ``found`` over ``last``."""
        submits = self._members[partition].submits
        failure = self._history.changed(partition, found)
        entry = self._dirty.get(partition)
        if entry is not None and entry.recommit:
            self._dirty.remove(partition)
        self._history.drop(partition)
        submits.follow(found)
        if found is not None:
            # Newer than what was committed here, not than what waits: that stays dirty.
            self._history.commit(partition, Version(submits.settled, found), now)
        return Noticed(failure, last.value, found)

    def _correct(self, partition: TopicPartition, last: Version) -> None:
        """A commit in doubt has landed behind ``last``: commit that again."""
        submits = self._members[partition].submits
        entry = self._dirty.mark_recommit(partition)
        if self._history.is_external(partition):
            newest = submits.uncommitted
            entry.recommit = newest is None or (
                not submits.rewinds
                and self._history.refusal(partition, newest.value.offset) is not None
            )
        elif submits.resubmit(last.number):
            self._history.drop(partition)
            entry.recommit = False

    # Answers: ends of logs.

    def logs_read(self, request: LogsRequest, logs: Mapping[str, TopicLog]) -> Results:
        """Report committed offsets outside their log, and topics that were made anew."""
        results: Results = []
        for partition, version, failure in self._log_ends.read(request, logs):
            last = self._history.committed(partition)
            if failure.info.code == TOPIC_RECREATED or last == version:
                committed = None if last is None else last.value
                results.append((partition, Noticed(failure, version.value, committed)))
        return results

    # Answers: commits.

    def committed(self, request: CommitRequest, result: CommitResult, now: float) -> Results:
        """Enter each partition as committed, refused or unknown."""
        # The history is complete before anything is published: an observer that fails must not
        # make what was committed here look like somebody else's.
        failures = result.failures
        for partition, version in request.versions.items():
            self._enter(request, partition, version, failures.get(partition), now)
        results: Results = []
        for partition, version in request.versions.items():
            if self._members.get(partition) is not request.members[partition]:
                continue
            failure = failures.get(partition)
            if failure is None:
                results.append((partition, self._settled(partition, version, now)))
            elif failure.info.verdict is Verdict.UNKNOWN:
                self._reads.unknown[partition] = version
                results.append((partition, VersionFailed(version, failure, final=False)))
            else:
                results.append((partition, self._refused(partition, version, failure, now)))
        group_wide = any(f.info.scope is Scope.GROUP for f in result.failures.values())
        self._backoff.pace(self._dirty.group, now, failed=group_wide)
        self._dirty.expect_all(request.versions)
        return results

    def _enter(
        self,
        request: CommitRequest,
        partition: TopicPartition,
        version: Version,
        failure: Failure | None,
        now: float,
    ) -> None:
        """Enter the outcome in the history; the manager may be gone by now."""
        served = self._members.get(partition) is request.members[partition]
        unknown = failure is not None and failure.info.verdict is Verdict.UNKNOWN
        if failure is None:
            if served:
                self._commit_ours(partition, version, now)
            elif partition in self._members:
                self._history.commit(partition, version, now)
        elif unknown:
            self._history.doubt(partition, version, now)
            if not served and partition in self._members:
                self._history.was_read(partition, now)
            elif not served:
                self._history.depart(partition, now)

    def _landed(self, partition: TopicPartition, version: Version, now: float) -> VersionCommitted:
        self._commit_ours(partition, version, now)
        return self._settled(partition, version, now)

    def _commit_ours(self, partition: TopicPartition, version: Version, now: float) -> None:
        last = self._history.committed(partition)
        if last != version:  # else theirs, committed again
            self._history.forget_external(partition)
        self._history.commit(partition, version, now)
        if version.number and (last is None or not last.number):
            # Burrow misses a partition whose only commit came before it knew the topic.
            self._history.recommit_soon(partition, now)

    def _settled(self, partition: TopicPartition, version: Version, now: float) -> VersionCommitted:
        clean = self._publish(partition, version, now)
        entry = self._dirty.get(partition)
        newer = not clean and entry is not None and not entry.recommit
        self._dirty.remove(partition)
        if newer:
            self._dirty.requeue(partition, now)
        return VersionCommitted(version, clean)

    def _publish(self, partition: TopicPartition, version: Version, now: float) -> bool:
        """Publish that ``version`` is committed; return True if nothing newer waits."""
        member = self._members[partition]
        try:
            member.acknowledge(version, now)
        finally:
            # What was published must not be committed again over somebody else's offset.
            clean = member.submits.settle(version.number)
        return clean

    def _refused(
        self, partition: TopicPartition, version: Version, failure: Failure, now: float
    ) -> VersionFailed:
        entry = self._dirty.get(partition)
        if failure.info.retriable:
            entry = entry or self._dirty.mark(partition, -inf)
            if failure.info.scope is Scope.PARTITION:
                self._backoff.pace(entry, now, failed=True)
            return VersionFailed(version, failure, final=False)
        final = self._members[partition].submits.suspend(version.number)
        recommit = entry is not None and entry.recommit
        last = self._history.committed(partition)
        if recommit and last is not None:
            # Not looped: its turn comes with the next verification.
            self._history.commit(partition, last, now)
        if recommit or final:
            self._dirty.remove(partition)
        elif entry is not None:
            # What is newer may fare no better: not at once, over and over.
            self._dirty.requeue(partition, now)
        return VersionFailed(version, failure, final)
