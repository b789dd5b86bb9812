"""Consumers that commit what the application has marked: one stream, or one per partition."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from offsetmgr.consumer.base import LONG_S, BaseConsumer, MessageReader
from offsetmgr.consumer.client import PREFETCH
from offsetmgr.consumer.settings import MOST_METADATA_CHARS
from offsetmgr.consumer.work import Claimed, Start, Work, ending, runs_of
from offsetmgr.deadlines import LONGEST_WAIT_S
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.kafka.clients import Closing
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_list,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from offsetmgr.consumer.member import Member
    from offsetmgr.consumer.topics import Subscription

    # Plain tuples: each message makes one.
    Place = tuple[str, int]
    _Mark = tuple[int, str, Message | None]  # the next offset, metadata, and the message if at hand

BUFFERED: Final = 1_000
"""A partition with so many messages that were not asked for is paused until half are taken."""

BUFFERED_BYTES: Final = 16 * 2**20
"""The same in bytes of their values."""

_NONE: Final = (-1, "")

_offset_of: Callable[[Message], int] = Message.offset  # type: ignore[assignment]  # of a read one


class Markable:
    """Takes marks of processed messages.

    A mark that is lower than the last one changes nothing; nor does a reset that is higher.  An
    equal one counts if its metadata differs.  Metadata has at most 4,095 characters.
    """

    _mark: Callable[..., None]
    """Called as ``Marks.mark``."""

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Mark ``message`` and all before it in its partition as processed."""
        place, offset = _place(message)
        self._mark(place, (offset + 1, _check_metadata(metadata), message))

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Mark the highest of ``messages`` in each partition, and so all before it.

        Raises InvalidValueError, and marks none, if one was not read from Kafka.
        """
        for place, offset, message in [(*_place(each), each) for each in self._highest(messages)]:
            self._mark(place, (offset + 1, "", message))

    def _highest(self, messages: Iterable[Message]) -> Sequence[Message]:
        """Return the highest message of each partition, others of it among them."""
        given = check_list(messages, "messages", "[message]")
        try:
            return [max(run, key=_offset_of) for _, run in runs_of(given)]
        except TypeError:
            is_read = [isinstance(each, Message) and each.offset() is not None for each in given]
            raise _not_read(given[is_read.index(False)]) from None

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Mark the message at ``offset`` and all before it as processed."""
        self._mark(*_checked(topic, partition, offset, metadata))

    def mark_offsets(self, stash: OffsetStash) -> None:
        """Mark what ``stash`` holds, resets included, and empty it."""
        for place, (mark, reset) in _take(stash):
            self._mark(place, mark, reset=reset)

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Let the group go back to after ``message``; reading goes on where it is."""
        place, offset = _place(message)
        self._mark(place, (offset + 1, _check_metadata(metadata), message), reset=True)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Let the group go back to after the message at ``offset``."""
        self._mark(*_checked(topic, partition, offset, metadata), reset=True)

    def reset_offsets(self, stash: OffsetStash) -> None:
        """Let the group go back to what ``stash`` holds, and empty it."""
        for place, (mark, _) in _take(stash):
            self._mark(place, mark, reset=True)


class OffsetStash(Markable):
    """Processed offsets of several partitions, to be marked at once; for one thread."""

    def __init__(self) -> None:
        self._marks: dict[Place, tuple[_Mark, bool]] = {}
        """With True where the group may go back."""
        self._mark = self._stash

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return {TopicPartition(*each): mark[0] - 1 for each, (mark, _) in self._marks.items()}

    def take(self) -> dict[Place, tuple[_Mark, bool]]:
        """Return the marks and resets; the stash is empty."""
        found, self._marks = self._marks, {}
        return found

    def _stash(self, place: Place, mark: _Mark, *, reset: bool = False) -> None:
        known, goes_back = self._marks.get(place, (_NONE, False))
        if _counts(mark, known, reset=reset):
            self._marks[place] = mark, reset or goes_back


