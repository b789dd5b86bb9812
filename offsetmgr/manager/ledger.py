"""What the broker should hold of one group, and what may still land there.

It outlives the plan and the committer: a commit that was given up does not know that an actor was
restarted, and can still land behind a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.manager.foreign import Foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.manager.slot import Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

LOST_LIMIT: Final = 16
"""Lost commits remembered of one partition; each is followed by a read, so more are hardly met."""

LATEST_LANDING_S: Final = 900.0
"""How long after the coordinator answers again a lost commit may still land: as long as a host goes
on sending for a connection that was given up."""

PARTING_WINDOWS: Final = 6
"""How many windows what a manager committed is watched once it is gone.  Not for longer: then it
is more likely that an operator has set the group back than that a lost commit has landed."""

INHERITED_S: Final = 60.0
"""How soon an offset that a manager found is committed again: nobody knows how old it is, and the
broker's retention may be about to end."""


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Whether ``found`` is what was sent; an epoch that one side alone knows tells nothing."""
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch} or sent == found


class Holding(Enum):
    """How what the broker was found to hold stands to what it should hold."""

    STANDS = "stands"
    """It is what was committed last."""
    OLDER = "older"
    """A lost commit has landed behind a newer one."""
    NEWER = "newer"
    """A lost commit has landed after all, and nothing newer is committed."""
    FOREIGN = "foreign"
    """Somebody else committed it, or it expired."""


class Verdict(NamedTuple):
    """What was made of a read."""

    holding: Holding
    version: Version | None
    """The version found, where it is one of this ledger's."""


@dataclass(slots=True)
class _Lost:
    versions: list[Version]
    since: float = inf
    """When the coordinator was read again."""
    check_at: float = inf
    until: float = inf
    departed: bool = False


