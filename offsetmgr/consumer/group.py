"""Consumers that commit what the application has marked: one stream, or one per partition."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from confluent_kafka import Message

from offsetmgr.consumer.base import (
    LONG_S,
    PREFETCH,
    UNREAD,
    BaseConsumer,
    MessageReader,
    drain,
)
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.logs import SafeLogger
from offsetmgr.types import (
    MAX_METADATA_CHARS,
    OffsetAndMetadata,
    TopicPartition,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

BUFFERED: Final = 1_000
"""A partition with so many messages that were not asked for is paused until half are taken."""

MOST_METADATA_CHARS: Final = MAX_METADATA_CHARS - 1
"""Longest metadata of a mark: confluent-kafka's consumer adds a NUL."""

_NONE: Final = (-1, "")
_LOOK_S: Final = 0.005

log = SafeLogger("offsetmgr.consumer")


class Markable(ABC):
    """Takes marks of processed messages.

    A mark that is lower than the last one changes nothing; nor does a reset that is higher.  An
    equal one counts if its metadata differs.  Metadata has at most 4,095 characters.
    """

    @abstractmethod
    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        """Take in the next offset to read of a partition."""

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Mark ``message`` and all before it in its partition as processed."""
        where, offset = _place(message)
        self._mark(where, offset + 1, _check_metadata(metadata), reset=False)

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Mark the highest of ``messages`` in each partition, and so all before it."""
        # Messages come in runs of one partition: only the highest of a run is looked at further.
        where: tuple[str | None, int | None] | None = None
        highest: Message | None = None
        high = -1
        for message in messages:
            place = message.topic(), message.partition()
            if place != where:
                if highest is not None:
                    self.mark_offset(highest)
                where, high = place, -1
            offset = message.offset()
            if offset is not None and offset > high:
                highest, high = message, offset
        if highest is not None:
            self.mark_offset(highest)

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Mark the message at ``offset`` and all before it as processed."""
        where = check_topic(topic), check_partition(partition)
        self._mark(where, check_offset(offset) + 1, _check_metadata(metadata), reset=False)

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Let the group go back to after ``message``; reading goes on where it is."""
        where, offset = _place(message)
        self._mark(where, offset + 1, _check_metadata(metadata), reset=True)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Let the group go back to after the message at ``offset``."""
        where = check_topic(topic), check_partition(partition)
        self._mark(where, check_offset(offset) + 1, _check_metadata(metadata), reset=True)


class OffsetStash(Markable):
    """Processed offsets of several partitions, to be marked at once; for one thread."""

    def __init__(self) -> None:
        self.positions: dict[tuple[str, int], tuple[int, str]] = {}
        """The next offset to read of each partition, and metadata."""
        self.resets: set[tuple[str, int]] = set()
        """The partitions that may go back."""

    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        known, text = self.positions.get(where, _NONE)
        if (
            known < 0
            or (offset <= known if reset else offset > known)
            or (offset == known and metadata != text)
        ):
            self.positions[where] = (offset, metadata)
            if reset:
                self.resets.add(where)

    def clear(self) -> None:
        """Forget all; marking the stash does it."""
        self.positions.clear()
        self.resets.clear()

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return {TopicPartition(*where): offset - 1 for where, (offset, _) in self.positions.items()}


class Notification(NamedTuple):
    """A step of a rebalance; partitions are lists by topic."""

    kind: Literal["start", "ok", "error"]
    """``start`` before partitions are released, ``ok`` after partitions were claimed or released,
    ``error`` after partitions were lost without a release."""
    claimed: Mapping[str, Sequence[int]]
    released: Mapping[str, Sequence[int]]
    current: Mapping[str, Sequence[int]]


class MarkingConsumer(Markable, BaseConsumer):
    """A consumer that commits what is marked; subclasses hand out the messages.

    The parameters are those of BaseConsumer.  Messages are confluent-kafka's own.  Marks are
    committed every ``commit_interval_s``, before a partition is released, and at ``close``.  Marks
    of a partition that is not claimed, or was lost, are dropped.  They may come from any thread.
    """

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        # The next offset and metadata of claimed partitions; plain tuples, as each message makes
        # one.
        self._marked: dict[tuple[str, int], tuple[int, str]] = {}
        self._uncommitted: set[tuple[str, int]] = set()
        self._notifications: deque[Notification] = deque(maxlen=UNREAD)

    @abstractmethod
    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``."""

    @abstractmethod
    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        """True while the application has messages of ``partitions`` in work."""

    def mark_offsets(self, stash: OffsetStash) -> None:
        """Mark what ``stash`` holds, resets included, and empty it."""
        for where, (offset, metadata) in stash.positions.items():
            self._mark(where, offset, metadata, reset=where in stash.resets)
        stash.clear()

    def reset_offsets(self, stash: OffsetStash) -> None:
        """Let the group go back to what ``stash`` holds, and empty it."""
        for where, (offset, metadata) in stash.positions.items():
            self._mark(where, offset, metadata, reset=True)
        stash.clear()

    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        with self._lock:
            known = self._marked.get(where)
            if known is not None and (
                reset or offset > known[0] or (offset == known[0] and metadata != known[1])
            ):
                self._marked[where] = (offset, metadata)
                self._uncommitted.add(where)

    def subscriptions(self) -> dict[str, list[int]]:
        """Return the claimed partitions by topic."""
        return _by_topic(self._assigned)

    def notifications(self) -> list[Notification]:
        """Return the steps of rebalances since the last call; at most the newest 100."""
        return drain(self._notifications)

    # Called in the thread that polls

    def _claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        with self._lock:
            for where, known in committed.items():
                self._marked[where] = _NONE if known is None else (known.offset, known.metadata)
            self._uncommitted.difference_update(committed)
        self._notify("ok", claimed=committed)

    def _begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        self._notify("start", released=partitions)
        self._drop(partitions)
        deadline = time.monotonic() + timeout_s
        while self._working_on(partitions) and time.monotonic() < deadline and not self.closed:
            time.sleep(_LOOK_S)

    def _release(self, partitions: Collection[TopicPartition], *, lost: bool) -> None:
        self._drop(partitions)
        with self._lock:
            # What is marked is dropped: another member may be further.
            for where in partitions:
                self._marked.pop(where, None)
            self._uncommitted.difference_update(partitions)
        self._notify("error" if lost else "ok", released=partitions)

    def _to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            found = {where: self._marked[where] for where in self._uncommitted}
        return {TopicPartition(*where): OffsetAndMetadata(*mark) for where, mark in found.items()}

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            for where, position in offsets.items():
                if self._marked.get(where) == (position.offset, position.metadata):
                    self._uncommitted.discard(where)

    def _notify(
        self,
        kind: Literal["start", "ok", "error"],
        *,
        claimed: Iterable[TopicPartition] = (),
        released: Iterable[TopicPartition] = (),
    ) -> None:
        current = self._assigned.union(claimed)
        steps = map(_by_topic, (claimed, released, current))
        self._notifications.append(Notification(kind, *steps))


