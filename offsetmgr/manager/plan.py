"""What the committer of a group asks of the coordinator next; decided here, done elsewhere.

No actor, no clock, no Kafka: methods take ``now`` and return what to do.  The rules:

- one request in flight, always, reads included; a read does not make a due commit wait twice;
- what became of a commit is *committed*, *refused* or *unknown*; an unknown one is read back
  before that partition is written again;
- a refused partition backs off alone, in reads as in commits; an error of the whole group backs
  the group off; what was due before an error is due after its pause, not an interval later;
- a permanent refusal parks the partition until something new is submitted: it stays dirty;
- a lost commit is looked for, because it may land behind a newer one, which is then put back;
  unchanged offsets are read and committed again before retention expires them;
- now and then all that was committed is read, and what somebody else changed is told (see
  ``foreign.py``): right before a due commit, which would cover it, but before an urgent one only
  where those have kept it waiting for an interval.

What the answers mean is in ``outcomes.py``; what is known meanwhile, in ``books.py``.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Final

from offsetmgr.manager.books import Books
from offsetmgr.manager.dirty import different
from offsetmgr.manager.outcomes import Outcomes, settled
from offsetmgr.manager.requests import (
    BATCH_LIMIT,
    CommitRequest,
    FetchRequest,
    ReadBackRequest,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import wanted_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random
    from typing import TypeGuard

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import CommitResult, FetchResult, TopicLog
    from offsetmgr.manager.bounds import LogsRequest
    from offsetmgr.manager.dirty import Entry
    from offsetmgr.manager.ledger import Ledger
    from offsetmgr.manager.requests import AllCommitted, Member, Notes, Request
    from offsetmgr.manager.slot import Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_value_of: Final = itemgetter(1)
"""The value of a version."""


class CommitPlan:
    """The open work of one group; see the module's text for its rules."""

    def __init__(self, settings: CommitSettings, rng: Random, ledger: Ledger) -> None:
        self._settings = settings
        books = self._books = Books(settings, rng, ledger)
        self._ledger = ledger
        self._members = books.members
        self._watched = books.watched
        self._reads = books.reads
        self._dirty = books.dirty
        self._rounds = books.rounds
        self._bounds = books.bounds
        self._outcomes = Outcomes(books)
        self._read_last = False

    @property
    def over(self) -> bool:
        """Whether nobody is left to work for, nor anything to remember."""
        return not self._members and not self._ledger.waits

    # What the managers say.

    def attach(self, members: Mapping[TopicPartition, Member]) -> None:
        """Managers whose initial offset is wanted: new ones, or restarted ones."""
        for partition, member in members.items():
            if self._members.get(partition) is not member:
                self._books.forget(partition)
            if not member.slot.established:
                self._ledger.succeed(partition)
        self._books.expect(members)

    def detach(self, partition: TopicPartition, now: float) -> None:
        """The manager is gone; what it did not commit is in its answer."""
        member = self._members.get(partition)
        acknowledged = None if member is None else member.slot.reopened
        if acknowledged is not None:
            # It is put back without its manager.
            self._ledger.keep(partition, acknowledged, now)
        self._books.forget(partition)
        self._ledger.depart(partition, now)
        self._books.watch(partition)

    def mark_dirty(self, partition: TopicPartition, now: float, *, urgent: bool = False) -> None:
        """There is something to commit; at once where ``urgent``."""
        if partition in self._members and partition not in self._watched:
            self._dirty.mark(partition, now, urgent=urgent)

    def mark_all_dirty(self, partitions: Iterable[TopicPartition], since: float) -> None:
        """There is something to commit in all of these, the first of it submitted at ``since``."""
        members, watched = self._members, self._watched
        served = list(filter(members.__contains__, partitions))
        if watched:
            served = [each for each in served if each not in watched]
        if served:
            self._dirty.mark_all(served, since)

    def hurry(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Somebody waits, for ``partitions`` or, with None, for all.

        What is dirty is due now, and past errors are forgiven once; those of reads only where one
        of these has to be read first.
        """
        self._dirty.hurry()
        reads = self._reads
        reading = bool(reads.unknown or reads.awaiting)
        if partitions is None or (reading and any(map(reads.must_precede, partitions))):
            reads.forgive()

    def recover(self, members: Mapping[TopicPartition, Member], now: float) -> None:
        """Begin again after a crash: read all that is committed, then commit all that is dirty."""
        self._books.expect(members)
        for partition, member in members.items():
            # Where nobody knows yet what is committed, its manager marks it when it does.
            if member.slot.dirty and member.slot.established:
                self.mark_dirty(partition, now)

    # What to do.

    def next_request(self, now: float) -> tuple[Request | None, Notes]:
        """The request to send now, and what turned out to need none; there is none in flight."""
        notes: Notes = []
        for partition in list(self._watched):
            self._books.bury(partition)
        due = self._dirty.urgent or now >= self._dirty.due_at
        commit_first = due and self._read_last
        read = self._reads.request(self._members, now)
        if read is None and not commit_first:
            read = self._verify(now) or (self._late(now) if due else None)
        if read is not None and not commit_first:
            self._read_last = True
            return read, notes
        commit = self._commit(now, notes) if due else None
        if commit is not None:
            self._read_last = False
            return commit, notes
        return read or self._check(now), notes

    def wake_at(self) -> float:
        """When to ask again though nothing happened; ``inf`` for never."""
        dirty_at = self._dirty.due_at
        look_at = min(self._check_at(), self._verify_at(dirty_at), self._bounds.wake_at())
        return min(self._reads.next_at(), dirty_at, look_at)

    def logs_to_read(self, now: float) -> LogsRequest | None:
        """Which logs' ends to read now, beside the one request that is in flight."""
        return self._bounds.to_read(now)

    def lies_within(self, logs: Mapping[str, TopicLog]) -> bool:
        """Whether these, though older, do for what the ends of logs are to be read for."""
        return self._bounds.met_by(logs)

    def _commit(self, now: float, notes: Notes) -> CommitRequest | None:
        """Everything dirty that may be tried; computes anew when the rest is due."""
        dirty = self._dirty
        dirty.urgent = False
        dirty.due_at = inf
        ready = self._ready(now)
        asked = dict(zip(ready, map(self._members.__getitem__, ready), strict=True))
        newest = wanted_of([member.slot for member in asked.values()])
        entries = different(ready)
        if self._are_news(newest, entries, self._ledger.standing(asked)):
            for entry in entries:
                entry.since = -inf
            versions = dict(zip(ready, newest, strict=True))
        else:
            versions = self._each(ready, newest, notes, now)
        if len(versions) < len(asked):
            asked = {partition: asked[partition] for partition in versions}
        return CommitRequest(versions, asked) if versions else None

    def _are_news(
        self,
        newest: Sequence[Version | None],
        entries: Sequence[Entry],
        standing: Sequence[OffsetAndMetadata | None],
    ) -> TypeGuard[Sequence[Version]]:
        """Whether all of ``newest`` are to be committed as they are, as is the rule.

        Quicker found out for all than for each: nothing here runs Python's own code but once.
        """
        if self._ledger.foreign or self._bounds.before_commits:
            return False
        return (
            all(newest)
            and not any(map(eq, standing, map(_value_of, filter(None, newest))))
            and not any(entry.refresh for entry in entries)
        )

    def _each(
        self,
        ready: Mapping[TopicPartition, Entry],
        newest: Sequence[Version | None],
        notes: Notes,
        now: float,
    ) -> dict[TopicPartition, Version]:
        """What to commit of each; the others are noted, not dirty any more, or wait."""
        versions: dict[TopicPartition, Version] = {}
        for (partition, entry), wanted in zip(ready.items(), newest, strict=True):
            version = self._wanted(partition, entry, wanted, notes, now)
            if version is None:
                self._dirty.remove(partition)
                continue
            entry.since = -inf
            if self._bounds.before_commits and not entry.refresh:
                version = self._admitted(partition, version)
            if version is not None:
                versions[partition] = version  # else due again when the ends of its log are known
        return versions

    def _admitted(self, partition: TopicPartition, version: Version) -> Version | None:
        """What to commit where the ends of logs come first; None until they are known."""
        slot = self._members[partition].slot
        again = slot.reopened
        if again is not None and again.number == version.number:
            return again  # it was acknowledged as that, and its log may have been cut since
        return self._bounds.admit(partition, version, slot.settled)

    def _ready(self, now: float) -> dict[TopicPartition, Entry]:
        """What is dirty and may be tried, as much as one request can carry."""
        dirty, reads = self._dirty, self._reads
        blocked = now < dirty.group.not_before
        must_read = bool(reads.unknown or reads.awaiting)
        paused = blocked or any(now < entry.not_before for entry in dirty.different())
        if not must_read and not paused and len(dirty) <= BATCH_LIMIT:
            return dirty.entries()
        ready: dict[TopicPartition, Entry] = {}
        for partition, entry in dirty.entries().items():
            if (must_read and reads.must_precede(partition)) or self._bounds.hold(partition):
                continue  # due again when it, or the ends of its log, have been read
            if blocked or now < entry.not_before or len(ready) == BATCH_LIMIT:
                dirty.expect(entry)
            else:
                ready[partition] = entry
        return ready

    def _wanted(
        self,
        partition: TopicPartition,
        entry: Entry,
        wanted: Version | None,
        notes: Notes,
        now: float,
    ) -> Version | None:
        """What to commit there, where ``wanted`` was submitted; None where nothing is left."""
        if entry.refresh:
            return self._ledger.kept(partition)
        member = self._members[partition]
        if wanted is not None and self._ledger.stands(partition, wanted.value):
            if member.slot.rewinds:
                self._ledger.foreign.forget(partition)
            clean = settled(member, wanted, now)
            notes.append((partition, VersionCommitted(wanted, clean)))
            return self._wanted(partition, entry, member.slot.wanted(), notes, now)
        refusal = wanted and self._ledger.foreign.refusal(partition, wanted, member.slot)
        if not wanted or not refusal:
            return wanted
        final = member.slot.park(wanted.number)
        notes.append((partition, VersionFailed(wanted, refusal, final)))
        return None if final else self._wanted(partition, entry, member.slot.wanted(), notes, now)

    def _check_at(self) -> float:
        at = self._ledger.next_check_at(self._settings.recommit_interval_s)
        return max(at, self._reads.look_not_before)

    def _verify_at(self, commit_at: float) -> float:
        return max(self._rounds.at(commit_at), self._reads.look_not_before)

    def _verify(self, now: float) -> ReadBackRequest | None:
        """Whether all that was committed stands, where it is time to look."""
        if len(self._members) == len(self._watched):
            self._rounds.end()
            return None
        self._rounds.begin(now)
        if not self._rounds.is_near(now):
            return None
        # An urgent commit goes before a look that is due; but not each of an endless row of them.
        at = self._verify_at(inf if self._dirty.urgent else self._dirty.due_at)
        if now < max(at, self._spared_at()):
            return None
        members = {
            partition: self._members[partition]
            for partition in self._rounds.take(now)
            if partition in self._members and not self._reads.must_precede(partition)
        }
        if not self._bounds.before_commits:
            kept = {partition: self._ledger.kept(partition) for partition in members}
            self._bounds.look_at({p: version for p, version in kept.items() if version})
        return ReadBackRequest(members) if members else None

    def _late(self, now: float) -> ReadBackRequest | None:
        """A check that commits have kept waiting for an interval: there may always be one due."""
        late_at = self._check_at() + self._settings.commit_interval_s
        return self._check(now) if now >= max(late_at, self._spared_at()) else None

    def _spared_at(self) -> float:
        """When a look may go before a commit that somebody waits for.

        One that is not answered holds the commit up for its whole time-out.
        """
        if not self._dirty.urgent:
            return -inf
        return self._reads.failed_at + self._settings.retry_backoff_max_s

    def _check(self, now: float) -> ReadBackRequest | None:
        if now < self._check_at():
            return None
        due = islice(self._ledger.due(self._settings.recommit_interval_s, now), BATCH_LIMIT)
        members: dict[TopicPartition, Member] = {}
        for partition in list(due):
            if partition in self._members:
                members[partition] = self._members[partition]
            else:
                # Its successor, if one comes, has to know what of it may land; nobody keeps it.
                self._ledger.drop(partition)
                self._ledger.looked(partition, now)
        return ReadBackRequest(members) if members else None

    # What the coordinator says.

    def fetched(self, request: FetchRequest, result: FetchResult, now: float) -> Notes:
        """Initial offsets arrived; the failed ones are asked for again after a pause."""
        return self._outcomes.fetched(request, result, now)

    def read_back(self, request: ReadBackRequest, result: FetchResult, now: float) -> Notes:
        """Learn what became of unknown commits, and whether checked ones still stand."""
        return self._outcomes.read_back(request, result, now)

    def logs_read(self, request: LogsRequest, logs: Mapping[str, TopicLog], now: float) -> Notes:
        """The ends of some logs are known: what waited for them is due, or lies outside."""
        return self._outcomes.logs_read(request, logs, now)

    def committed(
        self, request: CommitRequest, result: CommitResult, now: float
    ) -> Notes | AllCommitted:
        """Each partition is committed, refused or unknown."""
        return self._outcomes.committed(request, result, now)
