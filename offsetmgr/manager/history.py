"""The commit history of one group: last commits, commits in doubt, external changes.

It outlives the plan and the committer: a commit that was given up can still land behind a newer
one after the actor was restarted.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import OFFSET_CHANGED, error_info
from offsetmgr.coordinator.base import Failure
from offsetmgr.manager.submits import Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.config import CommitSettings
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

IN_DOUBT_LIMIT: Final = 16
"""Limit of the commits in doubt per partition; a read follows each, so there are rarely many."""

LANDING_TIMEOUTS: Final = 2
"""Request time-outs between a coordinator's first answer and the verification of commits in doubt:
by then nearly all that it still held have landed."""

DEPARTED_TIMEOUTS: Final = 12
"""The same for a manager that is gone, of which only one verification follows.  Later than that, a
difference is more likely an operator's reset of the group."""

LATEST_LANDING_S: Final = 900.0
"""Time in which a commit in doubt may still land: a host may go on sending for a connection that
was given up."""

RECOMMIT_SOON_S: Final = 60.0
"""Delay until an offset found at the start is committed again: its age is unknown, so it may be
about to expire."""

_SHOWN_CHARS: Final = 40


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Return True if ``found`` is what was sent; a leader epoch that one side lacks is ignored."""
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch} or sent == found


class ReadOutcome(Enum):
    """The result of comparing a committed offset with the history."""

    STANDS = "stands"
    """It is what was committed last."""
    OLDER = "older"
    """A commit in doubt has landed behind a newer one."""
    NEWER = "newer"
    """A commit in doubt has landed after all, and nothing newer is committed."""
    EXTERNAL = "external"
    """Somebody else committed it, or it expired."""


class _InDoubt(NamedTuple):
    versions: tuple[Version, ...]
    since: float
    verify_at: float


class CommitHistory:
    """Last committed version of each partition, and the commits whose outcome is unknown.

    A commit in doubt stays in a set that every read of the partition is compared with: the
    read-back before the next commit, and every verification.  One verification of its own comes
    after ``LANDING_TIMEOUTS``.
    """

    def __init__(self, settings: CommitSettings) -> None:
        self._landing_s = LANDING_TIMEOUTS * settings.request_timeout_s
        self._departed_s = DEPARTED_TIMEOUTS * settings.request_timeout_s
        self._recommit_s = settings.recommit_interval_s or inf
        self._recommit_soon_s = min(RECOMMIT_SOON_S, settings.recommit_interval_s) or inf
        self._commits: dict[TopicPartition, Version] = {}
        self._recommit_at: dict[TopicPartition, float] = {}
        self._in_doubt: dict[TopicPartition, _InDoubt] = {}
        self._external: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self.check_at = inf
        """Time to look for partitions that have to be read; never later than the first is due."""

    # Commits.

    def committed(self, partition: TopicPartition) -> Version | None:
        """Return the version that was committed last."""
        return self._commits.get(partition)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions where something is committed, or may be yet."""
        return list({**self._commits, **self._in_doubt})

    def commit(self, partition: TopicPartition, version: Version, now: float) -> None:
        """Enter that ``version`` is committed."""
        self._commits[partition] = version
        self._recommit_in(partition, now, self._recommit_s)

    def commit_ours(self, versions: Mapping[TopicPartition, Version], now: float) -> None:
        """Enter that managers' own ``versions`` are committed."""
        later_at = now + self._recommit_s
        for partition, version in versions.items():
            last = self._commits.get(partition)
            self._commits[partition] = version
            if last != version:  # else somebody else's, committed again
                self._external.pop(partition, None)
            self._recommit_at[partition] = later_at
            if version.number and (last is None or not last.number):
                # Burrow misses a partition whose only commit came before it knew the topic.
                self.recommit_soon(partition, now)
        self.check_at = min(self.check_at, later_at)

    def commit_initial(
        self, partition: TopicPartition, found: OffsetAndMetadata, now: float
    ) -> None:
        """Enter that ``found`` was committed before the manager started."""
        self._commits[partition] = Version(0, found)
        self._recommit_in(partition, now, self._recommit_soon_s)

    def recommit_soon(self, partition: TopicPartition, now: float) -> None:
        """Have the offset committed again a minute from now, unless a newer one is by then."""
        if partition in self._commits:
            self._recommit_in(partition, now, self._recommit_soon_s)

    def _recommit_in(self, partition: TopicPartition, now: float, seconds: float) -> None:
        self._recommit_at[partition] = at = now + seconds
        self.check_at = min(self.check_at, at)

    def drop(self, partition: TopicPartition) -> None:
        """Forget what is committed there."""
        self._commits.pop(partition, None)
        self._recommit_at.pop(partition, None)

    def stands(self, partition: TopicPartition, value: OffsetAndMetadata) -> bool:
        """Return True if ``value`` was committed last and no commit in doubt can undo it."""
        last = self._commits.get(partition)
        return last is not None and last.value == value and not self.doubts(partition)

    # Single partitions that have to be read: commits in doubt, and old ones.

    def to_check(self, now: float) -> list[TopicPartition]:
        """Return what has to be read now; it stays due until it was."""
        if now < self.check_at:
            return []
        verifications = {each: held.verify_at for each, held in self._in_doubt.items()}
        due_at = [*verifications.items(), *self._recommit_at.items()]
        self.check_at = min((at for _, at in due_at), default=inf)
        return [each for each, at in due_at if at <= now]

    def is_old(self, partition: TopicPartition, now: float) -> bool:
        """Return True if the offset has to be committed again lest it expires."""
        return self._recommit_at.get(partition, inf) <= now

    # Commits in doubt.

    def doubt(self, partition: TopicPartition, version: Version, now: float) -> None:
        """Enter a commit with an unknown outcome: it has landed, or may land yet, or never."""
        versions = self.in_doubt(partition)
        versions = (*versions[1 - IN_DOUBT_LIMIT :], version)
        self._in_doubt[partition] = _InDoubt(versions, now, inf)

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
        if left:
            self._in_doubt[partition] = held._replace(versions=tuple(left))
        else:
            del self._in_doubt[partition]

    def was_read(self, partition: TopicPartition, now: float) -> None:
        """Enter that the coordinator answers again: what it still holds lands soon, or never."""
        self._verify_in(partition, now, self._landing_s)

    def _verify_in(self, partition: TopicPartition, now: float, seconds: float) -> None:
        held = self._in_doubt.get(partition)
        if held is not None:
            self._in_doubt[partition] = held._replace(since=now, verify_at=now + seconds)
            self.check_at = min(self.check_at, now + seconds)

    def verified(self, partition: TopicPartition, now: float, *, again: bool) -> None:
        """Enter that the partition was read; ``again`` is True if more verifications follow."""
        held = self._in_doubt.get(partition)
        if held is None:
            return
        if now >= held.since + LATEST_LANDING_S or (now >= held.verify_at and not again):
            del self._in_doubt[partition]
        elif now >= held.verify_at:
            self._in_doubt[partition] = held._replace(verify_at=inf)

    def give_up(self, partition: TopicPartition) -> None:
        """Forget the commits in doubt: nothing can be done about them any more."""
        self._in_doubt.pop(partition, None)

    def judge(
        self, partition: TopicPartition, found: OffsetAndMetadata | None
    ) -> tuple[ReadOutcome, Version | None]:
        """Compare an offset that was read; return the version where it is one of this history."""
        last = self.committed(partition)
        if last is not None and same(last.value, found):
            return ReadOutcome.STANDS, last
        landed = [each for each in self.in_doubt(partition) if same(each.value, found)]
        if not landed:
            return ReadOutcome.EXTERNAL, None
        # What was given up before an external change is older than that.
        older = last is not None and (
            partition in self._external or landed[-1].number < last.number
        )
        return (ReadOutcome.OLDER if older else ReadOutcome.NEWER), landed[-1]

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
        """Enter that an offset of ours is committed there, or that its manager is a new one."""
        self._external.pop(partition, None)

    def depart(self, partition: TopicPartition, now: float) -> None:
        """Enter that the manager is gone; commits in doubt are verified once more."""
        self.forget_external(partition)
        if self.doubts(partition):
            self._verify_in(partition, now, self._departed_s)
        else:
            self.drop(partition)