def _take(stash: OffsetStash) -> Iterable[tuple[Place, tuple[_Mark, bool]]]:
    if not isinstance(stash, OffsetStash):
        raise InvalidValueError("stash", stash, "is not a stash", "give an OffsetStash")
    return stash.take().items()


class MarkedLog(Claimed):
    """The marks in the log of a partition; it is kept from claim to claim."""

    def __init__(self) -> None:
        self.marked = _NONE
        """The next offset to read, -1 if nothing is committed, and metadata."""
        self.received = 0
        """The offset after the last message."""
        self._end = 0  # of the log, if it has no message behind those
        self.is_committed = True
        self._former = 0  # the highest ``received`` of former claims and logs
        self._again: list[tuple[int, object]] | None = None
        """If the log may be a new one: next offsets up to ``_former``, and timestamps of messages,
        which may have been in another log too."""

    def begin(self, start: Start) -> None:
        self.released = False
        self._former = max(self._former, self.received)
        self._again = [] if self._former and not start.resumed else None
        self.received = self._end = 0
        committed, offset, _ = start
        self.marked = _NONE if committed is None else committed[:2]
        self.is_committed = True
        if committed is None and offset is not None:
            self.marked, self.is_committed = (offset, ""), False

    def receive(self, messages: Sequence[Message]) -> None:
        self.received, self._end = _place(messages[-1])[1] + 1, 0
        if self._again is not None:
            for message in messages:
                _, offset = _place(message)
                if offset < self._former:
                    self._again.append((offset + 1, message.timestamp()))

    def has(self, mark: _Mark) -> bool:
        """Return True unless a mark that goes further may be of a former log."""
        offset, _, message = mark
        if self._again is None or offset <= self.marked[0]:
            return True
        if offset > self._former:
            self._again = None  # lower marks change nothing any more
            return True
        if message is None:
            return offset <= self.received
        at = bisect_left(self._again, (offset,))
        found = self._again[at : at + 1] == [(offset, message.timestamp())]
        if found:
            del self._again[:at]
        return found

    def reach_end(self, end: int) -> None:
        if end > self.received:
            self._end = end

    def end_from(self, offset: int) -> int:
        """Return ``offset``, or the end of the log if no message is left before that."""
        return self._end if self.received <= offset < self._end else offset

    def to_commit(self) -> OffsetAndMetadata | None:
        offset, metadata = self.marked
        if self.received <= max(0, offset) < self._end:  # all that was received is marked
            self.marked, self.is_committed = (self._end, metadata), False
        return None if self.is_committed else OffsetAndMetadata(*self.marked)

    def commit(self, position: OffsetAndMetadata) -> None:
        self.is_committed = self.is_committed or self.marked == position[:2]


