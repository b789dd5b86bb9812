"""What the broker should hold for one group: last commits, commits in doubt, external changes.

It outlives the plan and the committer: a commit that was given up knows nothing of a restarted
actor, and can still land behind a newer one.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import OFFSET_CHANGED, error_info
from offsetmgr.coordinator.base import Failure
from offsetmgr.manager.submits import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

IN_DOUBT_LIMIT: Final = 16
"""Commits in doubt remembered of one partition; each is followed by a read, so few are met."""

DEPARTED_LANDINGS: Final = 6
"""How many times commits in doubt are verified where the manager is gone.  Not for longer: then it
is more likely that an operator has reset the group."""

LATEST_LANDING_S: Final = 900.0
"""How long a commit in doubt may still land: as long as a host goes on sending for a connection
that was given up."""

RECOMMIT_SOON_S: Final = 60.0
"""How soon an offset found at the start is committed again: its age is unknown, and the broker's
retention may be about to end."""

_SHOWN_CHARS: Final = 40


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Return True if ``found`` is what was sent; a leader epoch that one side lacks is ignored."""
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch} or sent == found


class Found(Enum):
    """How an offset that was read compares with the history."""

    STANDS = "stands"
    """It is what was committed last."""
    OLDER = "older"
    """A commit in doubt has landed behind a newer one."""
    NEWER = "newer"
    """A commit in doubt has landed after all, and nothing newer is committed."""
    EXTERNAL = "external"
    """Somebody else committed it, or it expired."""


class _Commit(NamedTuple):
    at: float
    version: Version


class _InDoubt(NamedTuple):
    versions: tuple[Version, ...]
    since: float
    verify_at: float
    departed: bool = False


