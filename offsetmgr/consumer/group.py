"""Consumers that commit what the application has marked: one stream, or one per partition."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from offsetmgr.consumer.base import LONG_S, BaseConsumer, MessageReader
from offsetmgr.consumer.marks import Markable, Marks
from offsetmgr.consumer.member import PREFETCH
from offsetmgr.deadlines import LONGEST_WAIT_S
from offsetmgr.errors import OffsetManagerError
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from offsetmgr.consumer.member import Member
    from offsetmgr.consumer.topics import Subscription
    from offsetmgr.consumer.work import Start, Work
    from offsetmgr.types import TopicPartition

BUFFERED: Final = 1_000
"""A partition with so many messages that were not asked for is paused until half are taken."""

BUFFERED_BYTES: Final = 16 * 2**20
"""The same in bytes of their values."""


class MarkedStream(Marks):
    """The messages of all partitions as one stream."""

    def __init__(self) -> None:
        super().__init__()
        self._order = threading.RLock()
        self.waiting: deque[Message] = deque()
        """Received, and not handed out yet."""
        self._in_work: Sequence[Message] = ()  # what the application got last

    def next(self) -> Message | None:
        """Hand out a message; the one before is no longer in work."""
        with self._order:
            if not self.waiting:
                self._in_work = ()
                return None
            message = self.waiting.popleft()
            self._in_work = (message,)
            return message

    def next_batch(self, most: int) -> list[Message]:
        with self._order:
            waiting = list(self.waiting)
            batch, self.waiting = waiting[:most], deque(waiting[most:])
            self._in_work = batch.copy()
        return batch

    def end_batch(self) -> None:
        """Take in that the application is done with its batch."""
        self._in_work = ()

    def clear(self) -> None:
        """Drop what was received and is not handed out."""
        with self._order:
            self.waiting.clear()

    def receive(self, messages: Sequence[Message]) -> None:
        super().receive(messages)
        with self._order:
            self.waiting.extend(messages)

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        self.drop([topic_partition])
        super().restart(topic_partition, offset)

    def in_work(self, partitions: Collection[TopicPartition]) -> bool:
        return any(_place(each) in partitions for each in self._in_work)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        with self._order:
            self.waiting = deque(each for each in self.waiting if _place(each) not in partitions)


class GroupConsumer(Markable, MessageReader[Message]):
    """A consumer with marks that reads its partitions as one stream of messages.

    The parameters are those of BaseConsumer.  Messages are confluent-kafka's own.  Marks are
    committed every ``commit_interval_s``, before a partition is released, and at ``close``.  Marks
    of a partition that is not claimed, or was lost, are dropped.  They may come from any thread.

    Once all that was read of a partition is marked, its end is committed, transaction markers and
    other gaps included.
    """

    _work: MarkedStream

    def _begin(self, subscription: Subscription, **_: Any) -> tuple[Work, Subscription]:
        self._work = MarkedStream()
        self._mark = self._work.mark
        return self._work, subscription

    def _next(self) -> Message | None:
        return self._work.next()

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[Message]:
        self._work.end_batch()
        deadline: float | None = None
        while (count := len(self._work.waiting)) < max_records and not self.closed:
            if count and deadline is None:
                deadline = time.monotonic() + max_wait_s
            left_s = LONG_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            self._member.wait_for(max_records - count, left_s, patient=True)
        return self._work.next_batch(max_records)


class PartitionStream:
    """The messages of one claimed partition; for one thread.

    The iteration ends when the partition is released or the consumer is closed.  A message is
    current until the next one is requested.
    """

    def __init__(self, topic_partition: TopicPartition, member: Member) -> None:
        self.topic_partition = topic_partition
        self._member = member
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._ended = False
        self.paused = False
        """True while no more of the partition is to be received."""
        self.in_work = False
        """True while the application has a message."""

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def ended(self) -> bool:
        """True once no more messages come."""
        return self._ended

    def high_water_mark(self) -> int | None:
        """Return the end of the partition at the last fetch; None before the first."""
        return self._member.high_watermarks.get(self.topic_partition)

    def __iter__(self) -> Iterator[Message]:
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        """Read no more; the partition stays with this member until the consumer is closed."""
        self.paused = True
        self.end()

    def _next(self) -> Message | None:
        with self._lock:
            self.in_work = False
            while not (self._waiting or self._ended):
                self._changed.wait()
            if self._ended:
                return None
            message = self._waiting.popleft()
            self._bytes -= len(message)
            self.in_work = True
            self.paused = self.paused and self._fills(1 / 2)
            return message

    def _fills(self, share: float) -> bool:
        """Return True if what waits takes this share of the room."""
        return len(self._waiting) > share * BUFFERED or self._bytes > share * BUFFERED_BYTES

    # For the consumer

    @property
    def waiting(self) -> int:
        """Messages that were received and are not handed out yet."""
        return len(self._waiting)

    def put(self, messages: Collection[Message]) -> None:
        """Have ``messages`` handed out, and pause the partition while many wait."""
        with self._lock:
            if self._ended:
                return
            self._waiting.extend(messages)
            self._bytes += sum(map(len, messages))
            self._changed.notify()
            self.paused = self.paused or self._fills(1)

    def clear(self) -> None:
        """Drop what waits: the partition has a new log."""
        with self._lock:
            self._waiting.clear()
            self._bytes = 0
            self.paused = self._ended

    def end(self) -> None:
        """End the iteration."""
        with self._lock:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()


class PartitionStreams(Marks):
    """The messages of each partition as a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.new: SimpleQueue[PartitionStream | None] = SimpleQueue()
        """Streams as their partitions are claimed; None once no more come."""
        self._streams: dict[tuple[object, object], PartitionStream] = {}

    @property
    def paused(self) -> Collection[TopicPartition]:
        return [each.topic_partition for each in self._streams.values() if each.paused]

    def receive(self, messages: Sequence[Message]) -> None:
        super().receive(messages)
        found: defaultdict[tuple[object, object], list[Message]] = defaultdict(list)
        for message in messages:
            found[message.topic(), message.partition()].append(message)
        for place, theirs in found.items():
            stream = self._streams.get(place)
            if stream is not None:
                stream.put(theirs)

    def claim(self, starts: Mapping[TopicPartition, Start]) -> None:
        super().claim(starts)
        for each in sorted(starts):
            stream = PartitionStream(each, self.member)
            self._streams[each] = stream
            self.new.put(stream)

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        super().restart(topic_partition, offset)
        self._streams[topic_partition].clear()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        for stream in self._of(partitions):
            stream.end()

    def in_work(self, partitions: Collection[TopicPartition]) -> bool:
        return any(stream.in_work for stream in self._of(partitions))

    def _of(self, partitions: Collection[TopicPartition]) -> list[PartitionStream]:
        return [self._streams[each] for each in partitions if each in self._streams]


