"""The in-tray of one group: what was submitted, and its committer has not collected yet.

All slots of a group share the tray's lock, so that a submit of many partitions is one step.  Two
things lie in it: the slots that were filled since the committer came last, and the last round, a
group-wise submit that was kept whole because all it does is to raise what the round before it left.
The committer is rung for once, however much is put in before it comes.
"""

from __future__ import annotations

from operator import lt
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.manager.slot import SubmitSlot
from offsetmgr.types import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors import ActorRef, Clock
    from actors.timers import Timers
    from offsetmgr.types import TopicPartition

_PLAIN: Final = {int}


class Rung(NamedTuple):
    """Told to the committer an interval after something was put into the empty tray."""


_RUNG: Final = Rung()


class Bell(NamedTuple):
    """How a committer is told, an interval later: no turn of its is spent on what is not due."""

    committer: ActorRef[Any]
    timers: Timers
    clock: Clock
    interval_s: float


class _Round:
    """A group-wise submit of plain offsets, in the caller's order."""

    __slots__ = ("keys", "offsets", "slots", "waits")

    def __init__(
        self, keys: list[TopicPartition], slots: list[SubmitSlot], offsets: list[int]
    ) -> None:
        self.keys = keys
        self.slots = slots
        self.offsets = offsets
        """What each slot holds at least; the next round must not be lower."""
        self.waits = False
        """Whether the offsets have still to be handed out to the slots."""


class Tray:
    """What lies between the users of one group and its committer."""

    __slots__ = ("_bell", "_rings", "_since", "_touched", "group", "last", "lock")

    def __init__(self, group: str) -> None:
        self.group = group
        self.lock = RLock()
        """Guards this tray and all of its slots; it knows whose it is, see ``SubmitSlot.put``."""
        self.last: _Round | None = None
        """What the next group-wise submit is compared with; None where a slot was filled, closed
        or moved by itself since, and the offsets of the round are no longer the floors."""
        self._touched: list[SubmitSlot] = []
        self._bell: Bell | None = None
        self._since: float | None = None
        """When something was put into it since the committer came last; None where nothing was."""
        self._rings = False
        """Whether the committer is to be told, and was not yet."""

    # For the committer and its parent.

    def attend(self, bell: Bell) -> None:
        """Ring ``bell`` from now on, also for what is there already."""
        with self.lock:
            if self._bell is None or self._bell.committer is not bell.committer:
                self._bell, self._since, self._rings = bell, None, False
            if self._touched or self._waits():
                self._ring()

    def tell(self, message: object) -> bool:
        """Tell the committer; False where there is none at present."""
        bell = self._bell
        return bell is not None and bell.committer.try_tell(message)

    @property
    def filled(self) -> bool:
        """Whether there is something to collect that was rung for."""
        return self._since is not None

    def heard(self, now: float) -> bool:
        """The bell has rung; whether what it rang for is there yet, and due.

        What came after an earlier visit of the committer is rung for when its own interval is over.
        """
        with self.lock:
            self._rings = False
            bell, since = self._bell, self._since
            if bell is None or since is None:
                return False
            left_s = since + bell.interval_s - now
            if left_s > 0:
                self._ring_in(bell, left_s)
            return left_s <= 0

    def collect(self, now: float) -> tuple[list[SubmitSlot], float]:
        """The slots that were filled and are dirty, and since when; the next one rings again."""
        with self.lock:
            last, since = self.last, self._since
            self._since = None
            if last is not None and last.waits and not self._touched:
                last.waits = False
                dirty = SubmitSlot.look_at_round(last.slots, last.offsets)
            else:
                self.hand_out()
                touched, self._touched = self._touched, []
                dirty = SubmitSlot.look_at(touched)
            return dirty, now if since is None else since

    # For whoever submits a group's offsets at once.

    def repeat(self, offsets: Mapping[TopicPartition, object]) -> bool:
        """Take ``offsets`` where they only raise those of the last round; False where not.

        Then nothing was taken, and each has to be looked at by itself.  Nothing here runs once for
        each partition but what the interpreter does in C.
        """
        last = self.last
        if last is None or len(last.keys) != len(offsets):
            return False
        values: list[Any] = list(offsets.values())
        if set(map(type, values)) != _PLAIN or max(values) > MAX_OFFSET:
            return False
        if list(offsets) != last.keys:
            return False
        with self.lock:
            if last is not self.last or any(map(lt, values, last.offsets)):
                return False
            last.offsets = values
            if not last.waits:
                last.waits = True
                self._ring()
        return True

    # With the lock held.

    def remember(
        self, keys: list[TopicPartition], slots: list[SubmitSlot], offsets: list[int]
    ) -> None:
        """What was just put into ``slots`` is what the next round is compared with."""
        self.last = _Round(keys, slots, offsets)

    def touch(self, slot: SubmitSlot) -> None:
        """``slot`` was filled, and is not known to be so."""
        self._touched.append(slot)
        if self._since is None:
            self._ring()

    def hand_out(self) -> None:
        """Put the offsets of a waiting round into its slots."""
        last = self.last
        if last is None or not last.waits:
            return
        last.waits = False
        for slot, offset in zip(last.slots, last.offsets, strict=True):
            slot.floor = offset
            slot.pending = (offset, "", None)
            if not slot.armed:
                slot.armed = True
                self._touched.append(slot)

    def part(self) -> None:
        """The same, and from now on each slot goes its own way."""
        if self.last is not None:
            self.hand_out()
            self.last = None

    def _waits(self) -> bool:
        return self.last is not None and self.last.waits

    def _ring(self) -> None:
        bell = self._bell
        # Where there is no committer, it will look when it comes.
        if bell is not None and self._since is None:
            now = bell.clock.now()
            if not self._rings:
                self._ring_in(bell, bell.interval_s)
            self._since = now

    def _ring_in(self, bell: Bell, delay_s: float) -> None:
        # First: a Ctrl-C may leave a bell that rings twice, but none that never does.
        bell.timers.tell_after(delay_s, bell.committer, _RUNG)
        self._rings = True
