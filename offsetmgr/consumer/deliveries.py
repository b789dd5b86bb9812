"""Messages of claimed partitions on their way to the application, until each is acknowledged.

Nothing here reads a clock, waits or talks to Kafka; ``now_s`` is any clock that does not go back.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from offsetmgr.consumer.tracker import AckTracker
from offsetmgr.types import MAX_METADATA_CHARS, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from confluent_kafka import Message

    from offsetmgr.types import OffsetAndMetadata

LIMIT_CHARS: Final = MAX_METADATA_CHARS - 1
"""Longest metadata of a commit; confluent-kafka sends one character more than it is given."""


class Origin(NamedTuple):
    """The place of a message in the topic that it was first produced to."""

    topic: str
    partition: int
    offset: int


class Acknowledger(Protocol):
    """The consumer of a message, as the message calls it; from any thread."""

    cluster: str

    def acknowledge(self, message: AckMessage) -> None: ...

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None: ...


class Claim:
    """A partition from when it is claimed until it is released."""

    def __init__(
        self, consumer: Acknowledger, where: TopicPartition, committed: OffsetAndMetadata | None
    ) -> None:
        """Raise ValueError where the metadata of ``committed`` holds no acks."""
        self.consumer = consumer
        self.where = where
        self.committed = committed
        self.releasing = False
        self.released = False
        self.tracker: AckTracker | None = None  # until the first message, where none is committed
        self.read = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        if committed is not None:
            metadata = committed.metadata
            self.tracker = AckTracker(committed.offset, metadata, limit_chars=LIMIT_CHARS)

    def track(self, offset: int) -> AckTracker:
        """Return the tracker for a message that was read."""
        if self.tracker is None or (not self.read and offset < self.tracker.offset):
            # Kafka had nothing at what is committed, so reading began elsewhere.
            self.tracker = AckTracker(offset, limit_chars=LIMIT_CHARS)
        self.read = True
        return self.tracker


class AckMessage:
    """A message that waits for its ack or nack, from any thread.

    Acks and nacks of a partition that was released meanwhile do nothing, nor does a second one.
    """

    __slots__ = ("_claim", "_message", "_offset", "_origin", "_tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, origin: Origin | None = None
    ) -> None:
        self._message = message
        self._claim = claim
        self._offset = message.offset() or 0
        self._tries = tries
        self._origin = origin

    @property
    def key(self) -> bytes | None:
        return self._message.key()

    @property
    def value(self) -> bytes | None:
        return self._message.value()

    @property
    def topic(self) -> str:
        """Topic that it was read from, which may be a retry topic."""
        return self._claim.where.topic

    @property
    def partition(self) -> int:
        return self._claim.where.partition

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        return self._origin or Origin(self.topic, self.partition, self._offset)

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, None where it has none."""
        kind, milliseconds = self._message.timestamp()
        return milliseconds if kind else None

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        headers = cast("list[tuple[str, bytes | None]] | None", self._message.headers())
        return headers or []

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster."""
        return self._claim.consumer.cluster

    @property
    def tries(self) -> int:
        """The number of known deliveries of the message, with this one."""
        return self._tries

    def ack(self) -> None:
        """Say that it is processed."""
        self._claim.consumer.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Have it delivered again, after ``delay`` s or after what the settings say.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self._claim.consumer.reject(self, delay, error)

    def __repr__(self) -> str:
        return f"AckMessage({self.topic}-{self.partition}@{self._offset}, tries={self._tries})"


class Deliveries:
    """The messages of all claimed partitions; for one thread at a time.

    A message waits until it is due and its partition has room for one more; then it is ready, then
    in work, then acknowledged, or delayed until it is ready once more.
    """

    def __init__(self, ack_timeout_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._claims: dict[TopicPartition, Claim] = {}
        self._ready: deque[AckMessage] = deque()
        self._queued: set[AckMessage] = set()  # for a pool of workers
        self._in_work: dict[AckMessage, float] = {}  # with their time-outs, which rise
        self._rejected: set[AckMessage] = set()
        self._delayed: list[tuple[float, int, AckMessage]] = []  # a heap
        self._numbers = count()
        self.pending = 0
        """Messages that are ready, queued, in work, rejected or delayed."""

    # Partitions

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
                self.pending -= claim.tracker.pending if claim.tracker is not None else 0
        self._in_work = {m: due_s for m, due_s in self._in_work.items() if not m._claim.released}
        self._rejected = {each for each in self._rejected if not each._claim.released}
        self._queued = {each for each in self._queued if not each._claim.released}

    def in_work(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Count the messages of ``partitions`` (None: all) that the application has in work."""
        found = [*self._in_work, *self._rejected]
        return sum(
            (partitions is None or each._claim.where in partitions) and _is_pending(each)
            for each in found
        )

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed and is not yet."""
        found = {}
        for where, claim in self._claims.items():
            if claim.tracker is not None and claim.read:
                position = claim.tracker.position
                known = claim.committed
                if known is None or position[:2] != known[:2]:
                    found[where] = position
        return found

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for where, position in offsets.items():
            if where in self._claims:
                self._claims[where].committed = position

    def partitions(self) -> list[TopicPartition]:
        """Return the claimed partitions, sorted."""
        return sorted(self._claims)

    def blocked(self) -> set[TopicPartition]:
        """Return the partitions that must not be read on: messages of theirs wait."""
        return {where for where, claim in self._claims.items() if claim.waiting}

    # Messages

    def claim_of(self, topic: str, partition: int) -> Claim | None:
        # A named tuple equals a plain one, which is made in a third of the time.
        return self._claims.get(cast("TopicPartition", (topic, partition)))

    def add(self, message: AckMessage, due_s: float, now_s: float) -> None:
        """Take in a message that was read, in the order of its partition."""
        claim = message._claim
        if claim.releasing:
            return
        if not claim.waiting and due_s <= now_s:
            tracker = claim.track(message._offset)
            if tracker.has_room:
                if tracker.deliver(message._offset):
                    self.pending += 1
                    self._ready.append(message)
                return
        claim.waiting.append((due_s, message))

    def refresh(self, now_s: float) -> None:
        """Make ready what has room and is due by now."""
        for claim in self._claims.values():
            while claim.waiting and claim.waiting[0][0] <= now_s:
                message = claim.waiting[0][1]
                tracker = claim.track(message._offset)
                if not tracker.has_room:
                    break
                claim.waiting.popleft()
                if tracker.deliver(message._offset):
                    self.pending += 1
                    self._ready.append(message)
        while self._delayed and self._delayed[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._delayed)[2])

    def next_due_s(self) -> float:
        """Return when ``refresh`` will find something by time alone; infinity where never."""
        found = [claim.waiting[0][0] for claim in self._claims.values() if claim.waiting]
        found += [self._delayed[0][0]] if self._delayed else []
        return min(found, default=float("inf"))

    def next(self, now_s: float, *, queued: bool = False) -> AckMessage | None:
        """Take the next ready message into work, or ``queued`` until ``begin``."""
        while self._ready:
            message = self._ready.popleft()
            if _is_pending(message):
                if queued:
                    self._queued.add(message)
                else:
                    self._in_work[message] = now_s + self._ack_timeout_s
                return message
        return None

    def begin(self, message: AckMessage, now_s: float) -> bool:
        """Take a queued message into work; False where its partition is being released."""
        self._queued.discard(message)
        if message._claim.releasing or not _is_pending(message):
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

    def acknowledge(self, message: AckMessage) -> bool:
        """Take in an ack; False where it changes nothing.

        That of an earlier delivery counts as well: the message was processed.
        """
        self._in_work.pop(message, None)
        if self._rejected:
            self._rejected.discard(message)
        claim = message._claim
        tracker = claim.tracker
        if tracker is None or claim.released or not tracker.acknowledge(message._offset):
            return False
        self.pending -= 1
        return True

    def acknowledge_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        tracker = message._claim.tracker
        if tracker is not None and not message._claim.released:
            self.pending -= tracker.acknowledge_up_to(message._offset)
            for each in [each for each in self._in_work if not _is_pending(each)]:
                del self._in_work[each]

    def reject(self, message: AckMessage) -> bool:
        """Take a message out of work; False where it is not in work."""
        if self._in_work.pop(message, None) is None or not _is_pending(message):
            return False
        self._rejected.add(message)
        return True

    def redeliver(self, message: AckMessage, due_s: float) -> None:
        """Have a rejected message handed out again from ``due_s`` on."""
        self._rejected.discard(message)
        claim = message._claim
        if _is_pending(message) and not claim.releasing:
            again = AckMessage(message._message, claim, message._tries + 1, message._origin)
            heapq.heappush(self._delayed, (due_s, next(self._numbers), again))


def _is_pending(message: AckMessage) -> bool:
    """True unless it is acknowledged, or its partition was released."""
    claim = message._claim
    tracker = claim.tracker
    return tracker is not None and not claim.released and tracker.is_pending(message._offset)
