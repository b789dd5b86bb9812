"""What the coordinator's answers mean for a group: entered in its books, told as notes."""

from __future__ import annotations

from itertools import islice
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import Scope, Verdict
from offsetmgr.manager.ledger import Holding, same
from offsetmgr.manager.requests import (
    AllCommitted,
    CommitRequest,
    FetchRequest,
    InitialFailed,
    InitialKnown,
    Noticed,
    ReadBackRequest,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import Version, settle_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult, TopicLog
    from offsetmgr.manager.books import Books
    from offsetmgr.manager.bounds import LogsRequest
    from offsetmgr.manager.requests import Member, Note, Notes
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_number_of: Final = itemgetter(0)
"""The number of a version."""


def settled(member: Member, version: Version, now: float) -> bool:
    """The coordinator holds ``version`` of ``member``; True where nothing newer waits."""
    try:
        member.acknowledge(version, now)
    finally:
        # What was told must not be committed again over somebody else's offset.
        clean = member.slot.settle(version.number)
    return clean


class Outcomes:
    """Enters answers in the books of one group."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._settings = books.settings
        self._backoff = books.backoff
        self._ledger = books.ledger
        self._members = books.members
        self._reads = books.reads
        self._dirty = books.dirty

    # Initial offsets.

    def fetched(self, request: FetchRequest, result: FetchResult, now: float) -> Notes:
        """Initial offsets arrived; the failed ones are asked for again after a pause."""
        notes: Notes = []
        for partition, member in request.members.items():
            if self._reads.awaiting.get(partition) is not member:
                continue
            failure = result.failures.get(partition)
            if failure is not None:
                notes.append((partition, InitialFailed(failure)))
                continue
            del self._reads.awaiting[partition]
            found = self._started(partition, result.offsets.get(partition), now, notes)
            notes.append((partition, InitialKnown(found)))
            self._dirty.expect(self._dirty.get(partition))
        self._reads.answered(request.members, result, now)
        return notes

    def _started(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float, notes: Notes
    ) -> OffsetAndMetadata | None:
        """What is committed, for a manager that starts or was restarted."""
        holding, version = self._ledger.judge(partition, found)
        self._ledger.was_read(partition, now)
        kept = self._ledger.kept(partition)
        if holding is Holding.FOREIGN and kept and self._members[partition].slot.established:
            notes.append((partition, self._changed(partition, kept, found, now)))
            return found
        if holding is Holding.OLDER and kept is not None:
            self._put_back(partition, kept)
            return kept.value
        if found is None:
            self._ledger.drop(partition)
        elif version is None:
            self._ledger.inherit(partition, Version(0, found), now)
        elif holding is not Holding.STANDS:
            self._ledger.keep(partition, version, now)
        return found

    # Read-backs and checks.

    def read_back(self, request: ReadBackRequest, result: FetchResult, now: float) -> Notes:
        """Learn what became of unknown commits, and whether checked ones still stand."""
        notes: Notes = []
        for partition, member in request.members.items():
            if self._members.get(partition) is not member:
                continue
            failure = result.failures.get(partition)
            if failure is not None:
                note: Note | None = self._not_read(partition, failure, now)
            else:
                note = self._was_read(partition, result.offsets.get(partition), now)
            if note is not None:
                notes.append((partition, note))
        self._reads.answered(request.members, result, now)
        return notes

    def _not_read(
        self, partition: TopicPartition, failure: Failure, now: float
    ) -> VersionFailed | None:
        version = self._reads.unknown.get(partition)
        if version is None:
            gone = partition in self._books.watched
            if failure.info.scope is Scope.PARTITION or (gone and not failure.info.retriable):
                self._ledger.postpone(partition, now)
            return None
        if failure.info.retriable:
            if failure.info.scope is Scope.PARTITION:
                # It backs off alone; that it is due to be kept alive as well must not undo that.
                self._ledger.put_off(partition, now)
            return None
        # It cannot be read, so waiting for it would wait for ever.
        del self._reads.unknown[partition]
        self._ledger.was_read(partition, now)
        return self._refused(partition, version, failure, now)

    def _was_read(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float
    ) -> Note | None:
        version = self._reads.unknown.pop(partition, None)
        if version is None:
            return self._checked(partition, found, now)
        entry = self._dirty.get(partition)
        note: Note | None = None
        if same(version.value, found):
            self._ledger.prove(partition, version)
            note = self._landed(partition, version, now)
        elif entry is not None and entry.refresh:
            # It was to be committed again because it stood; now something else may.
            self._dirty.remove(partition)
            note = self._checked(partition, found, now)
        else:
            kept = self._ledger.kept(partition)
            if kept is not None and self._ledger.judge(partition, found).holding is Holding.FOREIGN:
                note = self._changed(partition, kept, found, now)
            self._dirty.expect(entry)
        self._ledger.was_read(partition, now)
        return note

    def _checked(
        self, partition: TopicPartition, found: OffsetAndMetadata | None, now: float
    ) -> Note | None:
        old = self._ledger.is_old(partition, self._settings.recommit_interval_s, now)
        kept = self._ledger.kept(partition)
        holding, version = self._ledger.judge(partition, found)
        self._ledger.looked(partition, now)
        if holding is Holding.NEWER and version is not None:
            newest = self._members[partition].slot.newest
            if newest is not None and newest.number == version.number:
                return self._landed(partition, version, now)
            self._ledger.keep(partition, version, now)
        elif kept is None or (holding is Holding.FOREIGN and partition in self._books.watched):
            self._ledger.drop(partition)
        elif holding is Holding.FOREIGN:
            return self._changed(partition, kept, found, now)
        elif holding is Holding.OLDER or old:
            # As if it were new: until it is committed again nobody needs to look.
            self._ledger.keep(partition, kept, now)
            if holding is Holding.OLDER:
                self._put_back(partition, kept)
            else:
                self._dirty.refresh(partition)
        return None

    def _changed(
        self, partition: TopicPartition, kept: Version, found: OffsetAndMetadata | None, now: float
    ) -> Noticed:
        """Somebody else committed ``found`` over ``kept``."""
        foreign, slot = self._ledger.foreign, self._members[partition].slot
        failure = foreign.found(partition, found)
        if self._books.bounds.before_commits:
            self._books.bounds.withdraw(partition)
            self._dirty.expect(self._dirty.get(partition))
        if foreign.policy == "overwrite":
            # As if it were new: until it is committed again nobody needs to look.
            self._ledger.keep(partition, kept, now)
            self._put_back(partition, kept)
            return Noticed(failure, kept.value, found)
        entry = self._dirty.get(partition)
        if entry is not None and entry.refresh:
            self._dirty.remove(partition)
        self._ledger.drop(partition)
        if found is not None and foreign.policy == "follow":
            slot.follow(found)
        else:
            slot.renew()
        if found is not None:
            # Newer than what was committed here, not than what waits: that stays dirty.
            self._ledger.keep(partition, Version(slot.settled, found), now)
        return Noticed(failure, kept.value, found)

    def _put_back(self, partition: TopicPartition, kept: Version) -> None:
        """A lost commit has landed behind ``kept``."""
        entry, slot = self._dirty.refresh(partition), self._members[partition].slot
        foreign = self._ledger.foreign
        if foreign.holds(partition):
            wanted = slot.wanted()
            entry.refresh = wanted is None or bool(foreign.refusal(partition, wanted, slot))
        elif slot.reopen(kept):
            self._ledger.drop(partition)
            entry.refresh = False

    # Ends of logs.

    def logs_read(self, request: LogsRequest, logs: Mapping[str, TopicLog], now: float) -> Notes:
        """Commit what lies in its log; refuse, move or tell of what does not."""
        notes: Notes = []
        bounds = self._books.bounds
        for found in bounds.read(request, logs, self._rewinds):
            partition, version, outside, recreated = found
            kept = self._ledger.kept(partition)
            committed = None if kept is None else kept.value
            if recreated is not None:
                notes.append((partition, Noticed(recreated, version.value, committed)))
            if bounds.before_commits and (outside is None or bounds.policy == "clamp"):
                bounds.clear(partition, outside.nearest if outside else version)
                self._dirty.expect(self._dirty.get(partition))
                if outside is not None:
                    # By the time that it is submitted again the log may hold it.
                    self._members[partition].slot.renew()
            if outside is None:
                continue
            failure = outside.failure(bounds.policy)
            if bounds.policy == "refuse":
                notes.append((partition, self._refused(partition, version, failure, now)))
                self._dirty.expect(self._dirty.get(partition))
            elif (bounds.before_commits or kept == version) and bounds.is_news(found):
                notes.append((partition, Noticed(failure, version.value, committed)))
        return notes

    def _rewinds(self, partition: TopicPartition) -> bool:
        return self._members[partition].slot.rewinds

    # Commits.

    def committed(
        self, request: CommitRequest, result: CommitResult, now: float
    ) -> Notes | AllCommitted:
        """Each partition is committed, refused or unknown."""
        # All of it stands in the ledger before anybody is told: an observer that fails must not
        # make what was committed here look like somebody else's.
        asked = request.members
        plain = not result.failures and not self._ledger.foreign
        if plain and all(map(is_, map(self._members.get, asked), asked.values())):
            self._ledger.keep_all(request.versions, now)
            notes: Notes | AllCommitted = self._all_settled(request, now)
        else:
            notes = self._mixed(request, result, now)
        group_wide = any(f.info.scope is Scope.GROUP for f in result.failures.values())
        self._backoff.pace(self._dirty.group, now, failed=group_wide)
        self._dirty.expect_all(request.versions)
        return notes

    def _all_settled(self, request: CommitRequest, now: float) -> AllCommitted:
        versions, told = request.versions, 0
        try:
            for member, version in zip(request.members.values(), versions.values(), strict=True):
                told += 1
                member.acknowledge(version, now)
        finally:
            # What was told must not be committed again over somebody else's offset.
            slots = [member.slot for member in islice(request.members.values(), told)]
            clean = settle_all(slots, map(_number_of, versions.values()))
        again = zip(versions, clean, strict=True)
        newer = [] if all(clean) else [p for p, c in again if not c and self._submitted(p)]
        self._dirty.remove_all(versions)
        for partition in newer:
            self._dirty.requeue(partition, now)
        return AllCommitted(request, clean)

    def _mixed(self, request: CommitRequest, result: CommitResult, now: float) -> Notes:
        """The same where not all of it simply succeeded."""
        notes: Notes = []
        for partition, version in request.versions.items():
            self._enter(request, partition, version, result.failures.get(partition), now)
        for partition, version in request.versions.items():
            failure = result.failures.get(partition)
            if self._members.get(partition) is not request.members[partition]:
                continue
            if failure is None:
                notes.append((partition, self._settled(partition, version, now)))
            elif failure.info.verdict is Verdict.UNKNOWN:
                self._reads.unknown[partition] = version
                notes.append((partition, VersionFailed(version, failure, final=False)))
            else:
                notes.append((partition, self._refused(partition, version, failure, now)))
        return notes

    def _enter(
        self,
        request: CommitRequest,
        partition: TopicPartition,
        version: Version,
        failure: Failure | None,
        now: float,
    ) -> None:
        if self._members.get(partition) is not request.members[partition]:
            self._after_all(partition, version, failure, now)
        elif failure is None:
            self._keep(partition, version, now)
        elif failure.info.verdict is Verdict.UNKNOWN:
            self._ledger.lose(partition, version)

    def _after_all(
        self, partition: TopicPartition, version: Version, failure: Failure | None, now: float
    ) -> None:
        """What became of a commit whose manager is gone: it may land on what is committed next."""
        served = partition in self._members
        if served and partition not in self._books.watched:
            version = version._replace(number=0)  # its successor counts anew
        if failure is None and served:
            self._ledger.keep(partition, version, now)
        elif failure is not None and failure.info.verdict is Verdict.UNKNOWN:
            self._ledger.lose(partition, version)
            if served:
                self._ledger.was_read(partition, now)
            else:
                self._ledger.depart(partition, now)

    def _landed(self, partition: TopicPartition, version: Version, now: float) -> VersionCommitted:
        self._keep(partition, version, now)
        return self._settled(partition, version, now)

    def _keep(self, partition: TopicPartition, version: Version, now: float) -> None:
        if self._ledger.kept(partition) != version:  # else it may be theirs, committed again
            self._ledger.foreign.forget(partition)
        self._ledger.keep(partition, version, now)

    def _settled(self, partition: TopicPartition, version: Version, now: float) -> VersionCommitted:
        clean = settled(self._members[partition], version, now)
        newer = not clean and self._submitted(partition)
        self._dirty.remove(partition)
        if newer:
            self._dirty.requeue(partition, now)
        return VersionCommitted(version, clean)

    def _submitted(self, partition: TopicPartition) -> bool:
        """Whether it is dirty by a submit, and not to be kept alive."""
        entry = self._dirty.get(partition)
        return entry is not None and not entry.refresh

    def _refused(
        self, partition: TopicPartition, version: Version, failure: Failure, now: float
    ) -> VersionFailed:
        info, entry = failure.info, self._dirty.get(partition)
        if info.retriable:
            entry = self._dirty.mark_due(partition)
            if info.scope is Scope.PARTITION:
                self._backoff.pace(entry, now, failed=True)
            return VersionFailed(version, failure, final=False)
        final = self._members[partition].slot.park(version.number)
        refresh = entry is not None and entry.refresh
        kept = self._ledger.kept(partition)
        if refresh and kept is not None:
            # Not looped: its turn comes with the next look.
            self._ledger.keep(partition, kept, now)
        if refresh or final:
            self._dirty.remove(partition)
        elif entry is not None:
            # What is newer may fare no better: not at once, over and over.
            self._dirty.requeue(partition, now)
        return VersionFailed(version, failure, final)