class GroupConsumer(MarkingConsumer, MessageReader[Message]):
    """A consumer with marks that reads its partitions as one stream of messages.

    Parameters and marks are those of MarkingConsumer.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._waiting: deque[Message] = deque()  # received and not handed out yet
        self._in_work: Sequence[Message] = ()  # what the application got last

    def _next(self) -> Message | None:
        with self._lock:
            if not self._waiting:
                self._in_work = ()
                return None
            message = self._waiting.popleft()
            self._in_work = (message,)
            return message

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[Message]:
        self._in_work = ()
        deadline: float | None = None
        while (count := len(self._waiting)) < max_records and not self.closed:
            if count and deadline is None:
                deadline = time.monotonic() + max_wait_s
            left_s = LONG_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            with suppress(ManagerStoppedError):
                self._wait_for(max_records - count, left_s, patient=True)
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(max_records, len(self._waiting)))]
            self._in_work = batch.copy()
        return batch

    def _receive(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self._waiting.extend(messages)

    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        return any(_where(each) in partitions for each in self._in_work)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        with self._lock:
            self._waiting = deque(each for each in self._waiting if _where(each) not in partitions)


class PartitionStream:
    """The messages of one claimed partition; for one thread.

    The iteration ends when the partition is released or the consumer is closed.  A message is
    current until the next one is requested.
    """

    def __init__(self, where: TopicPartition, consumer: PartitionedConsumer) -> None:
        self._where = where
        self._consumer = consumer
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._paused = False
        self._ended = False
        self._in_work = False

    @property
    def topic(self) -> str:
        return self._where.topic

    @property
    def partition(self) -> int:
        return self._where.partition

    @property
    def ended(self) -> bool:
        """True once no more messages come."""
        return self._ended

    def high_water_mark(self) -> int | None:
        """Return the end of the partition at the last fetch; None before the first."""
        return self._consumer.high_water_marks().get(self.topic, {}).get(self.partition)

    def __iter__(self) -> Iterator[Message]:
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        """Read no more; the partition stays with this member until the consumer is closed."""
        self._consumer._pause(self._where)
        self._end()

    def _next(self) -> Message | None:
        with self._changed:
            self._in_work = False
            while not (self._waiting or self._ended):
                self._changed.wait()
            if self._ended:
                return None
            message = self._waiting.popleft()
            self._in_work = True
            if self._paused and len(self._waiting) <= BUFFERED // 2:
                self._paused = False
                self._consumer._resume(self._where)
            return message

    def _put(self, messages: Iterable[Message]) -> None:
        with self._changed:
            if self._ended:
                return
            self._waiting.extend(messages)
            self._changed.notify()
            if len(self._waiting) >= BUFFERED and not self._paused:
                self._paused = True
                self._consumer._pause(self._where)

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()


class PartitionedConsumer(MarkingConsumer):
    """A member of a consumer group that hands out a stream for each claimed partition.

    Parameters are those of BaseConsumer, marks those of MarkingConsumer.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._streams: dict[tuple[object, object], PartitionStream] = {}
        self._new: SimpleQueue[PartitionStream | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="partitions", daemon=True)

    def partitions(self) -> Iterator[PartitionStream]:
        """Iterate over the streams of partitions as they are claimed, until the consumer is closed.

        Reading begins with the first call.  A partition that was released and is claimed again
        comes as a new stream.
        """
        if self._reader.ident is None:
            self._reader.start()
        while (stream := self._new.get()) is not None:
            if not stream.ended:
                yield stream
        self._new.put(None)

    def close(self) -> None:
        """Commit what is marked and leave the group; twice is harmless."""
        super().close()
        if self._reader.is_alive():
            self._reader.join()
        self._new.put(None)

    def _read(self) -> None:
        while True:
            try:
                self._wait_for(PREFETCH, LONG_S)
            except ManagerStoppedError:
                self._new.put(None)
                return
            except Exception:
                log.exception("group %s: reading failed, and goes on", self.name)
                time.sleep(LONG_S)

    # Called in the thread that polls

    def _receive(self, messages: Sequence[Message]) -> None:
        found: defaultdict[tuple[object, object], list[Message]] = defaultdict(list)
        for message in messages:
            found[message.topic(), message.partition()].append(message)
        for where, theirs in found.items():
            stream = self._streams.get(where)
            if stream is not None:
                stream._put(theirs)

    def _claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        super()._claim(committed)
        for where in sorted(committed):
            stream = PartitionStream(where, self)
            self._streams[where] = stream
            self._new.put(stream)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for stream in self._streams_of(partitions):
            stream._end()

    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        return any(stream._in_work for stream in self._streams_of(partitions))

    def _streams_of(self, partitions: Collection[TopicPartition]) -> list[PartitionStream]:
        return [self._streams[where] for where in partitions if where in self._streams]


def _where(message: Message) -> tuple[object, object]:
    return message.topic(), message.partition()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


def _place(message: Message) -> tuple[tuple[str, int], int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return (topic, partition), offset


def _check_metadata(metadata: str) -> str:
    return metadata and check_metadata(metadata, most=MOST_METADATA_CHARS)
