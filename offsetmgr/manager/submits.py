"""The newest submitted offset of each partition of a group: latest wins, never backwards.

User threads fill a ``SubmitBuffer``; the group's committer reads the newest version when it sends.
Nothing queues in between: a submit replaces the one before it.  The buffers of a group share one
lock and one wake-up, so that a submit of many partitions is one step and a committer is told once.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetRegressionError
from offsetmgr.types import MAX_OFFSET, ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors import ActorRef
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.types import TopicPartition

_CLOSED: Final = MAX_OFFSET + 1
"""The floor of a closed buffer: every offset is below it."""

_next_number: Final = count(1).__next__
"""Numbers rise through the whole process, so that versions of successive managers compare."""


class Version(NamedTuple):
    """A submitted offset and its place in the order of submits."""

    number: int
    value: OffsetAndMetadata


class Submission(NamedTuple):
    """One checked offset of a submit of many partitions."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    rewind: bool = False


class SubmitBuffer:
    """Newest submitted offset of one partition, and the floor below which it may not fall.

    Everything is guarded by ``group.lock``.  ``queued`` is true from a submit until its newest
    version is committed or suspended; meanwhile the committer knows of the partition, or will when
    it collects.
    """

    __slots__ = (
        "_rewind",
        "closed",
        "dropped",
        "established",
        "floor",
        "force",
        "group",
        "number",
        "partition",
        "queued",
        "regressions",
        "settled",
        "value",
    )

    def __init__(self, group: GroupSubmits, partition: TopicPartition) -> None:
        self.group = group
        self.partition = partition
        self.queued = False
        self.floor = 0
        """Lowest offset taken without a rewind; above all offsets once closed."""
        self.closed = False
        self.established = False
        """True if the committed offset at the start is known; nothing is committed before."""
        self.regressions = 0
        """The number of lower offsets that were refused."""
        self.dropped: OffsetAndMetadata | None = None
        """The last submit, where it was dropped as a regression."""
        self.settled = 0
        """Number of the newest version that is known to be committed."""
        self.number = 0
        """Number of the newest version; 0 for none."""
        self.value: int | OffsetAndMetadata = -1
        """The newest offset; an int if it has neither metadata nor a leader epoch."""
        self._rewind = 0  # number of the newest rewind that is not committed yet
        self.force = False
        """True if the next submit counts as new, though it be the same."""

    # For users.

    def submit(self, value: int | OffsetAndMetadata, *, rewind: bool = False) -> None:
        """Make a checked offset the newest.

        Raises OffsetRegressionError for a lower offset that is no rewind, and ManagerStoppedError
        after ``close``.
        """
        with self.group.lock:
            self.put(value, rewind, _next_number())

    def put(
        self,
        value: int | OffsetAndMetadata,
        rewind: bool,  # noqa: FBT001 -- a keyword costs time
        number: int,
    ) -> None:
        """``submit`` as version ``number``, with the lock held."""
        offset = _offset_of(value)
        if offset < self.floor and (self.closed or not rewind):
            self._refuse(offset)
        self.floor = offset
        self.dropped = None
        if value != self.value or self.force:
            self.value = value
            self.number = number
            self.force = False
        if (rewind or not self.queued) and self.number > self.settled:
            if rewind:
                self._rewind = self.number
            if not self.queued:
                # In this order a Ctrl-C in between does no harm: queued twice is collected once.
                self.group.queue(self)
                self.queued = True

    def _refuse(self, offset: int) -> None:
        name = str(ManagerKey(self.group.name, *self.partition))
        if self.closed:
            raise ManagerStoppedError(f"{name} is stopped; spawn a new manager to submit again")
        self.regressions += 1
        raise OffsetRegressionError(name, offset, self.floor)

    def close(self) -> None:
        """Refuse submits from now on; twice is harmless."""
        with self.group.lock:
            self.closed, self.floor = True, _CLOSED

    # For the committer and the manager.

    @property
    def newest(self) -> Version | None:
        """Newest submitted version."""
        with self.group.lock:
            return self._version()

    @property
    def uncommitted(self) -> Version | None:
        """The newest version, where it is not known to be committed."""
        with self.group.lock:
            return self._version() if self.number > self.settled else None

    @property
    def dirty(self) -> bool:
        """True if the newest version is not known to be committed."""
        return self.number > self.settled

    @property
    def rewinds(self) -> bool:
        """True if what is not committed yet goes back on purpose."""
        return self._rewind > 0

    def outlook(self) -> tuple[Version | None, OffsetAndMetadata | None]:
        """Return ``uncommitted``, and the submit that was dropped as a regression; never both."""
        with self.group.lock:
            version = self._version() if self.number > self.settled else None
            return version, self.dropped

    def establish(self, committed: OffsetAndMetadata | None) -> None:
        """Enter what was committed at the start, and drop what is lower and no rewind.

        Only the first time counts: an answer to a restarted actor may be older than its own latest
        commit.
        """
        with self.group.lock:
            if not self.established:
                self.established = True
                self._compare(committed)

    def _compare(self, committed: OffsetAndMetadata | None) -> None:
        if committed is None:
            return
        newest = self._version()
        if newest is None:
            self._set_floor(committed)
        elif newest.value == committed:
            self._settle(newest.number)
        elif newest.value.offset < committed.offset and not self._rewind:
            self.regressions += 1
            self._settle(newest.number)
            self._set_floor(committed)
            self.dropped = newest.value
            self._replace(committed)

    def settle(self, number: int) -> bool:
        """Enter that version ``number`` is committed; return True if nothing newer waits."""
        with self.group.lock:
            return self._settle(number)

    def _settle(self, number: int) -> bool:
        self.settled = max(self.settled, number)
        if self._rewind <= number:
            self._rewind = 0
        if self.number > number:
            return False
        self.queued = False
        return True

    def suspend(self, number: int) -> bool:
        """Enter that version ``number`` was refused for good; return True if nothing newer waits.

        It stays dirty and visible; the next submit wakes the committer again.
        """
        with self.group.lock:
            if self.number > number:
                return False
            self.queued = False
            return True

    def resubmit(self, number: int) -> bool:
        """Make version ``number`` dirty again, which is not committed any more.

        Return False where it is not the newest.
        """
        with self.group.lock:
            if self.number != number or number > self.settled:
                return False
            self.settled, self.queued = number - 1, True
            return True

    def follow(self, external: OffsetAndMetadata | None) -> None:
        """Enter an external change (None: deleted): the floor from now on, unless more waits."""
        with self.group.lock:
            if external is None:
                self.force = True
            elif self.number <= self.settled:
                self._set_floor(external)
                if self.number:
                    self._replace(external)
            elif _offset_of(self.value) < external.offset and not self._rewind:
                self._set_floor(external)

    def _set_floor(self, committed: OffsetAndMetadata) -> None:
        if not self.closed:
            self.floor = committed.offset

    def _replace(self, value: OffsetAndMetadata) -> None:
        """Let a submit of ``value`` be no news: it is what is committed."""
        self.value = shortest(*value)

    def _version(self) -> Version | None:
        value = self.value
        if isinstance(value, int):
            value = OffsetAndMetadata(value)
        return Version(self.number, value) if self.number else None

    def collect(self) -> bool:
        """Return True if it is dirty, else leave the queue; with the lock held."""
        self.queued = self.number > self.settled
        if not self.queued:
            self._rewind = 0  # a rewind to what is committed gives no licence for later
        return self.queued