class Ledger:
    """Last committed version of each partition, and the commits that nobody knows the end of.

    A lost commit is looked for ``window_s`` after the coordinator was read again, when it has
    answered or dropped nearly all it still held, and then ever more rarely until nothing can land
    any more.
    """

    def __init__(self, window_s: float, on_external_change: str = "follow") -> None:
        self._window_s = window_s
        self.foreign = Foreign(on_external_change)
        """What somebody else has committed over it."""
        # The one committed longest ago first.
        self._kept: dict[TopicPartition, tuple[float, Version]] = {}
        # What managers found at their start and have not committed since; the first one first.
        self._inherited: dict[TopicPartition, float] = {}
        self._lost: dict[TopicPartition, _Lost] = {}
        self._look_at: float | None = None
        """When the first lost commit is looked for; None where that has to be found anew."""

    def kept(self, partition: TopicPartition) -> Version | None:
        """What was committed last."""
        found = self._kept.get(partition)
        return None if found is None else found[1]

    def standing(self, partitions: Iterable[TopicPartition]) -> list[OffsetAndMetadata | None]:
        """What was committed last in each of these."""
        return [found and found[1][1] for found in map(self._kept.get, partitions)]

    def kept_partitions(self) -> list[TopicPartition]:
        """Where something is committed."""
        return list(self._kept)

    def keep(self, partition: TopicPartition, version: Version, now: float) -> None:
        """``version`` is committed."""
        self.drop(partition)
        self._kept[partition] = (now, version)

    def keep_all(self, versions: Mapping[TopicPartition, Version], now: float) -> None:
        """All of these are committed; nothing of somebody else's stands in the group."""
        kept, inherited = self._kept, self._inherited
        # Out and in again: the one committed longest ago comes first.
        if list(kept) != list(versions):  # else all are as old; nothing is looked up for that
            for partition in versions:
                kept.pop(partition, None)
        held = zip(repeat(now), versions.values(), strict=False)
        kept.update(zip(versions, held, strict=False))
        for partition in versions.keys() & inherited.keys():
            del inherited[partition]

    def inherit(self, partition: TopicPartition, found: Version, now: float) -> None:
        """``found`` is committed, nobody knows since when."""
        self.keep(partition, found, now)
        self._inherited[partition] = now

    def put_off(self, partition: TopicPartition, now: float) -> None:
        """What is committed there cannot be looked at now; its age is as unknown as before."""
        kept = self.kept(partition)
        if kept is not None:
            enter = self.inherit if partition in self._inherited else self.keep
            enter(partition, kept, now)

    def drop(self, partition: TopicPartition) -> None:
        """What is committed there is not this group's managers' to keep."""
        self._kept.pop(partition, None)
        self._inherited.pop(partition, None)

    def lose(self, partition: TopicPartition, version: Version) -> None:
        """A commit of ``version`` was given up: it has landed, or may land yet, or never."""
        lost = self._lost.setdefault(partition, _Lost([]))
        lost.versions = [*lost.versions[1 - LOST_LIMIT :], version]
        lost.since = lost.check_at = lost.until = inf
        self._look_at = None

    def prove(self, partition: TopicPartition, version: Version) -> None:
        """A lost commit of ``version`` was found to have landed."""
        lost, kept = self._lost.get(partition), self.kept(partition)
        if lost is None or (kept is not None and same(kept.value, version.value)):
            return  # nothing can be told from it: the same was committed before
        lost.versions.remove(version)
        if not lost.versions:
            self._end_watch(partition)

    def was_read(self, partition: TopicPartition, now: float) -> None:
        """The coordinator answers again: what it still holds lands soon, or late, or never."""
        lost = self._lost.get(partition)
        if lost is not None:
            self._begin_watch(lost, now)

    def _begin_watch(self, lost: _Lost, now: float) -> None:
        lost.since, lost.check_at = now, now + self._window_s
        lost.until = now + (PARTING_WINDOWS * self._window_s if lost.departed else LATEST_LANDING_S)
        self._look_at = None

    def _end_watch(self, partition: TopicPartition) -> None:
        if self._lost.pop(partition, None) is not None:
            self._look_at = None

    def depart(self, partition: TopicPartition, now: float) -> None:
        """The manager is gone; what it committed is watched as long as something may land on it."""
        self.foreign.forget(partition)
        lost = self._lost.get(partition)
        if lost is None:
            self.drop(partition)
        else:
            lost.departed = True
            self._begin_watch(lost, now)

    def succeed(self, partition: TopicPartition) -> None:
        """A new manager: all that its predecessor sent is older than what it will.

        What somebody else committed before it is what it begins with, as anything else.
        """
        self.foreign.forget(partition)
        lost, kept = self._lost.get(partition), self._kept.get(partition)
        versions = lost.versions if lost is not None else []
        past = max((v.number for v in (*versions, *(kept or ())[1:])), default=0)
        if lost is not None:
            lost.departed = False
            lost.versions = [v._replace(number=v.number - past) for v in versions]
        if kept is not None:
            self._kept[partition] = (kept[0], kept[1]._replace(number=kept[1].number - past))

    def judge(self, partition: TopicPartition, found: OffsetAndMetadata | None) -> Verdict:
        """What to make of ``found``, read from the coordinator."""
        kept, lost = self.kept(partition), self._lost.get(partition)
        if kept is not None and same(kept.value, found):
            return Verdict(Holding.STANDS, kept)
        landed = [v for v in lost.versions if same(v.value, found)] if lost is not None else []
        if not landed:
            return Verdict(Holding.FOREIGN, None)
        # All that was given up before somebody else committed is older than theirs.
        theirs = self.foreign.holds(partition)
        older = kept is not None and (theirs or landed[-1].number < kept.number)
        return Verdict(Holding.OLDER if older else Holding.NEWER, landed[-1])

    def stands(self, partition: TopicPartition, value: OffsetAndMetadata) -> bool:
        """Whether ``value`` is what was committed last, and nothing lost can undo that."""
        kept = self._kept.get(partition)
        return kept is not None and kept[1].value == value and partition not in self._lost

    # When to look.

    def next_check_at(self, keep_alive_s: float) -> float:
        """When to look at some partition again; ``inf`` for never."""
        if self._look_at is None:
            self._look_at = min((lost.check_at for lost in self._lost.values()), default=inf)
        if not keep_alive_s:
            return self._look_at
        oldest = next(iter(self._kept.values()), None)
        refresh = oldest[0] + keep_alive_s if oldest is not None else inf
        found = next(iter(self._inherited.values()), inf)
        return min(self._look_at, refresh, found + min(INHERITED_S, keep_alive_s))

    def due(self, keep_alive_s: float, now: float) -> Iterator[TopicPartition]:
        """Partitions to look at now, each once."""
        lost: dict[TopicPartition, _Lost] = {}
        if self.next_check_at(0.0) <= now:
            lost = {where: held for where, held in self._lost.items() if held.check_at <= now}
            yield from lost
        if not keep_alive_s:
            return
        for partition in self._inherited:
            if not self.is_old(partition, keep_alive_s, now):
                break
            if partition not in lost:
                yield partition
        for partition in self._kept:
            if partition in self._inherited:
                continue
            if not self.is_old(partition, keep_alive_s, now):
                return
            if partition not in lost:
                yield partition

    def is_old(self, partition: TopicPartition, keep_alive_s: float, now: float) -> bool:
        """Whether what is committed has to be committed again lest it expires."""
        held = self._kept.get(partition)
        if held is None or not keep_alive_s:
            return False
        limit_s = min(INHERITED_S, keep_alive_s) if partition in self._inherited else keep_alive_s
        return held[0] + limit_s <= now

    def looked(self, partition: TopicPartition, now: float) -> None:
        """A look that was due has been taken: the next one after twice the time, if any."""
        lost = self._lost.get(partition)
        if lost is None or lost.check_at > now:
            return
        if now >= lost.until:
            self._end_watch(partition)
        else:
            lost.check_at = min(lost.since + 2 * (now - lost.since), lost.until)
            self._look_at = None

    def postpone(self, partition: TopicPartition, now: float) -> None:
        """A look that was due was refused: take the next one when it is due again."""
        held, lost = self._kept.get(partition), self._lost.get(partition)
        if held is not None:
            self.keep(partition, held[1], now)
        if lost is None or not lost.departed:
            self.was_read(partition, now)
        elif now < lost.since + LATEST_LANDING_S:
            # Nothing was seen, so the minute of who is gone is not enough.
            after_s = min(2 * (now - lost.since), LATEST_LANDING_S)
            lost.check_at, self._look_at = lost.since + after_s, None
        else:
            self._end_watch(partition)  # nobody is left for whom to try for ever

    def doubts(self, partition: TopicPartition) -> bool:
        """Whether a lost commit may still land there."""
        return partition in self._lost

    def doubted(self) -> list[TopicPartition]:
        """Partitions where a lost commit may still land."""
        return list(self._lost)

    @property
    def waits(self) -> bool:
        """Whether a lost commit may still land."""
        return bool(self._lost)
