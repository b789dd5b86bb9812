"""Messages of claimed partitions on their way to the application, until each is acknowledged.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.

Nothing here reads a clock, waits or talks to Kafka; ``now_s`` is any clock that does not go back.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import count
from math import ceil, log2
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar, cast

from offsetmgr.acked_ranges import decode_ranges, encode_ranges, encoded_chars
from offsetmgr.retry_headers import Origin
from offsetmgr.types import (
    MAX_METADATA_CHARS,
    MAX_OFFSET,
    OffsetAndMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from confluent_kafka import Message

LIMIT_CHARS: Final = MAX_METADATA_CHARS - 1
"""Longest metadata of a commit; confluent-kafka sends one character more than it is given."""

_LOOKAHEAD: Final = 64
"""Offsets for which room is looked for at once."""

_RESERVE: Final = 2 * encoded_chars(2**63)
"""Characters for one range of offsets that do not exist: these are seen when they are passed."""

_BITS: Final = 5
"""Of a number, in each character."""

_T = TypeVar("_T")


class AckTracker(Generic[_T]):
    """The acknowledged offsets of one partition, and an item for each pending one.

    ``offset`` is the lowest one that is not acknowledged; that is what to commit.  Offsets are
    delivered in rising order and acknowledged in any.  An offset that is passed over does not exist
    (compaction, transaction markers) and counts as acknowledged.

    While callers deliver only where ``has_room`` is true, the metadata of ``position`` has at most
    ``limit_chars``, whatever is acknowledged in which order.
    """

    def __init__(
        self, offset: int, metadata: str = "", *, limit_chars: int = MAX_METADATA_CHARS
    ) -> None:
        """Begin at what is committed; raise ValueError where ``metadata`` holds no ranges."""
        self.offset = offset
        self._limit_chars = limit_chars
        self._next = offset
        self._room = 0  # offsets from `_next` on that can be delivered without a look
        self._pending: dict[int, _T] = {}
        # Acknowledged ranges above `offset`, rising and apart: first offsets, and ends.
        self._starts: list[int] = []
        self._ends: list[int] = []
        if metadata:
            for start, end in decode_ranges(offset, metadata):
                self._acknowledge_range(start, end)

    @property
    def pending(self) -> int:
        """Offsets delivered and not acknowledged."""
        return len(self._pending)

    @property
    def position(self) -> OffsetAndMetadata:
        """Return what to commit."""
        ranges = list(zip(self._starts, self._ends, strict=True))
        return OffsetAndMetadata(self.offset, encode_ranges(self.offset, ranges))

    @property
    def oldest(self) -> _T | None:
        """Return the item of ``offset``; None where it was not delivered yet."""
        return self._pending.get(self.offset)

    @property
    def has_room(self) -> bool:
        """True if one more offset can be delivered and every order of acks fits the metadata.

        The lowest offset of all can be delivered always: its ack makes the metadata no longer.
        """
        if self._room > 0 or not self._pending:
            return True
        end = max(self._next, self._ends[-1]) if self._ends else self._next
        if end == self._next and self._has_room(end, _LOOKAHEAD):
            self._room = _LOOKAHEAD
        return self._room > 0 or self._has_room(end, 1)

    def _has_room(self, end: int, more: int) -> bool:
        """True if every order of acks fits, with so many ``more`` delivered behind ``end``.

        Each range follows a gap of at least one offset that is pending or not delivered yet.  A
        number n takes at most 1 + log2(n) / 5 characters, so equal gaps and ranges take most.
        """
        window = end + more - self.offset
        ahead = len(self._starts) - bisect_right(self._starts, self._next)
        most = max(1, min(len(self._pending) + more + ahead, window // 2))
        chars = 2 * most * (1 + log2(max(1.0, window / (2 * most))) / _BITS)
        return ceil(chars) <= self._limit_chars - _RESERVE

    def is_pending(self, offset: int) -> bool:
        return offset in self._pending

    def is_acknowledged(self, offset: int) -> bool:
        if offset < self.offset:
            return True
        at = bisect_right(self._starts, offset)
        return at > 0 and offset < self._ends[at - 1]

    def deliver(self, offset: int, item: _T) -> bool:
        """Take in that ``offset`` comes to the application; False if it is acknowledged already."""
        if offset == self._next and self._room:
            self._room -= 1
            self._next = offset + 1
            self._pending[offset] = item
            return True
        self._room = 0
        if offset > self._next:
            self._acknowledge_range(self._next, offset)
        self._next = max(self._next, offset + 1)
        if self.is_acknowledged(offset):
            return False
        self._pending[offset] = item
        return True

    def acknowledge(self, offset: int) -> bool:
        """Acknowledge a delivered offset; False if it is not pending."""
        if offset not in self._pending:
            return False
        del self._pending[offset]
        if offset == self.offset and not self._starts:
            self.offset += 1
        else:
            self._acknowledge_range(offset, offset + 1)
        return True

    def acknowledge_up_to(self, offset: int) -> None:
        """Acknowledge all that is pending up to and with ``offset``."""
        for each in sorted(each for each in self._pending if each <= offset):
            self.acknowledge(each)

    def _acknowledge_range(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        # The ranges from `low` to before `high` touch the new one and become one with it.
        low, high = bisect_left(ends, start), bisect_right(starts, end)
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        if start <= self.offset:
            self.offset = max(self.offset, end)
            del starts[:high], ends[:high]
        else:
            starts[low:high], ends[low:high] = [start], [end]


class PartitionProgress(NamedTuple):
    """Progress of the acks of a claimed partition."""

    offset: int | None
    """The oldest offset that is not acknowledged; None before the first message."""
    pending: int
    """Messages that are handed out or about to be, and not acknowledged."""
    seconds: float
    """Age of the message at ``offset`` by its timestamp; 0 where it was not read yet."""
    metadata_chars: int
    """Length of the acknowledged ranges above ``offset`` in the commit, at most 4,095."""


class AckFunctions(NamedTuple):
    """A consumer as its messages call it; from any thread."""

    cluster: str
    acknowledge: Callable[[AckMessage], None]
    reject: Callable[[AckMessage, float | None, BaseException | str | None], None]


class Claim:
    """A partition from when it is claimed until it is released."""

    def __init__(
        self, consumer: AckFunctions, where: TopicPartition, committed: OffsetAndMetadata | None
    ) -> None:
        """Raise ValueError where the metadata of ``committed`` holds no acks."""
        self.cluster, self.acknowledge, self.reject = consumer
        self.where = where
        self.committed = committed
        self.releasing = False
        self.released = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        self.read = False
        # With nothing committed, reading begins before this offset.
        start = committed or OffsetAndMetadata(MAX_OFFSET)
        self.tracker = AckTracker[AckMessage](start.offset, start.metadata, limit_chars=LIMIT_CHARS)

    def is_pending(self, offset: int) -> bool:
        """True unless ``offset`` is acknowledged, or the partition was released."""
        return not self.released and self.tracker.is_pending(offset)

    def begin(self, offset: int) -> None:
        """Take in the offset of the first message that was read."""
        self.read = True
        if offset < self.tracker.offset:
            # Kafka had nothing at what is committed, so reading began elsewhere.
            self.tracker = AckTracker(offset, limit_chars=LIMIT_CHARS)

    def progress(self, now_s: float) -> PartitionProgress:
        """``now_s`` is in seconds since 1970."""
        tracker = self.tracker
        known = self.read or self.committed is not None
        oldest = tracker.oldest
        since_ms = oldest.timestamp if oldest else None
        return PartitionProgress(
            tracker.offset if known else None,
            tracker.pending,
            0.0 if since_ms is None else max(0.0, now_s - since_ms / 1000),
            len(tracker.position.metadata),
        )


class AckMessage:
    """A message that waits for its ack or nack; any thread may give it.

    A second ack or nack has no effect, nor has one for a partition that was released.
    """

    __slots__ = ("_claim", "_message", "_origin", "offset", "tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, origin: Origin | None = None
    ) -> None:
        self._message = message
        self._claim = claim
        self.offset = message.offset() or 0
        self.tries = tries
        """The number of known deliveries of the message, with this one."""
        self._origin = origin

    @property
    def key(self) -> bytes | None:
        return self._message.key()

    @property
    def value(self) -> bytes | None:
        return self._message.value()

    @property
    def topic(self) -> str:
        """Topic from which it was read, which may be a retry topic."""
        return self._claim.where.topic

    @property
    def partition(self) -> int:
        return self._claim.where.partition

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        return self._origin or Origin(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970; None if it has no timestamp."""
        kind, milliseconds = self._message.timestamp()
        return milliseconds if kind else None

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        headers = cast("list[tuple[str, bytes | None]] | None", self._message.headers())
        return headers or []

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster."""
        return self._claim.cluster

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self._claim.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Reject the message: it is delivered again after ``delay`` s, by default as set.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self._claim.reject(self, delay, error)

    def __repr__(self) -> str:
        return f"AckMessage({self.topic}-{self.partition}@{self.offset}, tries={self.tries})"


class Deliveries:
    """The messages of all claimed partitions; for one thread at a time.

    A message waits until it is due and its partition has room for one more; then it is ready, then
    in work, then acknowledged, or delayed until it is ready once more.
    """

    def __init__(self, ack_timeout_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._claims: dict[TopicPartition, Claim] = {}
        self._ready: deque[AckMessage] = deque()
        self._in_work: dict[AckMessage, float] = {}  # with their time-outs, which rise
        self._rejected: set[AckMessage] = set()
        self._delayed: list[tuple[float, int, AckMessage]] = []  # a heap
        self._numbers = count()

    # Partitions

    @property
    def pending(self) -> int:
        """Messages that were delivered and are not acknowledged."""
        return sum(claim.tracker.pending for claim in self._claims.values())

    def claim(self, claim: Claim) -> None:
        self._claims[claim.where] = claim

    def begin_release(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``; those in work can be acknowledged still."""
        for where in partitions:
            claim = self._claims.get(where)
            if claim is not None:
                claim.releasing = True
                claim.waiting.clear()
        self._ready = deque(each for each in self._ready if not each._claim.releasing)
        self._delayed = [each for each in self._delayed if not each[2]._claim.releasing]
        heapq.heapify(self._delayed)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self.begin_release(partitions)
        for where in partitions:
            claim = self._claims.pop(where, None)
            if claim is not None:
                claim.released = True
        self._in_work = {m: due_s for m, due_s in self._in_work.items() if not m._claim.released}
        self._rejected = {each for each in self._rejected if not each._claim.released}

    def in_work(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Count the messages of ``partitions`` (None: all) that the application has in work."""
        found = [*self._in_work, *self._rejected]
        return sum(
            (partitions is None or each._claim.where in partitions)
            and each._claim.is_pending(each.offset)
            for each in found
        )

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed and is not yet."""
        found = {}
        for where, claim in self._claims.items():
            if claim.read:
                position = claim.tracker.position
                known = claim.committed
                if known is None or position[:2] != known[:2]:
                    found[where] = position
        return found

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for where, position in offsets.items():
            if where in self._claims:
                self._claims[where].committed = position

    def progress(self, now_s: float) -> dict[TopicPartition, PartitionProgress]:
        """``now_s`` is in seconds since 1970."""
        return {where: claim.progress(now_s) for where, claim in sorted(self._claims.items())}

    def blocked(self) -> set[TopicPartition]:
        """Return the partitions that must not be read on: messages of theirs wait."""
        return {where for where, claim in self._claims.items() if claim.waiting}

    # Messages

    def claim_of(self, where: tuple[str | None, int | None]) -> Claim | None:
        return self._claims.get(cast("TopicPartition", where))

    def add(self, message: AckMessage, due_s: float, now_s: float) -> None:
        """Take in a message that was read, in the order of its partition."""
        claim = message._claim
        if claim.releasing:
            return
        if claim.waiting or due_s > now_s or not self._deliver(message, claim):
            claim.waiting.append((due_s, message))

    def _deliver(self, message: AckMessage, claim: Claim) -> bool:
        """Make a message ready, unless it is acknowledged; False where it has no room."""
        if not claim.read:
            claim.begin(message.offset)
        tracker = claim.tracker
        if not tracker.has_room:
            return False
        if tracker.deliver(message.offset, message):
            self._ready.append(message)
        return True

    def refresh(self, now_s: float) -> None:
        """Make ready what has room and is due by now."""
        for claim in self._claims.values():
            waiting = claim.waiting
            while waiting and waiting[0][0] <= now_s and self._deliver(waiting[0][1], claim):
                waiting.popleft()
        while self._delayed and self._delayed[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._delayed)[2])

    def next_due_s(self) -> float:
        """Return when ``refresh`` will find something by time alone; infinity where never."""
        found = [claim.waiting[0][0] for claim in self._claims.values() if claim.waiting]
        found += [self._delayed[0][0]] if self._delayed else []
        return min(found, default=float("inf"))

    def next(self, now_s: float) -> AckMessage | None:
        """Take the next ready message into work."""
        message = self.next_ready()
        if message is not None:
            self._in_work[message] = now_s + self._ack_timeout_s
        return message

    def next_ready(self) -> AckMessage | None:
        """Return the next ready message, for ``begin``."""
        while self._ready:
            message = self._ready.popleft()
            # One that is delivered again may be acknowledged by now.
            if message.tries == 1 or message._claim.is_pending(message.offset):
                return message
        return None

    def begin(self, message: AckMessage, now_s: float) -> bool:
        """Take a message into work; False where its partition is being released."""
        claim = message._claim
        if claim.releasing or not claim.is_pending(message.offset):
            return False
        self._in_work[message] = now_s + self._ack_timeout_s
        return True

    def overdue(self, now_s: float) -> list[AckMessage]:
        """Return the messages in work whose ack has timed out."""
        found = []
        for message, due_s in self._in_work.items():
            if due_s > now_s:
                break
            found.append(message)
        return found

    def acknowledge(self, message: AckMessage) -> None:
        """Take in an ack; that of an earlier delivery counts as well: the message was processed."""
        self._in_work.pop(message, None)
        if self._rejected:
            self._rejected.discard(message)
        claim = message._claim
        if not claim.released:
            claim.tracker.acknowledge(message.offset)

    def acknowledge_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        claim = message._claim
        if not claim.released:
            claim.tracker.acknowledge_up_to(message.offset)
            self._ready = deque(m for m in self._ready if m._claim.is_pending(m.offset))
            for each in [m for m in self._in_work if not m._claim.is_pending(m.offset)]:
                del self._in_work[each]

    def reject(self, message: AckMessage) -> bool:
        """Take a message out of work; False where it is not in work."""
        was_in_work = self._in_work.pop(message, None) is not None
        if not was_in_work or not message._claim.is_pending(message.offset):
            return False
        self._rejected.add(message)
        return True

    def redeliver(self, message: AckMessage, due_s: float) -> None:
        """Have a rejected message handed out again from ``due_s`` on."""
        self._rejected.discard(message)
        claim = message._claim
        if claim.is_pending(message.offset) and not claim.releasing:
            again = AckMessage(message._message, claim, message.tries + 1, message._origin)
            heapq.heappush(self._delayed, (due_s, next(self._numbers), again))
