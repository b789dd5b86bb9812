"""What must hold besides where logs have ends.

*What goes back* is told by what was submitted, too: with ``clamp`` the committed offset falls
without a rewind where no less was submitted than before, and what is committed now or was before is
an end of the log in its place.

*What lies in its log* is told by the looks that the service was answered with.  What lies between
ends that it knows is committed without another look, though the log may have been cut since; so is
what it cannot find out about.  What was refused or moved had to be looked at after it was
submitted, and what was refused goes out only after a look that is newer than the one it failed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED
from offsetmgr.errors import CoordinatorError
from offsetmgr.types import ManagerKey
from tests.sim.judge import Judge
from tests.sim.referee import LEVEL, order_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.coordinator.memory import Request
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.manager.desk import ManagerStatus
    from offsetmgr.types import OffsetAndMetadata, StopResult, TopicPartition
    from tests.sim.judge import Promise
    from tests.sim.logs import Topic

OUT_OF_RANGE: Final = 1


class Ends(NamedTuple):
    """Between these a log was found to lie; both belong to it."""

    start: int
    end: int

    def hold(self, offset: int) -> bool:
        """Whether ``offset`` lies between them."""
        return self.start <= offset <= self.end

    def nearest(self, offset: int) -> int:
        """What is committed in place of ``offset`` where it is moved."""
        return min(max(offset, self.start), self.end)


class Look(NamedTuple):
    """An answer about the ends of logs; what is missing in it could not be read."""

    read: int
    """When it was read, in ticks."""
    told: int
    """When the service had the answer."""
    ends: Mapping[int, Ends]


class Wanted(NamedTuple):
    """What was submitted, and when first."""

    offset: int
    since: int


class FiniteJudge(Judge):
    """As its parent; also knows what the service was told of logs."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = "warn"
        self.shares_looks = False
        """Whether what was read of logs serves others for a while, so that it may be older than
        what some group has refused already."""
        self.looks_again = False
        """Whether the ends are read now and then, whatever is submitted."""
        self.recreated = 0
        """How often the topic was made anew."""
        self.told: dict[ManagerKey, set[int]] = defaultdict(set)
        """Offsets that somebody was told to lie outside."""
        self._ticks = 0
        self._looks: list[Look] = []
        self._wanted: dict[ManagerKey, dict[int, Wanted]] = defaultdict(dict)
        """By their place in the order of submits."""
        self._refused: dict[ManagerKey, dict[int, int]] = defaultdict(dict)
        """Offsets that were refused, and when their logs had been read for that."""
        self._stood: dict[ManagerKey, set[OffsetAndMetadata]] = defaultdict(set)
        """What was committed once; it may be kept from expiring, and put back."""

    def watch_topic(self, topic: Topic) -> None:
        """Whose logs they are."""
        self.topic = topic

    def next_tick(self) -> int:
        """Something happens; simulated time may stand still meanwhile."""
        self._ticks += 1
        return self._ticks

    def looked(self, read: int, log: TopicLog) -> None:
        """What was ``read`` then is told to the service now."""
        ends = {
            partition: Ends(each.log_start_offset, each.high_watermark)
            for partition, each in log.partitions.items()
            if each.failure is None
        }
        self._looks.append(Look(read, self.next_tick(), ends))

    def wanted(self, key: ManagerKey, value: OffsetAndMetadata) -> Wanted | None:
        """What was submitted where ``value`` is committed; None where somebody else did."""
        return self._wanted[key].get(order_of(value))

    def meant(self, key: ManagerKey, value: OffsetAndMetadata) -> int:
        """The offset that was submitted where ``value`` is committed."""
        wanted = self.wanted(key, value)
        return value.offset if wanted is None else wanted.offset

    def fell(self, key: ManagerKey, before: OffsetAndMetadata, value: OffsetAndMetadata) -> bool:
        """Whether it takes a rewind: not where more was submitted, and the log ends below it."""
        lower = self.meant(key, value) < self.meant(key, before)
        return lower and super().fell(key, before, value)

    # What is submitted and sent.

    def submitted(self, key: ManagerKey, value: OffsetAndMetadata, *, rewind: bool) -> None:
        """A submit was accepted."""
        super().submitted(key, value, rewind=rewind)
        self._wanted[key].setdefault(order_of(value), Wanted(value.offset, self.next_tick()))

    def took_effect(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The broker holds ``offsets`` now."""
        super().took_effect(group, offsets)
        for key, value in _keyed(group, offsets):
            self._stood[key].add(value)

    def sent(self, request: Request) -> None:
        """A request is on its way."""
        super().sent(request)
        for key, value in _keyed(request.group, request.offsets):
            wanted = self.wanted(key, value)
            if wanted is None or value in self._stood[key]:
                continue
            if value.offset == wanted.offset:
                self._judge_unmoved(key, wanted)
            else:
                self._judge_moved(key, value, wanted)

    def _judge_unmoved(self, key: ManagerKey, wanted: Wanted) -> None:
        if self.policy == "warn":
            return
        since = 0 if self.shares_looks else self._refused[key].get(wanted.offset, 0)
        within = (look.read > since and ends.hold(wanted.offset) for look, ends in self._seen(key))
        if not any(within) and not self._unclear(key, max(wanted.since, since)):
            refused = " after it was refused" if since else ""
            self.blame(f"{key}: {wanted} was sent{refused}, and by no look it lies in its log")

    def _judge_moved(self, key: ManagerKey, value: OffsetAndMetadata, wanted: Wanted) -> None:
        self.met["finite: moved"] += 1
        unclear = self._unclear(key, wanted.since)
        for look, ends in self._seen(key):
            # A start that is known holds where the log cannot be looked at: it only rises.
            known = look.read > wanted.since or (unclear and wanted.offset < ends.start)
            if self.policy == "clamp" and known and ends.nearest(wanted.offset) == value.offset:
                return
        self.blame(f"{key}: {value} was sent for {wanted}, and no log has ended there since")

    def _seen(self, key: ManagerKey) -> Iterator[tuple[Look, Ends]]:
        """Looks that told where the log of ``key`` ends, the last first."""
        for look in reversed(self._looks):
            ends = look.ends.get(key.partition)
            if ends is not None:
                yield look, ends

    def _unclear(self, key: ManagerKey, since: int) -> bool:
        """Whether a look that came since then did not tell where the log of ``key`` ends."""
        later = takewhile(lambda look: look.told > since, reversed(self._looks))
        return any(key.partition not in look.ends for look in later)

    # What is told.

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """A commit or fetch failed, a regression was dropped, or something lies outside its log."""
        code = error.info.code if isinstance(error, CoordinatorError) else None
        if code in (OFFSET_OUTSIDE_LOG, TOPIC_RECREATED) and isinstance(error, CoordinatorError):
            self._judge_notice(key, error)
            self._crash()
            return
        if code == OUT_OF_RANGE and isinstance(error, CoordinatorError):
            self._judge_refusal(key, error)
        super().failed(key, error)

    def _judge_notice(self, key: ManagerKey, error: CoordinatorError) -> None:
        if error.info.code == TOPIC_RECREATED:
            self.met["finite: told of a topic made anew"] += 1
            if not self.recreated:
                self.blame(f"{key}: nobody has made the topic anew, and yet: {error}")
            return
        self.met[f"finite: told, {self.policy}"] += 1
        offset = error.offset or 0
        self.told[key].add(offset)
        if self.policy == "refuse" or self._outside(key, offset, 0) is None:
            self.blame(f"{key}: no log was found to end so, and yet: {error}")

    def _judge_refusal(self, key: ManagerKey, error: CoordinatorError) -> None:
        self.met["finite: refused"] += 1
        offset = error.offset or 0
        look = self._refuted(key, offset)
        if self.policy != "refuse" or look is None:
            self.blame(f"{key}: no log was found to end so, and yet: {error}")
        else:
            self.told[key].add(offset)
            self._refused[key][offset] = look.read

    def _refuted(self, key: ManagerKey, offset: int) -> Look | None:
        """The last look by which ``offset``, submitted before, lies outside its log."""
        submits = [each.since for each in self._wanted[key].values() if each.offset == offset]
        return self._outside(key, offset, min(submits)) if submits else None

    def _outside(self, key: ManagerKey, offset: int, since: int) -> Look | None:
        for look, ends in self._seen(key):
            if look.read > since and not ends.hold(offset):
                return look
        return None

    def _judge_result(self, key: ManagerKey, promise: Promise, result: StopResult) -> None:
        left, error = result.uncommitted, result.error
        if left is not None and isinstance(error, CoordinatorError):
            outside = (
                error.info.code == OUT_OF_RANGE and self._refuted(key, left.offset) is not None
            )
            if outside:
                promise = replace(promise, must_commit=False)
        super()._judge_result(key, promise, result)

    # When logs have stood still for a while, without faults.

    def all_told(self, handles: Mapping[ManagerKey, ManagerHandle], *, notices: bool) -> None:
        """What lies outside its log was refused or told of.

        ``notices`` is whether each that was sent has come to its manager: it may die with one.
        """
        for key, handle in handles.items():
            ends, status = self._ends(key), handle.status()
            if ends is None or status.phase != "ready" or self.truth(key).foreign:
                continue
            if self.policy == "refuse":
                self._look_at_refused(key, ends, status)
            elif notices:
                self._look_at_notices(key, ends)

    def _ends(self, key: ManagerKey) -> Ends | None:
        levels = self.topic.ends(key.partition)
        return None if levels is None else Ends(levels[0] * LEVEL, levels[1] * LEVEL)

    def _look_at_refused(self, key: ManagerKey, ends: Ends, status: ManagerStatus) -> None:
        newest = super().owed(key)
        if newest is None or ends.hold(newest.offset) or newest in self._stood[key]:
            return
        error = status.last_error
        refused = isinstance(error, CoordinatorError) and error.info.code == OUT_OF_RANGE
        if not status.dirty or not refused or newest.offset not in self.told[key]:
            self.blame(f"{key}: {newest} lies outside of {ends}, and this is told: {status}")

    def _look_at_notices(self, key: ManagerKey, ends: Ends) -> None:
        value = self.truth(key).value
        if value is None:
            return
        meant = self.meant(key, value)
        untold = (
            self.looks_again and not ends.hold(meant)
            if self.policy == "warn"
            else (meant != value.offset)
        )
        if untold and meant not in self.told[key]:
            self.blame(f"{key}: {value} stands for {meant} in {ends}, and nobody was told")

    def owed(self, key: ManagerKey) -> OffsetAndMetadata | None:
        """What has to be committed there at last: with ``refuse``, not what is cut off its log."""
        newest, ends = super().owed(key), self._ends(key)
        if newest is None or ends is None or self.policy != "refuse" or newest in self._stood[key]:
            return newest
        return newest if newest.offset >= ends.start else None


def _keyed(
    group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Iterator[tuple[ManagerKey, OffsetAndMetadata]]:
    return ((ManagerKey(group, *partition), value) for partition, value in offsets.items())
