"""Decides what the committer of a group asks of the coordinator next, and what answers mean.

No actor, no clock, no Kafka: methods take ``now`` and return what to do.  The rules:

- One request is in flight, always, reads included; a read does not make a due commit wait twice.
- The outcome of a commit is committed, refused or unknown; after an unknown outcome the partition
  is read before it is written again.
- A refused partition backs off alone, in reads as in commits; an error of the whole group backs the
  group off.  What was due before an error is due after the back-off, not an interval later.
- A permanent refusal suspends the partition until something new is submitted: it stays dirty.
- Now and then all commits are verified, right before a commit that is due.  A commit in doubt that
  landed behind a newer one is corrected, and an external change is reported and followed.
- Unchanged offsets are read and committed again before the broker's retention expires them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    Scope,
    Verdict,
)
from offsetmgr.manager.history import ReadOutcome, same
from offsetmgr.manager.lifecycle import CommitFailed, Committed, FetchFailed, Noticed
from offsetmgr.manager.log_ends import LogChecks
from offsetmgr.manager.pending import Backoff, CommitRequest, DirtySet, OpenReads, ReadRequest
from offsetmgr.manager.submits import GroupSubmits, SubmitBuffer, Version
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult, TopicLog
    from offsetmgr.manager.history import CommitHistory
    from offsetmgr.manager.pending import Dirty, GroupRequest, PlanMember

_NOWHERE: Final = TopicPartition("gone", 0)


class InitialKnown(NamedTuple):
    """A manager's initial offset."""

    committed: OffsetAndMetadata | None


Result: TypeAlias = InitialKnown | FetchFailed | Committed | CommitFailed | Noticed
Results: TypeAlias = list[tuple[TopicPartition, Result]]


class Departed:
    """Stands in for a manager that is gone, while a commit in doubt of it is verified."""

    def __init__(self) -> None:
        self.submits = SubmitBuffer(GroupSubmits("gone"), _NOWHERE)

    @property
    def concerned(self) -> bool:
        return False

    def acknowledge(self, version: Version, now: float) -> bool:
        """There is nobody to publish it to."""
        del version, now
        return True