class CommitHistory:
    """Last committed version of each partition, and the commits whose outcome is unknown.

    A commit in doubt stays in a set that every read of the partition is compared with: the
    read-back before the next commit, and every verification.  One verification of its own comes
    ``landing_s`` after the coordinator was read again, when it has dealt with nearly all that it
    still held.
    """

    def __init__(self, landing_s: float) -> None:
        self._landing_s = landing_s
        self._commits: dict[TopicPartition, _Commit] = {}  # the oldest first
        self._recommit_soon: dict[TopicPartition, float] = {}  # the oldest first
        self._in_doubt: dict[TopicPartition, _InDoubt] = {}
        self._external: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self._verify_at: float | None = inf  # of the first; None: to be found anew

    # Commits.

    def committed(self, partition: TopicPartition) -> Version | None:
        """Return the version that was committed last."""
        found = self._commits.get(partition)
        return None if found is None else found.version

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions where something is committed, or may be yet."""
        return list({**self._commits, **self._in_doubt})

    def commit(self, partition: TopicPartition, version: Version, now: float) -> None:
        """Enter that ``version`` is committed."""
        commits = self._commits
        commits.pop(partition, None)  # out and in again: the oldest comes first
        commits[partition] = _Commit(now, version)
        if self._recommit_soon:
            self._recommit_soon.pop(partition, None)

    def commit_initial(
        self, partition: TopicPartition, found: OffsetAndMetadata, now: float
    ) -> None:
        """Enter that ``found`` was committed before the manager started."""
        self.commit(partition, Version(0, found), now)
        self.recommit_soon(partition, now)

    def recommit_soon(self, partition: TopicPartition, now: float) -> None:
        """Have the offset committed again a minute from now, unless a newer one is by then."""
        self._recommit_soon[partition] = now

    def postpone(self, partition: TopicPartition, now: float) -> None:
        """Enter that the partition cannot be read now; try again when it is due again."""
        found = self._commits.get(partition)
        if found is not None:
            soon = partition in self._recommit_soon
            self.commit(partition, found.version, now)
            if soon:
                self.recommit_soon(partition, now)

    def drop(self, partition: TopicPartition) -> None:
        """Forget what is committed there."""
        self._commits.pop(partition, None)
        self._recommit_soon.pop(partition, None)

    def stands(self, partition: TopicPartition, value: OffsetAndMetadata) -> bool:
        """Return True if ``value`` was committed last and no commit in doubt can undo it."""
        found = self._commits.get(partition)
        return found is not None and found.version.value == value and not self.doubts(partition)

    # Keeping commits from expiring.

    def recommit_at(self, interval_s: float) -> float:
        """Return when the first unchanged offset has to be committed again; ``inf`` for never."""
        if not interval_s:
            return inf
        oldest = next(iter(self._commits.values()), None)
        soon = next(iter(self._recommit_soon.values()), inf)
        return min(
            oldest.at + interval_s if oldest is not None else inf,
            soon + min(RECOMMIT_SOON_S, interval_s),
        )

    def to_recommit(self, interval_s: float, now: float) -> Iterator[TopicPartition]:
        """Yield the partitions whose offset has to be committed again now."""
        for partition in self._recommit_soon:
            if not self.is_old(partition, interval_s, now):
                break
            yield partition
        for partition in self._commits:
            if partition not in self._recommit_soon:
                if not self.is_old(partition, interval_s, now):
                    return
                yield partition

    def is_old(self, partition: TopicPartition, interval_s: float, now: float) -> bool:
        """Return True if the offset has to be committed again lest it expires."""
        found = self._commits.get(partition)
        if found is None or not interval_s:
            return False
        soon = partition in self._recommit_soon
        return found.at + (min(RECOMMIT_SOON_S, interval_s) if soon else interval_s) <= now

    # Commits in doubt.

    def doubt(self, partition: TopicPartition, version: Version, now: float) -> None:
        """Enter a commit with an unknown outcome: it has landed, or may land yet, or never."""
        versions = self.in_doubt(partition)
        versions = (*versions[1 - IN_DOUBT_LIMIT :], version)
        departed = self.doubts(partition) and self._in_doubt[partition].departed
        self._set_in_doubt(partition, _InDoubt(versions, now, inf, departed))

    def _set_in_doubt(self, partition: TopicPartition, held: _InDoubt | None) -> None:
        self._verify_at = None
        if held is None:
            self._in_doubt.pop(partition, None)
        else:
            self._in_doubt[partition] = held

    def in_doubt(self, partition: TopicPartition) -> tuple[Version, ...]:
        """Return the commits that may still land there, oldest first."""
        held = self._in_doubt.get(partition)
        return () if held is None else held.versions

    def doubts(self, partition: TopicPartition) -> bool:
        """Return True if a commit may still land there."""
        return partition in self._in_doubt

    @property
    def partitions_in_doubt(self) -> list[TopicPartition]:
        """Partitions where a commit may still land."""
        return list(self._in_doubt)

    def landed(self, partition: TopicPartition, version: Version) -> None:
        """Enter that a read found ``version`` of the commits in doubt."""
        held, last = self._in_doubt.get(partition), self.committed(partition)
        if held is None or (last is not None and same(last.value, version.value)):
            return  # the same was committed before, so it proves nothing
        left = list(held.versions)
        left.remove(version)  # one copy: another request that carried it may land yet
        self._set_in_doubt(partition, held._replace(versions=tuple(left)) if left else None)

    def was_read(self, partition: TopicPartition, now: float) -> None:
        """Enter that the coordinator answers again: what it still holds lands soon, or never."""
        held = self._in_doubt.get(partition)
        if held is not None:
            verify_at = now + self._landing_s
            self._set_in_doubt(partition, held._replace(since=now, verify_at=verify_at))

    def verify_in_doubt_at(self) -> float:
        """Return when a partition in doubt has to be verified; ``inf`` for never."""
        if self._verify_at is None:
            self._verify_at = min((held.verify_at for held in self._in_doubt.values()), default=inf)
        return self._verify_at

    def to_verify(self, now: float) -> Iterator[TopicPartition]:
        """Yield the partitions in doubt that have to be verified now."""
        if self.verify_in_doubt_at() <= now:
            yield from [each for each, held in self._in_doubt.items() if held.verify_at <= now]

    def verified(self, partition: TopicPartition, now: float, *, again: bool) -> None:
        """Enter that the partition was read; ``again`` is True if more verifications follow."""
        held = self._in_doubt.get(partition)
        if held is None or now < min(held.verify_at, held.since + LATEST_LANDING_S):
            return
        if held.departed:
            lasts_s = DEPARTED_LANDINGS * self._landing_s
        else:
            lasts_s = LATEST_LANDING_S if again else 0.0
        if now >= held.since + lasts_s:
            self._set_in_doubt(partition, None)
        else:
            verify_at = now + self._landing_s if held.departed else inf
            self._set_in_doubt(partition, held._replace(verify_at=verify_at))

    def judge(
        self, partition: TopicPartition, found: OffsetAndMetadata | None
    ) -> tuple[Found, Version | None]:
        """Compare an offset that was read; return the version where it is one of this history."""
        last = self.committed(partition)
        if last is not None and same(last.value, found):
            return Found.STANDS, last
        landed = [each for each in self.in_doubt(partition) if same(each.value, found)]
        if not landed:
            return Found.EXTERNAL, None
        # What was given up before an external change is older than that.
        older = last is not None and (
            partition in self._external or landed[-1].number < last.number
        )
        return (Found.OLDER if older else Found.NEWER), landed[-1]

    # External changes.

    def changed(self, partition: TopicPartition, external: OffsetAndMetadata | None) -> Failure:
        """Enter an external change (None: the offset was deleted); return what to report."""
        self._external[partition] = external
        if external is None:
            now = "nothing is committed any more"
        else:
            shown = external.metadata[:_SHOWN_CHARS]
            now = f"it is {external.offset}{f' with metadata {shown!r}' if shown else ''} now"
        why = f"somebody else changed it: {now}; lower offsets are refused but for a rewind()"
        return Failure(error_info(OFFSET_CHANGED), why)

    @property
    def any_external(self) -> bool:
        """True if somebody else's offset stands somewhere in the group."""
        return bool(self._external)

    def is_external(self, partition: TopicPartition) -> bool:
        """Return True if what is committed there is somebody else's."""
        return partition in self._external

    def refusal(self, partition: TopicPartition, offset: int) -> Failure | None:
        """Return why ``offset`` may not go over an external change; None where it may."""
        external = self._external.get(partition)
        if external is None or external.offset <= offset:
            return None
        why = f"somebody else committed {external.offset}, which is higher; rewind() to go back"
        return Failure(error_info(OFFSET_CHANGED), why)

    def forget_external(self, partition: TopicPartition) -> None:
        """Ours is committed there, or its manager is a new one."""
        self._external.pop(partition, None)

    def depart(self, partition: TopicPartition, now: float) -> None:
        """Enter that the manager is gone; commits in doubt are verified for a while."""
        self.forget_external(partition)
        held = self._in_doubt.get(partition)
        if held is None:
            self.drop(partition)
        else:
            verify_at = now + self._landing_s
            held = held._replace(since=now, verify_at=verify_at, departed=True)
            self._set_in_doubt(partition, held)

    def arrive(self, partition: TopicPartition) -> None:
        """Enter that a manager begins: what was committed before is its initial offset."""
        self.forget_external(partition)
        held = self._in_doubt.get(partition)
        if held is not None:
            self._set_in_doubt(partition, held._replace(departed=False))
