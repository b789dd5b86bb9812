"""Messages of claimed partitions on their way to the application, until each is acknowledged.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.

Nothing here reads a clock, waits or talks to Kafka; ``now_s`` is any clock that does not go back.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME

from offsetmgr.acked_ranges import AckTracker
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

_OVERHEAD_BYTES: Final = 500
"""Of the objects that a message is made of."""


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
        topic_partition: TopicPartition,
        committed: OffsetAndMetadata | None,
        *,
        start: int | None = None,
        bare: bool = False,
    ) -> None:
        """``start`` is where reading begins if nothing is committed, which is to be committed.

        ``bare`` as for AckTracker.  Raises ValueError for metadata that is not of acks.
        """
        self.consumer = consumer
        self.topic_partition = topic_partition
        self.committed = committed
        self.bytes = 0
        """Size of the messages that are not acknowledged."""
        self.releasing = False
        self.released = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        self.given_up: set[int] = set()
        """Offsets that are not acknowledged, and not delivered again."""
        self._end = 0
        self._bare = bare
        offset, metadata, _ = committed or OffsetAndMetadata(MAX_OFFSET if start is None else start)
        self.begun = offset != MAX_OFFSET
        """False until it is known where reading begins."""
        self.checked = not metadata
        """False while committed ranges may be of another log."""
        self.tracker = self._track(offset, metadata)

    def _track(self, offset: int, metadata: str = "") -> AckTracker[AckMessage]:
        return AckTracker(offset, metadata, limit_chars=LIMIT_CHARS, bare=self._bare)

    def is_pending(self, offset: int) -> bool:
        """True unless ``offset`` is acknowledged, or the partition was released."""
        return not self.released and self.tracker.is_pending(offset)

    def begin(self, offset: int) -> None:
        """Take in where reading begins, unless that is known."""
        if not self.begun:
            self.begun = True
            self.tracker = self._track(offset)

    def drop_ranges_beyond(self, end: int) -> bool:
        """Forget the committed ranges if one reaches beyond the log's end; True if so."""
        self.checked = True
        beyond = self.tracker.acknowledged_end > max(end, self.tracker.offset)
        if beyond:
            self.tracker = self._track(self.tracker.offset)
        return beyond

    def reach_end(self, end: int) -> None:
        """Take in that no message is left before the offset ``end``."""
        self._end = end
        self.pass_over_end()

    def pass_over_end(self) -> None:
        """Let the commit go up to the end of the log once the messages before it are done."""
        if self._end and not self.waiting:
            self.begin(self._end)
            self.tracker.pass_over(self._end)

    def progress(self, now_s: float) -> PartitionProgress:
        """``now_s`` is in seconds since 1970."""
        tracker = self.tracker
        since_ms = tracker.oldest.timestamp()[1] if tracker.oldest else 0
        return PartitionProgress(
            tracker.offset if self.begun else None,
            tracker.pending,
            max(0.0, now_s - since_ms / 1000) if since_ms > 0 else 0.0,
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

    __slots__ = ("at", "claim", "first", "nacked", "raw", "tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, first: FirstRead | None = None
    ) -> None:
        """``first`` is of a message from a retry topic."""
        self.raw: Final = message
        """confluent-kafka's message."""
        self.claim: Final = claim
        self.at: Final = message.offset() or 0
        self.tries: Final = tries
        """The number of known deliveries of the message, with this one."""
        self.first: Final = first
        self.nacked = False
        """True once this delivery is rejected by ``nack``."""

    def topic(self) -> str:
        """Return the topic from which it was read, which may be a retry topic."""
        return self.claim.topic_partition.topic

    def partition(self) -> int:
        return self.claim.topic_partition.partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw.key()

    def value(self) -> bytes | None:
        return self.raw.value()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none; a name that is not UTF-8 is ``\ufffd``."""
        return headers_of(self.raw) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp and milliseconds since 1970, as first produced."""
        if self.first is not None and self.first.timestamp_ms is not None:
            return TIMESTAMP_CREATE_TIME, self.first.timestamp_ms
        return self.raw.timestamp()

    def leader_epoch(self) -> int | None:
        return self.raw.leader_epoch()

    def error(self) -> None:
        """Return None: errors are not handed out as messages."""

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        return True

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        if self.first is not None:
            return self.first.origin
        return self.place

    @property
    def place(self) -> Origin:
        """Place where it was read from."""
        return Origin(*self.claim.topic_partition, self.at)

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster."""
        return self.claim.consumer.cluster

    @property
    def is_pending(self) -> bool:
        """True until it is acknowledged, or its partition was released."""
        return self.claim.is_pending(self.at)

    @property
    def given_up(self) -> bool:
        """True if it is not delivered again, though it is not acknowledged."""
        return self.at in self.claim.given_up

    @property
    def size(self) -> int:
        """Bytes of key and value, and of the objects around them, as they count in memory."""
        return len(self.raw) + len(self.raw.key() or b"") + _OVERHEAD_BYTES

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self.claim.consumer.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Reject the message: it is delivered again after ``delay`` s, by default as set.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self.claim.consumer.reject(self, delay, error)
        self.nacked = True

    def __repr__(self) -> str:
        return f"AckMessage({self.claim.topic_partition}@{self.at}, tries={self.tries})"


class Deliveries:
    """The messages of all claimed partitions; for one thread at a time.

    A message waits until it is due and its partition has room for one more; then it is ready, then
    in work, then acknowledged, or delayed until it is ready once more.
    """

    def __init__(self, ack_timeout_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self.claims: dict[TopicPartition, Claim] = {}
        self._ready: deque[AckMessage] = deque()
        self._in_work: dict[AckMessage, float] = {}  # with their time-outs, which rise
        self._rejected: set[AckMessage] = set()
        self._delayed: list[tuple[float, int, AckMessage]] = []  # a heap
        self._numbers = count()

    # Partitions

    @property
    def pending(self) -> int:
        """Messages that were delivered and are not acknowledged."""
        return sum(claim.tracker.pending for claim in self.claims.values())

    @property
    def unfinished(self) -> tuple[int, int]:
        """Number and size of all messages that were read and are not acknowledged."""
        claims = self.claims.values()
        waiting = sum(len(claim.waiting) for claim in claims)
        return self.pending + waiting, sum(claim.bytes for claim in claims)

    def claim(self, claim: Claim) -> None:
        """Begin with a partition's log; what is known of a former one is forgotten."""
        self.release([claim.topic_partition])
        self.claims[claim.topic_partition] = claim

    def begin_release(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``; those in work can be acknowledged still."""
        for where in partitions:
            claim = self.claims.get(where)
            if claim is not None:
                claim.releasing = True
                claim.bytes -= sum(each.size for _, each in claim.waiting)
                claim.waiting.clear()
        self._ready = deque(each for each in self._ready if not each.claim.releasing)
        self._delayed = [each for each in self._delayed if not each[2].claim.releasing]
        heapq.heapify(self._delayed)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self.begin_release(partitions)
        for where in partitions:
            claim = self.claims.pop(where, None)
            if claim is not None:
                claim.released = True
        self._in_work = {m: due_s for m, due_s in self._in_work.items() if not m.claim.released}
        self._rejected = {each for each in self._rejected if not each.claim.released}

    def in_work(self, partitions: Collection[TopicPartition] | None = None) -> list[AckMessage]:
        """Return the messages of ``partitions`` (None: all) that the application has in work."""
        return [
            each
            for each in (*self._in_work, *self._rejected)
            if (partitions is None or each.claim.topic_partition in partitions) and each.is_pending
        ]

    def abandon(self) -> None:
        """Wait no longer for what is in work; a late ack still counts."""
        self._in_work.clear()
        self._rejected.clear()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed and is not yet."""
        found = {}
        for where, claim in self.claims.items():
            if claim.begun:
                position = claim.tracker.position
                known = claim.committed
                if known is None or position[:2] != known[:2]:
                    found[where] = position
        return found

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for where, position in offsets.items():
            if where in self.claims:
                self.claims[where].committed = position

    def progress(self, now_s: float) -> dict[TopicPartition, PartitionProgress]:
        """``now_s`` is in seconds since 1970."""
        return {where: claim.progress(now_s) for where, claim in sorted(self.claims.items())}

    def blocked(self) -> set[TopicPartition]:
        """Return the partitions that must not be read on: messages of theirs wait."""
        return {where for where, claim in self.claims.items() if claim.waiting}

    # Messages

    def claim_of(self, where: tuple[str | None, int | None]) -> Claim | None:
        return self.claims.get(cast("TopicPartition", where))

    def add(self, message: AckMessage, due_s: float, now_s: float) -> None:
        """Take in a message that was read, in the order of its partition."""
        claim = message.claim
        if claim.releasing:
            return
        claim.bytes += message.size
        if claim.waiting or due_s > now_s or not self._deliver(message, claim):
            claim.waiting.append((due_s, message))

    def _deliver(self, message: AckMessage, claim: Claim) -> bool:
        """Make a message ready, unless it is acknowledged; False where it has no room."""
        claim.begin(message.at)
        tracker = claim.tracker
        if not tracker.has_room:
            return False
        if tracker.deliver(message.at, message):
            self._ready.append(message)
        else:
            claim.bytes -= message.size
        return True

    def refresh(self, now_s: float) -> None:
        """Make ready what has room and is due by now."""
        for claim in self.claims.values():
            waiting = claim.waiting
            while waiting and waiting[0][0] <= now_s and self._deliver(waiting[0][1], claim):
                waiting.popleft()
                claim.pass_over_end()
        while self._delayed and self._delayed[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._delayed)[2])

    def next_due_s(self) -> float:
        """Return when ``refresh`` will find something by time alone; infinity where never."""
        found = [claim.waiting[0][0] for claim in self.claims.values() if claim.waiting]
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
        if message.claim.releasing or not message.is_pending:
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
        claim = message.claim
        if not claim.released and claim.tracker.acknowledge(message.at):
            claim.bytes -= message.size

    def acknowledge_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        claim = message.claim
        if not claim.released:
            done = claim.tracker.acknowledge_up_to(message.at)
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
        claim = message.claim
        if message.is_pending and not claim.releasing:
            again = AckMessage(message.raw, claim, message.tries + 1, message.first)
            heapq.heappush(self._delayed, (due_s, next(self._numbers), again))

    def give_up(self, message: AckMessage) -> None:
        """Leave a rejected message unacknowledged until the partition is claimed again."""
        self._rejected.discard(message)
        message.claim.given_up.add(message.at)