def shortest(
    offset: int, metadata: str = "", leader_epoch: int | None = None
) -> int | OffsetAndMetadata:
    """Return the offset alone where there is nothing else: faster to make and to compare."""
    if metadata or leader_epoch is not None:
        return OffsetAndMetadata(offset, metadata, leader_epoch)
    return offset


def _offset_of(value: int | OffsetAndMetadata) -> int:
    return value if isinstance(value, int) else value.offset


class Collect(NamedTuple):
    """Message to the committer, an interval after the first submit to a clean group."""


class GroupSubmits:
    """The submit buffers of one group: their lock, and which of them the committer must collect."""

    __slots__ = (
        "_committer",
        "_interval_s",
        "_pending",
        "_queue",
        "_since",
        "last_failure",
        "lock",
        "name",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = Lock()
        self.last_failure: Failure | None = None
        """The reason why the last request failed for the whole group; None if it did not."""
        self._queue: list[SubmitBuffer] = []
        self._committer: ActorRef[Any] | None = None
        self._interval_s = 0.0
        self._since: float | None = None  # when the first in the queue was submitted
        self._pending = False  # whether a wake-up is under way; at most one is

    def attach(self, committer: ActorRef[Any], interval_s: float) -> None:
        """Wake this committer an interval after each first submit, and after what waits now."""
        with self.lock:
            self._interval_s = interval_s
            if self._committer is not committer:
                self._committer, self._since, self._pending = committer, None, False
            if self._queue:
                self._wake()

    def tell(self, message: object) -> bool:
        """Tell the committer; return False where there is none at present."""
        committer = self._committer
        return committer is not None and committer.try_tell(message)

    @property
    def waiting(self) -> bool:
        """True if there is something to collect."""
        return self._since is not None

    def queue(self, buffer: SubmitBuffer) -> None:
        """Have ``buffer`` collected; with the lock held."""
        self._queue.append(buffer)
        if self._since is None:
            self._wake()

    def woken(self) -> None:
        """Enter that the wake-up came."""
        with self.lock:
            self._pending = False

    def collect(self, now: float) -> tuple[list[SubmitBuffer], float]:
        """Return the dirty buffers of the queue, and when the first of them was submitted."""
        with self.lock:
            queue, since = self._queue, self._since
            self._queue, self._since = [], None
            return [each for each in queue if each.collect()], now if since is None else since

    def submit(
        self, entries: Iterable[tuple[SubmitBuffer, int | Submission]], *, rewind: bool
    ) -> dict[TopicPartition, OffsetManagerError]:
        """Submit many partitions in one step; return the refused ones."""
        refused: dict[TopicPartition, OffsetManagerError] = {}
        number = _next_number()
        with self.lock:
            for buffer, value in entries:
                try:
                    if not isinstance(value, int):
                        buffer.put(shortest(*value[:3]), value.rewind, number)
                    elif rewind or value <= buffer.floor:
                        buffer.put(value, rewind, number)
                    else:
                        # What ``put`` does in the common case, without a call.
                        buffer.value = buffer.floor = value
                        buffer.number = number
                        if not buffer.queued:
                            buffer.dropped, buffer.force = None, False
                            self.queue(buffer)
                            buffer.queued = True
                except OffsetManagerError as error:
                    refused[buffer.partition] = error
        return refused

    def _wake(self) -> None:
        committer = self._committer
        # A group without a committer is collected when the committer comes.
        if committer is not None and self._since is None:
            system = committer.loop.system
            now = system.clock.now()
            if not self._pending:
                # In this order a Ctrl-C may cost a second wake-up, but never the only one.
                system.timers.call_after(self._interval_s, partial(committer.tell_due, Collect()))
                self._pending = True
            self._since = now