class PartitionedConsumer(Markable, BaseConsumer):
    """A member of a consumer group that hands out a stream for each claimed partition.

    The parameters are those of BaseConsumer, marks and commits those of GroupConsumer.
    """

    _work: PartitionStreams

    def _begin(
        self, subscription: Subscription, *, group: str, **_: Any
    ) -> tuple[Work, Subscription]:
        self._work = PartitionStreams()
        self._mark = self._work.mark
        self._reader = Worker(f"partitions-{group}", self._read)
        return self._work, subscription

    def partitions(self) -> Iterator[PartitionStream]:
        """Iterate over the streams of partitions as they are claimed, until the consumer is closed.

        Reading begins with the first call.  A partition that was released and is claimed again
        comes as a new stream.  Raises KafkaRequestError where Kafka refuses this consumer for good.
        """
        if not self._reader.ensure() and self._reader.error is not None:
            raise self._reader.error
        while (stream := self._work.new.get()) is not None:
            if not stream.ended:
                yield stream
        self._work.new.put(None)
        self._member.raise_failure()

    def close(self) -> None:
        """Commit what is marked and leave the group; twice is harmless."""
        try:
            super().close()
        finally:
            self._reader.join(LONGEST_WAIT_S)
            self._work.new.put(None)

    def _read(self) -> None:
        with suppress(OffsetManagerError):  # which has ended it
            while not self.closed:
                self._member.wait_for(PREFETCH, LONG_S)
        self._work.drop(self._member.assigned)
        self._work.new.put(None)


def _place(message: Message) -> tuple[object, object]:
    return message.topic(), message.partition()
