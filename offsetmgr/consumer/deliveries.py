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

from confluent_kafka import TIMESTAMP_CREATE_TIME

from offsetmgr.acked_ranges import (
    PREFIX_CHARS,
    decode_acks,
    encode_acks,
    encode_ranges,
    encoded_chars,
)
from offsetmgr.kafka.messages import headers_of
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

_OVERHEAD_BYTES: Final = 500
"""Of the objects that a message is made of."""

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
        self,
        offset: int,
        metadata: str = "",
        *,
        limit_chars: int = MAX_METADATA_CHARS,
        bare: bool = False,
    ) -> None:
        """Begin at what is committed; with ``bare``, metadata is as kafka-pixy commits it.

        Raises ValueError for ``metadata`` that is neither ours nor, with ``bare``, kafka-pixy's.
        """
        self.offset = offset
        self._bare = bare
        self._limit_chars = limit_chars if bare else limit_chars - PREFIX_CHARS
        self._next = offset
        self._room = 0  # offsets from `_next` on that can be delivered without a look
        self._pending: dict[int, _T] = {}
        # Acknowledged ranges above `offset`, rising and apart: first offsets, and ends.
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in decode_acks(offset, metadata, bare=bare):
            self._acknowledge_range(start, end)

    @property
    def pending(self) -> int:
        """Offsets delivered and not acknowledged."""
        return len(self._pending)

    @property
    def position(self) -> OffsetAndMetadata:
        """Return what to commit."""
        ranges = list(zip(self._starts, self._ends, strict=True))
        encode = encode_ranges if self._bare else encode_acks
        return OffsetAndMetadata(self.offset, encode(self.offset, ranges))

    @property
    def acknowledged_end(self) -> int:
        """Return the end of the highest acknowledged range; ``offset`` where there is none."""
        return self._ends[-1] if self._ends else self.offset

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

    def pass_over(self, end: int) -> None:
        """Take in that nothing comes before ``end`` any more, such as markers of transactions."""
        if end > self._next:
            self._room = 0
            self._acknowledge_range(self._next, end)
            self._next = end

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

    def acknowledge_up_to(self, offset: int) -> list[_T]:
        """Acknowledge all that is pending up to and with ``offset``; return their items."""
        done = []
        for each in sorted(each for each in self._pending if each <= offset):
            done.append(self._pending[each])
            self.acknowledge(each)
        return done

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
    """A partition's log from when it is claimed until it is released."""

    def __init__(
        self,
        consumer: AckFunctions,
        where: TopicPartition,
        committed: OffsetAndMetadata | None,
        *,
        start: int | None = None,
        bare: bool = False,
    ) -> None:
        """``start`` is where reading begins if that is not ``committed``; it is to be committed.

        ``bare`` as for AckTracker.  Raises ValueError for metadata that is not of acks.
        """
        self.cluster, self.acknowledge, self.reject = consumer
        self.where = where
        self.committed = committed
        self.bytes = 0
        """Size of the messages that are not acknowledged."""
        self.releasing = False
        self.released = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        self.read = False
        self.given_up: set[int] = set()
        self.end = 0
        """The log had no further message before this offset when it was read to its end."""
        self._bare = bare
        offset, metadata, _ = committed or OffsetAndMetadata(MAX_OFFSET)
        if start is not None:
            offset, metadata = start, ""
        self.begun = offset != MAX_OFFSET
        """False until it is known where reading begins."""
        self.tracker = self._track(offset, metadata)

    def _track(self, offset: int, metadata: str = "") -> AckTracker[AckMessage]:
        return AckTracker(offset, metadata, limit_chars=LIMIT_CHARS, bare=self._bare)

    def is_pending(self, offset: int) -> bool:
        """True unless ``offset`` is acknowledged, or the partition was released."""
        return not self.released and self.tracker.is_pending(offset)

    def begin(self, offset: int) -> None:
        """Take in where reading begins."""
        if not self.begun or offset < self.tracker.offset:
            self.begun = True
            self.tracker = self._track(offset)
        self.read = True

    def drop_ranges_beyond(self, end: int) -> bool:
        """Forget acknowledged ranges that reach beyond the end of the log; True if there were."""
        beyond = self.begun and self.tracker.acknowledged_end > max(end, self.tracker.offset)
        if beyond:
            self.tracker = self._track(self.tracker.offset)
        return beyond

    def pass_over_end(self) -> None:
        """Commit up to the end of the log once all messages before it are acknowledged."""
        if self.end and not self.waiting:
            if not self.begun:
                self.begin(self.end)
            self.tracker.pass_over(self.end)

    def progress(self, now_s: float) -> PartitionProgress:
        """``now_s`` is in seconds since 1970."""
        tracker = self.tracker
        since_ms = tracker.oldest.timestamp()[1] if tracker.oldest else 0
        return PartitionProgress(
            tracker.offset if self.begun else None,
            tracker.pending,
            max(0.0, now_s - since_ms / 1000) if since_ms else 0.0,
            len(tracker.position.metadata),
        )


class FirstRead(NamedTuple):
    """Place and timestamp of a message where it was first read, before any retry topic."""

    origin: Origin
    timestamp_ms: int | None