class Marks(Work[MarkedLog]):
    """Messages on their way to an application that marks them; any thread may mark.

    Marks of other partitions are dropped.  So are those of messages of a former log, or of a former
    claim whose log may have been another one; a message is known by its offset and timestamp.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logs: defaultdict[TopicPartition, MarkedLog] = defaultdict(MarkedLog)

    def mark(self, place: Place, mark: _Mark, *, reset: bool = False) -> None:
        """Take in the next offset to read of a partition."""
        with self.lock:
            log = self.claims.get(place)  # type: ignore[call-overload]  # equal to a TopicPartition
            if log is not None and _counts(mark, log.marked, reset=reset) and log.has(mark):
                log.marked, log.is_committed = mark[:2], False

    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        with self.lock:
            self.claims[topic_partition].receive(messages)

    def _open(self, topic_partition: TopicPartition, start: Start) -> MarkedLog:
        log = self._logs[topic_partition]
        log.begin(start)
        return log


class MarkedStream(Marks):
    """The messages of all partitions as one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[deque[Message]] = deque()
        """Received, and not handed out yet; each is of one partition."""
        self._in_work: Sequence[Message] = ()  # of what the application got last, without others
        self._batch: tuple[list[Message], Sequence[Message]] = [], ()  # the last one, and its lasts

    def next(self) -> Message | None:
        """Hand out a message; the one before is no longer in work."""
        with self.lock:
            if not self.waiting:
                self._in_work = ()
                return None
            run = self.waiting[0]
            message = run.popleft()
            if not run:
                self.waiting.popleft()
            self._in_work = (message,)
            return message

    def take(self, most: int) -> list[Message]:
        """Hand out up to ``most`` messages; those before are no longer in work."""
        with self.lock:
            batch: list[Message] = []
            lasts: list[Message] = []
            while self.waiting and len(batch) < most:
                run = self.waiting.popleft()
                part = list(islice(run, most - len(batch)))
                if len(part) < len(run):
                    self.waiting.appendleft(deque(islice(run, len(part), None)))
                batch += part
                lasts.append(part[-1])
            self._in_work, self._batch = lasts, (batch.copy(), lasts)
        return batch

    def lasts_of(self, messages: object) -> Sequence[Message]:
        """Return the last messages of each partition in the last batch; nothing of another list."""
        batch, lasts = self._batch
        return lasts if isinstance(messages, list) and messages == batch else ()

    def count(self) -> int:
        """Return how many messages wait to be handed out."""
        with self.lock:
            return sum(map(len, self.waiting))

    def end_from(self, topic_partition: TopicPartition, offset: int) -> int:
        """Return ``offset``, or the end of the log if no message is left before that."""
        log = self.claims.get(topic_partition)
        return offset if log is None else log.end_from(offset)

    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        with self.lock:
            super().receive(topic_partition, messages)
            self.waiting.append(deque(messages))

    def _has_in_work(self, partitions: Collection[TopicPartition]) -> bool:
        return any(_place(each)[0] in partitions for each in self._in_work)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self.waiting = deque(run for run in self.waiting if _place(run[0])[0] not in partitions)


class GroupConsumer(Markable, MessageReader[Message]):
    """A consumer with marks that reads its partitions as one stream of messages.

    The parameters are those of BaseConsumer.  Messages are confluent-kafka's own.  Marks are
    committed every ``commit_interval_s``, before a partition is released, and at ``close``.  Marks
    of a partition that is not claimed, or was lost, are dropped.  They may come from any thread.

    Once all that was read of a partition is marked, its end is committed, transaction markers and
    other gaps included.
    """

    _work: MarkedStream

    def _begin(self, subscription: Subscription, **_: Any) -> tuple[Work[Any], Subscription]:
        self._work = MarkedStream()
        self._mark, self._next = self._work.mark, self._work.next
        return self._work, subscription

    def _fill_batch(self, most: int, timeout_s: float) -> None:
        self._member.wait_for(most, timeout_s, patient=True)

    def _highest(self, messages: Iterable[Message]) -> Sequence[Message]:
        return self._work.lasts_of(messages) or super()._highest(messages)


class PartitionStream(Closing):
    """The messages of one claimed partition; for one thread.

    The iteration ends when the partition is released or the consumer is closed.  A message is
    current until the next one is requested.
    """

    def __init__(
        self, topic_partition: TopicPartition, member: Member, lock: threading.RLock
    ) -> None:
        self._process = os.getpid()
        self.topic_partition = topic_partition
        self.topic, self.partition = topic_partition
        self.ended = False
        """True once no more messages come."""
        self._member = member
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self.paused = False
        """True while no more of the partition is to be received."""
        self.in_work = False
        """True while the application has a message."""

    def high_water_mark(self) -> int | None:
        """Return the end of the partition at the last fetch; None before the first."""
        return self._member.high_watermarks.get(self.topic_partition)

    def __iter__(self) -> Iterator[Message]:
        while True:
            self.check_process()
            message = ending(self._member.ended, self._next)
            if message is None:
                return
            yield message

    def close(self) -> None:
        """Read no more; the partition stays with this member until the consumer is closed."""
        self.paused = True
        self.end()

    def _next(self) -> Message | None:
        with self._lock:
            self.in_work = False
            while not (self._waiting or self.ended):
                self._changed.wait()
            if self.ended:
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
            if self.ended:
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
            self.paused = self.ended

    def end(self) -> None:
        """End the iteration."""
        with self._lock:
            self.ended = True
            self._waiting.clear()
            self._changed.notify_all()


