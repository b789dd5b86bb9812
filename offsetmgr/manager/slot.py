"""The submit mailbox of one manager: a single slot, latest wins, never backwards.

Any thread fills it; the group's committer reads the newest when it sends.  Between the two nothing
queues: a hot loop of submits replaces one tuple.  What was put in becomes a version when somebody
looks, so submits that nobody saw cost no version.
"""

# ruff: noqa: SLF001 -- static methods go through many slots of their own class

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from itertools import groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError
from offsetmgr.types import MAX_OFFSET, ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import TopicPartition

_CLOSED: Final = MAX_OFFSET + 1
"""A floor below which every offset is."""

_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each offset."""


class Version(NamedTuple):
    """A submitted offset and its place in the order of those that were seen (from 1)."""

    number: int
    value: OffsetAndMetadata


class Standing(Enum):
    """How the slot stands to what the coordinator had committed when the manager started."""

    CLEAN = "clean"
    """Nothing was submitted, or all of it is committed."""
    SAME = "same"
    """What was submitted is committed already."""
    DIRTY = "dirty"
    """What was submitted has to be committed."""
    REGRESSED = "regressed"
    """What was submitted is lower than what is committed, without a rewind; it was dropped."""


class Finding(NamedTuple):
    """What the slot made of the committed offset."""

    standing: Standing
    submitted: Version | None
    """Newest submitted version at that moment; for a regressed one, the one that was dropped."""


class SubmitSlot:
    """Newest submitted offset of one manager, with the floor below which it may not fall.

    It is guarded by the lock of its group's tray.  ``armed`` is true from when it is filled until
    its newest version is settled or parked: then, and only then, its committer knows of it or is
    rung for.
    """

    __slots__ = (
        "_anew",
        "_dropped",
        "_reopened",
        "_rewind",
        "armed",
        "closed",
        "established",
        "floor",
        "pending",
        "regressions",
        "seen",
        "settled",
        "tray",
        "where",
    )

    def __init__(self, tray: Tray, where: TopicPartition) -> None:
        self.tray = tray
        self.where = where
        self.armed = False
        self.pending: tuple[int, str, int | None] | None = None
        """What was put in and nobody has looked at yet."""
        self.floor = 0
        """Lowest offset taken without a rewind; none at all once it is closed."""
        self.closed = False
        """Whether the manager was asked to stop."""
        self.established = False
        """Whether it is known what was committed before; nothing may be committed until then."""
        self.regressions = 0
        """How many lower offsets were refused."""
        self._dropped: Version | None = None
        self.seen: Version | None = None
        """The newest that somebody has looked at; what came since is newer."""
        self.settled = 0
        """Number of the newest version that is known to be committed."""
        self._reopened: Version | None = None
        self._rewind = 0
        """Number of the newest version that goes back on purpose, until it is committed; 0: none is
        open."""
        self._anew = False
        """Whether what is put in next is news, though it be what was put in last."""

    @property
    def newest(self) -> Version | None:
        """Newest submitted version."""
        with self.tray.lock:
            self.tray.hand_out()
            return self._see()

    @property
    def dirty(self) -> bool:
        """Whether the newest offset is not known to be committed."""
        return self.wanted() is not None

    def outlook(self) -> tuple[Version | None, OffsetAndMetadata | None]:
        """``wanted``; or what was submitted last and dropped for a higher one that was committed.

        At one moment, so that never are both there.
        """
        with self.tray.lock:
            self.tray.hand_out()
            wanted = self.unsettled()
            return wanted, self._dropped and self._dropped.value

    def wanted(self) -> Version | None:
        """The newest version, where it is not known to be committed."""
        with self.tray.lock:
            self.tray.hand_out()
            return self.unsettled()

    @property
    def rewinds(self) -> bool:
        """Whether what is not committed yet goes back on purpose."""
        return self._rewind > 0

    def put(self, offset: int, metadata: str, leader_epoch: int | None) -> None:
        """Take an offset that is checked and no rewind: ``offer`` for a hot loop.

        Raises as ``offer`` does.
        """
        tray = self.tray
        lock = tray.lock
        try:
            # By hand: ``with`` costs as much as all else here.  A Ctrl-C can come up right after
            # the lock is taken, hence within the try.
            lock.acquire()
            if self.floor <= offset and tray.last is None:
                self.floor = offset
                self.pending = (offset, metadata, leader_epoch)
                if not self.armed:
                    tray.touch(self)
                    self.armed = True
                lock.release()
                return
            lock.release()
        except BaseException:
            with suppress(RuntimeError):  # where it is not held: not yet, or not any more
                lock.release()
            raise
        self.offer(OffsetAndMetadata(offset, metadata, leader_epoch))

    def offer(self, value: OffsetAndMetadata, *, rewind: bool = False) -> None:
        """Take ``value``; its committer is rung for, where it does not know of it.

        Raises OffsetRegressionError for a lower offset that is no rewind, and
        ManagerStoppedError after close.
        """
        with self.tray.lock:
            self.tray.part()
            self.take(value, rewind=rewind)

    def take(self, value: OffsetAndMetadata, *, rewind: bool) -> None:
        """Do it, with the lock held and the tray parted; raises as ``offer`` does."""
        if self.closed:
            raise ManagerStoppedError(
                f"{self._name()} is stopped; spawn a new manager to submit again"
            )
        if value.offset < self.floor and not rewind:
            self.regressions += 1
            raise OffsetRegressionError(self._name(), value.offset, self.floor)
        # It counts until it is committed: what comes after it goes on from there.
        if rewind:
            self._rewind = 1 if self.seen is None else self.seen.number + 1
        self.floor = value.offset
        self.pending = value
        if not self.armed:
            # In this order: one that is touched twice is collected as one.
            self.tray.touch(self)
            self.armed = True

    @staticmethod
    def look_at(slots: Iterable[SubmitSlot]) -> list[SubmitSlot]:
        """Which of these are dirty, with the lock held; the others their committer may forget."""
        dirty: list[SubmitSlot] = []
        for slot in slots:
            # ``_see``, without a call to it for each offset that is submitted.
            newest, pending = slot.seen, slot.pending
            if pending is not None:
                slot.pending = slot._dropped = None
                if newest is None or newest[1] != pending or slot._anew:
                    number = 1 if newest is None else newest[0] + 1
                    newest = _new(Version, (number, _new(OffsetAndMetadata, pending)))
                    slot.seen, slot._anew = newest, False
            slot.armed = newest is not None and newest[0] > slot.settled
            if slot.armed:
                dirty.append(slot)
            else:
                # A rewind to what is committed is over: it is no licence for what comes later.
                slot._rewind = 0
        return dirty

    @staticmethod
    def look_at_round(slots: Sequence[SubmitSlot], offsets: Sequence[int]) -> list[SubmitSlot]:
        """``look_at`` for slots that plain offsets are just being put into, in one step.

        Returns those that their committer does not know of and that are dirty.
        """
        dirty: list[SubmitSlot] = []
        values = map(_new, repeat(OffsetAndMetadata), zip(offsets, repeat(""), repeat(None)))
        for slot, value in zip(slots, values, strict=True):
            slot.floor = value[0]
            slot.pending = slot._dropped = None
            newest = slot.seen
            if newest is None or newest[1] != value or slot._anew:
                number = 1 if newest is None else newest[0] + 1
                newest = slot.seen = _new(Version, (number, value))
                slot._anew = False
            if not slot.armed and newest[0] > slot.settled:
                slot.armed = True
                dirty.append(slot)
        return dirty

    def unsettled(self) -> Version | None:
        """The newest version, where it is not known to be committed; with the lock held."""
        newest = self.seen if self.pending is None else self._see()
        return newest if newest is not None and newest[0] > self.settled else None

    def establish(self, committed: OffsetAndMetadata | None) -> Finding:
        """Learn what is committed; decide, in one step with the floor, what that means.

        Only the first time: later it is this manager that commits, and an answer to a restarted
        actor may be older than its latest commit.
        """
        with self.tray.lock:
            self.tray.part()
            submitted = self._see()
            if self.established:
                if self._dropped is not None:
                    # Told to an instance that may not have lived to tell it.
                    return Finding(Standing.REGRESSED, self._dropped)
                dirty = submitted is not None and submitted.number > self.settled
                return Finding(Standing.DIRTY if dirty else Standing.CLEAN, submitted)
            self.established = True
            return Finding(self._compare(submitted, committed), submitted)

    def _compare(self, newest: Version | None, committed: OffsetAndMetadata | None) -> Standing:
        if newest is None:
            self._set_floor(committed)
            return Standing.CLEAN
        if committed is None:
            return Standing.DIRTY
        if newest.value == committed:
            self.settled, self.armed, self._rewind = newest.number, False, 0
            return Standing.SAME
        if newest.value.offset < committed.offset and not self._rewind:
            self.regressions += 1
            self.settled, self.armed = newest.number, False
            self._set_floor(committed)
            self._dropped, self.seen = newest, Version(newest.number, committed)
            return Standing.REGRESSED
        return Standing.DIRTY

    def _set_floor(self, committed: OffsetAndMetadata | None) -> None:
        if committed is not None and not self.closed:
            self.floor = committed.offset

    def settle(self, number: int) -> bool:
        """Version ``number`` is committed; True where nothing newer waits."""
        with self.tray.lock:
            return self.mark_all_settled([(self, number)])[0]

    @staticmethod
    def mark_all_settled(settled: Iterable[tuple[SubmitSlot, int]]) -> list[bool]:
        """``settle`` for each of these, with the lock held."""
        clean: list[bool] = []
        for slot, number in settled:
            if number > slot.settled:  # noqa: PLR1730 -- no call for each offset
                slot.settled = number
            newest = slot.seen if slot.pending is None else slot._see()
            newer = newest is not None and newest[0] > number
            if not newer:
                slot.armed = False
            if slot._rewind and (not newer or slot._rewind <= number):
                slot._rewind = 0
            clean.append(not newer)
        return clean

    def park(self, number: int) -> bool:
        """Version ``number`` was refused for good; True where nothing newer waits.

        It stays dirty and visible; the next offer rings for the committer again.
        """
        with self.tray.lock:
            newest = self._see()
            if newest is not None and newest.number > number:
                return False
            self.armed = False
            return True

    def reopen(self, committed: Version) -> bool:
        """``committed`` is not committed any more; True where it is the newest.

        It is given as it was committed, which need not be as it was submitted.
        """
        number = committed.number
        with self.tray.lock:
            newest = self._see()
            if newest is None or newest.number != number or number > self.settled:
                return False
            self.settled, self.armed = number - 1, True
            self._reopened = committed
            return True

    @property
    def reopened(self) -> Version | None:
        """What was acknowledged, is not committed any more, and was not committed again yet."""
        version = self._reopened
        return version if version is not None and version.number > self.settled else None

    def follow(self, theirs: OffsetAndMetadata) -> None:
        """Somebody else committed ``theirs``: the floor from now on, and news what is not that."""
        with self.tray.lock:
            self.tray.part()
            self._reopened = None  # what is put back now is not what stood there at last
            newest = self._see()
            waits = newest is not None and newest.number > self.settled
            if newest is None or not waits:
                self._set_floor(theirs)
                self.seen = newest and Version(newest.number, theirs)
            elif newest.value.offset < theirs.offset and not self._rewind:
                self._set_floor(theirs)  # else what waits is the floor, and goes over theirs

    def renew(self) -> None:
        """What was submitted last is not what is committed: to submit it again is news."""
        with self.tray.lock:
            self.tray.hand_out()
            self._see()
            self._anew = True

    def close_if_clean(self) -> bool:
        """Refuse offers from now on, unless one waits to be committed; True where it did."""
        with self.tray.lock:
            self.tray.part()
            newest = self._see()
            if newest is not None and newest.number > self.settled:
                return False
            self.closed, self.floor = True, _CLOSED
            return True

    def close(self) -> None:
        """Refuse offers from now on; twice is harmless."""
        with self.tray.lock:
            self.tray.part()
            self.closed, self.floor = True, _CLOSED

    def _see(self) -> Version | None:
        """Make a version of what was put in, unless it is the newest anyway."""
        pending, newest = self.pending, self.seen
        if pending is not None:
            self.pending = self._dropped = None
            if newest is None or newest[1] != pending or self._anew:
                number = 1 if newest is None else newest[0] + 1
                newest = _new(Version, (number, _new(OffsetAndMetadata, pending)))
                self.seen, self._anew = newest, False
        return newest

    def _name(self) -> str:
        return str(ManagerKey(self.tray.group, *self.where))


def wanted_of(slots: Iterable[SubmitSlot]) -> list[Version | None]:
    """What ``SubmitSlot.wanted`` says of each; those that share a tray are asked in one step."""
    wanted: list[Version | None] = []
    for tray, shared in groupby(slots, _tray_of):
        with tray.lock:
            tray.hand_out()
            # Most were looked at just now, and hold what nobody else has put in since.
            wanted += [
                seen
                if slot.pending is None and (seen := slot.seen) and seen[0] > slot.settled
                else slot.unsettled()
                for slot in shared
            ]
    return wanted


def settle_all(slots: Iterable[SubmitSlot], numbers: Iterable[int]) -> list[bool]:
    """``SubmitSlot.settle`` for each of these; those that share a tray in one step."""
    clean: list[bool] = []
    versions = iter(numbers)
    for tray, shared in groupby(slots, _tray_of):
        with tray.lock:
            clean += SubmitSlot.mark_all_settled(zip(shared, versions, strict=False))
    return clean


_tray_of: Final = attrgetter("tray")