class AckMessage:
    """A message that waits for its ack or nack; any thread may give it.

    It has the methods of a message of confluent-kafka.  A second ack or nack has no effect, nor has
    one for a partition that was released.
    """

    __slots__ = ("_claim", "_first", "_message", "_offset", "tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, first: FirstRead | None = None
    ) -> None:
        """``first`` is of a message from a retry topic."""
        self._message = message
        self._claim = claim
        self._offset = message.offset() or 0
        self.tries = tries
        """The number of known deliveries of the message, with this one."""
        self._first = first

    def topic(self) -> str:
        """Return the topic from which it was read, which may be a retry topic."""
        return self._claim.where.topic

    def partition(self) -> int:
        return self._claim.where.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._message.key()

    def value(self) -> bytes | None:
        return self._message.value()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none; a name that is not UTF-8 is ``\ufffd``."""
        return headers_of(self._message) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp and milliseconds since 1970, as first produced."""
        if self._first is not None and self._first.timestamp_ms is not None:
            return TIMESTAMP_CREATE_TIME, self._first.timestamp_ms
        return self._message.timestamp()

    def leader_epoch(self) -> int | None:
        return self._message.leader_epoch()

    def error(self) -> None:
        """Return None: errors are not handed out as messages."""

    def __len__(self) -> int:
        return len(self._message)

    def __bool__(self) -> bool:
        return True

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        if self._first is not None:
            return self._first.origin
        return Origin(self.topic(), self.partition(), self._offset)

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster."""
        return self._claim.cluster

    @property
    def is_pending(self) -> bool:
        """True until it is acknowledged, or its partition was released."""
        return self._claim.is_pending(self._offset)

    @property
    def given_up(self) -> bool:
        """True if it is not delivered again, though it is not acknowledged."""
        return self._offset in self._claim.given_up

    @property
    def size(self) -> int:
        """Bytes of key and value, and of the objects around them, as they count in memory."""
        return len(self._message) + len(self._message.key() or b"") + _OVERHEAD_BYTES

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self._claim.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Reject the message: it is delivered again after ``delay`` s, by default as set.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self._claim.reject(self, delay, error)

    def __repr__(self) -> str:
        return f"AckMessage({self._claim.where}@{self._offset}, tries={self.tries})"


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

    @property
    def unfinished(self) -> tuple[int, int]:
        """Number and size of all messages that were read and are not acknowledged."""
        claims = self._claims.values()
        waiting = sum(len(claim.waiting) for claim in claims)
        return self.pending + waiting, sum(claim.bytes for claim in claims)

    def claim(self, claim: Claim) -> None:
        """Begin with a partition's log; what is known of a former one is forgotten."""
        self.release([claim.where])
        self._claims[claim.where] = claim

    def begin_release(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``; those in work can be acknowledged still."""
        for where in partitions:
            claim = self._claims.get(where)
            if claim is not None:
                claim.releasing = True
                claim.bytes -= sum(each.size for _, each in claim.waiting)
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

    def in_work(self, partitions: Collection[TopicPartition] | None = None) -> list[AckMessage]:
        """Return the messages of ``partitions`` (None: all) that the application has in work."""
        return [
            each
            for each in (*self._in_work, *self._rejected)
            if (partitions is None or each._claim.where in partitions) and each.is_pending
        ]

    def abandon(self) -> None:
        """Wait no longer for what is in work; a late ack still counts."""
        self._in_work.clear()
        self._rejected.clear()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed and is not yet."""
        found = {}
        for where, claim in self._claims.items():
            if claim.begun:
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
        claim.bytes += message.size
        if claim.waiting or due_s > now_s or not self._deliver(message, claim):
            claim.waiting.append((due_s, message))

    def end(self, claim: Claim, end: int) -> None:
        """Take in that a partition is read to its end: no message is left before that offset."""
        claim.end = end
        claim.pass_over_end()

    def _deliver(self, message: AckMessage, claim: Claim) -> bool:
        """Make a message ready, unless it is acknowledged; False where it has no room."""
        if not claim.read:
            claim.begin(message._offset)
        tracker = claim.tracker
        if not tracker.has_room:
            return False
        if tracker.deliver(message._offset, message):
            self._ready.append(message)
        else:
            claim.bytes -= message.size
        return True

    def refresh(self, now_s: float) -> None:
        """Make ready what has room and is due by now."""
        for claim in self._claims.values():
            waiting = claim.waiting
            while waiting and waiting[0][0] <= now_s and self._deliver(waiting[0][1], claim):
                waiting.popleft()
                claim.pass_over_end()
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
            if message.tries == 1 or message.is_pending:
                return message
        return None

    def begin(self, message: AckMessage, now_s: float) -> bool:
        """Take a message into work; False where its partition is being released."""
        if message._claim.releasing or not message.is_pending:
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
        if not claim.released and claim.tracker.acknowledge(message._offset):
            claim.bytes -= message.size

    def acknowledge_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        claim = message._claim
        if not claim.released:
            done = claim.tracker.acknowledge_up_to(message._offset)
            claim.bytes -= sum(each.size for each in done)
            self._ready = deque(m for m in self._ready if m.is_pending)
            for each in [m for m in self._in_work if not m.is_pending]:
                del self._in_work[each]

    def reject(self, message: AckMessage) -> bool:
        """Take a message out of work; False where it is not in work."""
        was_in_work = self._in_work.pop(message, None) is not None
        if not was_in_work or not message.is_pending:
            return False
        self._rejected.add(message)
        return True

    def redeliver(self, message: AckMessage, due_s: float) -> None:
        """Have a rejected message handed out again from ``due_s`` on."""
        self._rejected.discard(message)
        claim = message._claim
        if message.is_pending and not claim.releasing:
            again = AckMessage(message._message, claim, message.tries + 1, message._first)
            heapq.heappush(self._delayed, (due_s, next(self._numbers), again))

    def give_up(self, message: AckMessage) -> None:
        """Leave a rejected message unacknowledged until the partition is claimed again."""
        self._rejected.discard(message)
        message._claim.given_up.add(message._offset)