class PartitionStreams(Marks):
    """The messages of each partition as a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.new: SimpleQueue[PartitionStream | None] = SimpleQueue()
        """Streams as their partitions are claimed; None once no more come."""
        self._streams: dict[TopicPartition, PartitionStream] = {}
        """The last stream of each partition."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        with self.lock:
            return {each for each, stream in self._streams.items() if stream.paused}

    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        with self.lock:
            super().receive(topic_partition, messages)
            self._streams[topic_partition].put(messages)

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        with self.lock:
            self.claims[topic_partition].begin(Start(None, offset))
            self._streams[topic_partition].clear()

    def end(self) -> None:
        """End all streams."""
        with self.lock:
            self._drop(self._streams)
        self.new.put(None)

    def _open(self, topic_partition: TopicPartition, start: Start) -> MarkedLog:
        stream = PartitionStream(topic_partition, self.member, self.lock)
        self._streams[topic_partition] = stream
        self.new.put(stream)
        return super()._open(topic_partition, start)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for stream in self._of(partitions):
            stream.end()

    def _has_in_work(self, partitions: Collection[TopicPartition]) -> bool:
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
    ) -> tuple[Work[Any], Subscription]:
        self._work = PartitionStreams()
        self._mark = self._work.mark
        self._reader = Worker(f"partitions-{group}", self._read)
        self._opened.callback(self._work.new.put, None)
        self._opened.callback(self._reader.join, LONGEST_WAIT_S)
        return self._work, subscription

    def partitions(self) -> Iterator[PartitionStream]:
        """Iterate over the streams of partitions as they are claimed, until the consumer is closed.

        Reading begins with the first call.  A partition that was released and is claimed again
        comes as a new stream.  Raises KafkaRequestError where Kafka refuses this consumer for good.
        """
        self.check_process()
        if not self._reader.ensure() and self._reader.error is not None:
            raise self._reader.error
        while (stream := self._work.new.get()) is not None:
            if not stream.ended:
                yield stream
        self._work.new.put(None)
        self._member.raise_failure()

    def _read(self) -> None:
        with suppress(OffsetManagerError):  # which has ended it
            while not self.closed:
                self._member.wait_for(PREFETCH, LONG_S)
        self._work.end()


def _counts(mark: _Mark, known: tuple[int, str] | _Mark, *, reset: bool) -> bool:
    """Return True if a mark changes the one that is known, if there is one."""
    offset, at = mark[0], known[0]
    further = offset < at if reset else offset > at
    return at < 0 or further or (offset == at and mark[1] != known[1])


def _place(message: Message) -> tuple[Place, int]:
    try:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
    except AttributeError:
        raise _not_read(message) from None
    if topic is None or partition is None or offset is None:
        raise _not_read(message)
    return (topic, partition), offset


def _not_read(message: object) -> InvalidValueError:
    hint = "give messages as they are handed out"
    return InvalidValueError("message", message, "was not read from Kafka", hint)


def _checked(topic: str, partition: int, offset: int, metadata: str) -> tuple[Place, _Mark]:
    place = check_topic(topic), check_partition(partition)
    return place, (check_offset(check_offset(offset) + 1), _check_metadata(metadata), None)


def _check_metadata(metadata: str) -> str:
    return "" if metadata == "" else check_metadata(metadata, most=MOST_METADATA_CHARS)