class CommitPlan:
    """The open work of one group; see the module's text for its rules."""

    def __init__(
        self, group: str, settings: CommitSettings, rng: Random, history: CommitHistory
    ) -> None:
        self._group = group
        self._settings = settings
        self._rng = rng
        self._history = history
        self._backoff = Backoff(settings, rng)
        self._members: dict[TopicPartition, PlanMember] = {}
        self._departed: set[TopicPartition] = set()
        self._reads = OpenReads(self._backoff)
        self._dirty = DirtySet(settings.commit_interval_s)
        self._log_ends = LogChecks()
        self._verify_at = inf
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

    def attach(self, members: Mapping[TopicPartition, PlanMember]) -> None:
        """Serve managers whose initial offset is wanted: new ones, or restarted ones.

        After a crash of the committer all: what is dirty is marked once it has been read.
        """
        for partition, member in members.items():
            if self._members.get(partition) is not member:
                self._forget(partition)
            if not member.submits.established:
                self._history.forget_external(partition)
        self._departed.difference_update(members)
        self._members.update(members)
        self._reads.awaiting.update(members)

    def detach(self, partition: TopicPartition, now: float) -> None:
        """The manager is gone; what it did not commit is in its answer."""
        self._members.pop(partition, None)
        self._forget(partition)
        self._history.depart(partition, now)
        self._keep_departed(partition)

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
        busy = {*self._dirty.entries, *self._reads.blocked} if self._departed else ()
        for partition in tuple(self._departed):
            if partition not in busy and not self._history.doubts(partition):
                self._departed.discard(partition)
                del self._members[partition]
                self._forget(partition)
                self._history.drop(partition)

    # Submits.

    def mark_dirty(self, partitions: Iterable[TopicPartition], since: float) -> None:
        """There is something to commit, submitted at ``since``; ``-inf`` if a caller waits."""
        members, departed = self._members, self._departed
        self._dirty.mark([p for p in partitions if p in members and p not in departed], since)

    def expedite(self, partitions: Iterable[TopicPartition]) -> None:
        """A caller waits for ``partitions``: all is due now, and past errors are forgiven once.

        Those of reads only where one of these has to be read first.
        """
        self._dirty.expedite()
        blocked = self._reads.blocked
        if blocked and not blocked.isdisjoint(partitions):
            self._reads.forgive()

    # The next request.

    def next_request(self, now: float) -> tuple[GroupRequest | None, Results]:
        """Return the request to send now, and results that needed none; none is in flight."""
        self._end_departed()
        results: Results = []
        if self._read_last:
            request = self._commit(now, results) or self._read(now)
        else:
            request = self._read(now) or self._commit(now, results)
        if request is not None:
            self._read_last = isinstance(request, ReadRequest)
        return request, results

    def wake_at(self) -> float:
        """Return when to ask again though nothing happened; ``inf`` for never."""
        background_at = max(
            min(self._history.check_at, self._verification_at()), self._reads.verify_not_before
        )
        return min(self._reads.next_at(), self._dirty.due_at, background_at)

    def _read(self, now: float) -> ReadRequest | None:
        """First what must precede a commit, then verifications."""
        ready = self._reads.ready(now)
        if ready:
            return ReadRequest({each: self._members[each] for each in ready}, {})
        if now < self._reads.verify_not_before:
            return None
        return self._verify(now) or self._check(now)

    def _commit(self, now: float, results: Results) -> CommitRequest | None:
        """Everything dirty that may be tried."""
        if now < self._dirty.due_at:
            return None
        versions: dict[TopicPartition, Version] = {}
        blocked = self._reads.blocked
        for partition, entry in self._dirty.take():
            if partition in blocked:
                continue  # due again when it has been read
            if now < entry.not_before:
                self._dirty.expect([partition])
                continue
            version = self._to_commit(partition, entry, results, now)
            if version is None:
                self._dirty.remove(partition)
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
        member = self._members[partition]
        submits = member.submits
        while True:
            version = submits.uncommitted
            if version is None:
                return None
            if self._history.stands(partition, version.value):
                if submits.rewinds:
                    self._history.forget_external(partition)
                clean = member.acknowledge(version, now)
                results.append((partition, Committed(version, clean)))
                continue
            refusal = self._history.refusal(partition, version.value.offset)
            if refusal is None or submits.rewinds:
                return version
            final = submits.suspend(version.number)
            results.append((partition, self._failed(partition, version, refusal, final=final)))
            if final:
                return None

    # Verification.

    def _verification_at(self) -> float:
        """Return when to verify.

        A foreign offset stands until the next commit covers it, so a verification that is due
        waits for that commit, at most an interval, and goes right before it.
        """
        latest_at = self._verify_at + self._settings.commit_interval_s
        return max(self._verify_at, min(self._dirty.due_at, latest_at))

    def _verify(self, now: float) -> ReadRequest | None:
        """Read whether all that was committed stands, where it is time."""
        if len(self._members) == len(self._departed):
            self._verify_at = inf
            return None
        every_s = self._settings.verify_interval_s
        if self._verify_at == inf and every_s:
            # Groups that begin together do not verify together.
            self._verify_at = now + every_s * (0.5 + self._rng.random() / 2)
        if now < self._verification_at():
            return None
        self._verify_at = now + every_s
        blocked = self._reads.blocked
        members = {
            partition: self._members[partition]
            for partition in self._history.partitions()
            if partition in self._members and partition not in blocked
        }
        if not members:
            return None
        committed = {partition: self._history.committed(partition) for partition in members}
        return ReadRequest(members, {where: last for where, last in committed.items() if last})

    def _check(self, now: float) -> ReadRequest | None:
        """Read single partitions: commits in doubt, and old ones."""
        wanted = dict.fromkeys(self._history.to_check(now))
        for partition in wanted.keys() - self._members.keys():
            # Its manager ended while the actors rested after a crash.  A successor, if one comes,
            # has to know for a while what may land there.
            self._history.verified(partition, now, again=False)
            self._history.drop(partition)
        members = {each: self._members[each] for each in wanted if each in self._members}
        return ReadRequest(members, {}) if members else None

    # Answers: reads.

    def read(self, request: ReadRequest, result: FetchResult, now: float) -> Results:
        """Enter initial offsets, outcomes of commits, and whether verified ones still stand."""
        results: Results = []
        for partition in self._served(request.members):
            failure = result.failures.get(partition)
            if failure is None:
                self._was_read(partition, result.offsets.get(partition), now, results)
            else:
                self._not_read(partition, failure, now, results)
        self._reads.answered(request.members, result, now)
        self._dirty.expect(request.members)
        return results

    def _served(
        self, members: Mapping[TopicPartition, PlanMember]
    ) -> dict[TopicPartition, PlanMember]:
        """Return those of ``members`` that still have their partitions, in order."""
        now = self._members
        return {each: member for each, member in members.items() if now.get(each) is member}

    def _not_read(
        self, partition: TopicPartition, failure: Failure, now: float, results: Results
    ) -> None:
        history, version = self._history, self._reads.unknown.get(partition)
        retriable = failure.info.retriable
        if version is not None and not retriable:
            # It cannot be read, so waiting for it would wait for ever.
            del self._reads.unknown[partition]
            results.append((partition, self._refused(partition, version, failure, now)))
        if partition in self._reads.awaiting:
            key = (self._group, *partition)
            error = OffsetFetchError(*key, None, failure.info, failure.detail)
            results.append((partition, FetchFailed(error)))
        if partition in self._departed and not retriable:
            # Nobody is left for whom to try for ever.
            history.verified(partition, now, again=False)
        elif failure.info.scope is Scope.PARTITION:
            history.recommit_soon(partition, now)
            if version is None or not retriable:
                self._await_landing(partition, now)

    def _was_read(
        self,
        partition: TopicPartition,
        found: OffsetAndMetadata | None,
        now: float,
        results: Results,
    ) -> None:
        initial = self._reads.awaiting.pop(partition, None)
        version = self._reads.unknown.pop(partition, None)
        result: Result | None = None
        if version is not None:
            result = self._outcome_read(partition, version, found, now)
        elif initial is None:
            result = self._verified(partition, found, now)
        if result is not None:
            results.append((partition, result))
        if initial is not None:
            results.append((partition, InitialKnown(self._start(partition, found, now, results))))

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
        if kind is ReadOutcome.EXTERNAL and last is not None and established:
            results.append((partition, self._follow(partition, last, found, now)))
            return found
        if kind is ReadOutcome.OLDER and last is not None:
            self._correct(partition, last)
            return last.value
        if found is None:
            history.drop(partition)
        elif version is None:
            history.commit_initial(partition, found, now)
        elif kind is not ReadOutcome.STANDS:
            history.commit(partition, version, now)
        return found

    def _outcome_read(
        self,
        partition: TopicPartition,
        version: Version,
        found: OffsetAndMetadata | None,
        now: float,
    ) -> Result | None:
        entry, last = self._dirty.entries.get(partition), self._history.committed(partition)
        result: Result | None = None
        if same(version.value, found):
            self._history.landed(partition, version)
            result = self._landed(partition, version, now)
        elif entry is not None and entry.recommit:
            # It was to be committed again because it stood; now something else may.
            self._dirty.remove(partition)
            result = self._verified(partition, found, now)
        elif last is not None and self._history.judge(partition, found)[0] is ReadOutcome.EXTERNAL:
            result = self._follow(partition, last, found, now)
        self._await_landing(partition, now)
        return result

    def _verified(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float
    ) -> Result | None:
        history = self._history
        old = history.is_old(partition, now)
        last = history.committed(partition)
        kind, version = history.judge(partition, found)
        departed = partition in self._departed
        if departed and kind is ReadOutcome.OLDER:
            history.depart(partition, now)  # the correction may fail, so it is verified as well
        else:
            again = bool(self._settings.verify_interval_s) and not departed
            history.verified(partition, now, again=again)
        if kind is ReadOutcome.NEWER and version is not None:
            newest = self._members[partition].submits.newest
            if newest is not None and newest.number == version.number:
                return self._landed(partition, version, now)
            history.commit(partition, version, now)
        elif last is None or (kind is ReadOutcome.EXTERNAL and departed):
            history.drop(partition)
        elif kind is ReadOutcome.EXTERNAL:
            return self._follow(partition, last, found, now)
        elif kind is ReadOutcome.OLDER or old:
            # Entered as if it were new: until it is committed again nobody needs to look.
            history.commit(partition, last, now)
            if kind is ReadOutcome.OLDER:
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
        entry = self._dirty.entries.get(partition)
        if entry is not None and entry.recommit:
            self._dirty.remove(partition)
        self._history.drop(partition)
        submits.follow(found)
        if found is not None:
            # Newer than what was committed here, not than what waits: that stays dirty.
            self._history.commit(partition, Version(submits.settled, found), now)
        return self._notice(partition, last, failure, found)

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

    def logs_read(self, request: ReadRequest, logs: Mapping[str, TopicLog]) -> Results:
        """Report committed offsets outside their log, and topics that were made anew."""
        results: Results = []
        for partition, version in request.verified.items():
            log = logs.get(partition.topic)
            if log is None or self._members.get(partition) is not request.members[partition]:
                continue
            last = self._history.committed(partition)
            failures = [self._log_ends.recreated(partition, log)]
            if last == version:
                failures.append(self._log_ends.outside(partition, version.value.offset, log))
            committed = None if last is None else last.value
            results += [
                (partition, self._notice(partition, version, failure, committed))
                for failure in failures
                if failure is not None
            ]
        return results

    def _notice(
        self,
        partition: TopicPartition,
        before: Version,
        failure: Failure,
        committed: OffsetAndMetadata | None,
    ) -> Noticed:
        key, offset = (self._group, *partition), before.value.offset
        return Noticed(OffsetNoticeError(*key, offset, failure.info, failure.detail), committed)

    # Answers: commits.

    def committed(self, request: CommitRequest, result: CommitResult, now: float) -> Results:
        """Enter each partition as committed, refused or unknown."""
        # The history is complete before anything is published: an observer that fails must not
        # make what was committed here look like somebody else's.
        failures, served = result.failures, self._served(request.members)
        ours: dict[TopicPartition, Version] = {}
        for partition, version in request.versions.items():
            failure = failures.get(partition)
            if failure is not None and failure.info.verdict is Verdict.UNKNOWN:
                self._enter_unknown(partition, version, now, served=partition in served)
            elif failure is None and partition in served:
                ours[partition] = version
            elif failure is None and partition in self._members:
                self._history.commit(partition, version, now)
        self._history.commit_ours(ours, now)
        results: Results = []
        for partition, version in ours.items():
            clean = self._settle(partition, version, now)
            if not clean or self._members[partition].concerned:
                results.append((partition, Committed(version, clean)))
        for partition, failure in failures.items():
            if partition not in served:
                continue
            version = request.versions[partition]
            if failure.info.verdict is Verdict.UNKNOWN:
                self._reads.unknown[partition] = version
                failed = self._failed(partition, version, failure, final=False)
                results.append((partition, failed))
            else:
                results.append((partition, self._refused(partition, version, failure, now)))
        group_wide = any(f.info.scope is Scope.GROUP for f in result.failures.values())
        self._backoff.pace(self._dirty.group, now, failed=group_wide)
        self._dirty.expect(request.versions)
        return results

    def _enter_unknown(
        self, partition: TopicPartition, version: Version, now: float, *, served: bool
    ) -> None:
        self._history.doubt(partition, version, now)
        if not served:
            self._await_landing(partition, now)

    def _await_landing(self, partition: TopicPartition, now: float) -> None:
        """Verify commits in doubt once what the coordinator still holds has landed."""
        if partition in self._members and partition not in self._departed:
            self._history.was_read(partition, now)
        else:
            self._history.depart(partition, now)

    def _landed(self, partition: TopicPartition, version: Version, now: float) -> Committed:
        self._history.commit_ours({partition: version}, now)
        return Committed(version, self._settle(partition, version, now))

    def _settle(self, partition: TopicPartition, version: Version, now: float) -> bool:
        """Publish that ``version`` is committed; return True if nothing newer waits."""
        clean = self._members[partition].acknowledge(version, now)
        entry = self._dirty.remove(partition)
        if not clean and entry is not None and not entry.recommit:
            self._dirty.mark([partition], now)  # it waits for an interval of its own
        return clean

    def _refused(
        self, partition: TopicPartition, version: Version, failure: Failure, now: float
    ) -> CommitFailed:
        entry = self._dirty.entries.get(partition)
        if failure.info.retriable:
            if entry is None:
                self._dirty.mark([partition], -inf)
            if failure.info.scope is Scope.PARTITION:
                self._backoff.pace(self._dirty.entries[partition], now, failed=True)
            return self._failed(partition, version, failure, final=False)
        if partition in self._departed:
            self._history.give_up(partition)  # nobody is left for whom to try again
        final = self._members[partition].submits.suspend(version.number)
        recommit = entry is not None and entry.recommit
        last = self._history.committed(partition)
        if recommit and last is not None:
            # Not looped: its turn comes with the next verification.
            self._history.commit(partition, last, now)
        self._dirty.remove(partition)
        if entry is not None and not (recommit or final):
            # What is newer may fare no better: not at once, over and over.
            self._dirty.mark([partition], now)
        return self._failed(partition, version, failure, final=final)

    def _failed(
        self, partition: TopicPartition, version: Version, failure: Failure, *, final: bool
    ) -> CommitFailed:
        key, offset = (self._group, *partition), version.value.offset
        error = OffsetCommitError(*key, offset, failure.info, failure.detail)
        return CommitFailed(version, error, final)
