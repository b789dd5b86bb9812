"""Consumers that commit what the application has marked: one stream, or one per partition."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import defaultdict, deque
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from confluent_kafka import Message

from offsetmgr.consumer.base import PREFETCH, UNREAD, BaseConsumer, MessageReader, drain
from offsetmgr.consumer.marks import Markable, Marks
from offsetmgr.consumer.membership import MemberCallbacks, Membership
from offsetmgr.errors import ManagerStoppedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from offsetmgr.consumer.marks import OffsetStash
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BUFFERED: Final = 1_000
"""A partition with so many messages that were not asked for is paused until half are taken."""

_LOOK_S: Final = 0.005
_LONG_S: Final = 1.0

log = logging.getLogger("offsetmgr.consumer")


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
        self._marks = Marks()
        self._current: frozenset[TopicPartition] = frozenset()
        self._notifications: deque[Notification] = deque(maxlen=UNREAD)

    def _callbacks(self) -> MemberCallbacks:
        return MemberCallbacks(
            self._received,
            self._claimed,
            self._releasing,
            self._released,
            self._marks.to_commit,
            self._marks.committed,
            self._errors.append,
        )

    @abstractmethod
    def _received(self, messages: Sequence[Message]) -> None: ...

    @abstractmethod
    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``."""

    @abstractmethod
    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        """True while the application has messages of ``partitions`` in work."""

    def mark_offsets(self, stash: OffsetStash) -> None:
        """Mark what ``stash`` holds, resets included."""
        for where, (offset, metadata) in stash.positions.items():
            self._marks.mark(where, offset, metadata, may_fall=where in stash.resets)

    def reset_offsets(self, stash: OffsetStash) -> None:
        """Let the group go back to what ``stash`` holds."""
        for where, (offset, metadata) in stash.positions.items():
            self._marks.mark(where, offset, metadata, may_fall=True)

    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        self._marks.mark(where, offset, metadata, may_fall=reset)

    def subscriptions(self) -> dict[str, list[int]]:
        """Return the claimed partitions by topic."""
        return _by_topic(self._current)

    def notifications(self) -> list[Notification]:
        """Return the steps of rebalances since the last call; at most the newest 100."""
        return drain(self._notifications)

    # Called by the membership

    def _claimed(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        self._marks.claim(committed)
        self._current |= committed.keys()
        self._notify("ok", claimed=committed)

    def _releasing(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        self._notify("start", released=partitions)
        gone = set(partitions)
        self._drop(gone)
        deadline = time.monotonic() + timeout_s
        while self._working_on(gone) and time.monotonic() < deadline and not self.closed:
            time.sleep(_LOOK_S)

    def _released(self, partitions: Collection[TopicPartition], lost: bool) -> None:  # noqa: FBT001
        gone = frozenset(partitions)
        self._drop(gone)
        self._marks.release(partitions)
        self._current -= gone
        self._notify("error" if lost else "ok", released=partitions)

    def _notify(
        self,
        kind: Literal["start", "ok", "error"],
        *,
        claimed: Iterable[TopicPartition] = (),
        released: Iterable[TopicPartition] = (),
    ) -> None:
        current = _by_topic(self._current)
        self._notifications.append(
            Notification(kind, _by_topic(claimed), _by_topic(released), current)
        )


class GroupConsumer(MarkingConsumer, MessageReader[Message]):
    """A consumer with marks that reads its partitions as one stream of messages.

    Parameters and marks are those of MarkingConsumer.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._lock = threading.Lock()
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

    def _fill(self, timeout_s: float) -> None:
        with suppress(ManagerStoppedError):
            self._membership.take(PREFETCH, min(_LONG_S, timeout_s))

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[Message]:
        self._in_work = ()
        deadline: float | None = None
        while (count := len(self._waiting)) < max_records and not self.closed:
            if count and deadline is None:
                deadline = time.monotonic() + max_wait_s
            left_s = _LONG_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            with suppress(ManagerStoppedError):
                self._membership.take(max_records - count, left_s, patient=True)
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(max_records, len(self._waiting)))]
            self._in_work = batch.copy()
        return batch

    def _received(self, messages: Sequence[Message]) -> None:
        with self._lock:
            self._waiting.extend(messages)

    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        return any(_where(each) in partitions for each in self._in_work)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        with self._lock:
            self._waiting = deque(each for each in self._waiting if _where(each) not in partitions)


class PartitionStream:
    """The messages of one claimed partition; for one thread.

    The iteration ends where the partition is released or the consumer is closed.  A message is in
    work until the next one is asked for.
    """

    def __init__(self, where: TopicPartition, membership: Membership) -> None:
        self._where = where
        self._membership = membership
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
        """Return the end of the partition as the last fetch saw it; None before the first."""
        return self._membership.high_watermarks().get(self._where)

    def __iter__(self) -> Iterator[Message]:
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        """Read no more; the partition stays with this member until the consumer is closed."""
        self._membership.pause(self._where)
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
                self._membership.resume(self._where)
            return message

    def _put(self, messages: Iterable[Message]) -> None:
        with self._changed:
            if self._ended:
                return
            self._waiting.extend(messages)
            self._changed.notify()
            if len(self._waiting) >= BUFFERED and not self._paused:
                self._paused = True
                self._membership.pause(self._where)

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
                self._membership.take(PREFETCH, _LONG_S)
            except ManagerStoppedError:
                self._new.put(None)
                return
            except Exception:
                log.exception("group %s: reading failed, and goes on", self.name)
                time.sleep(_LONG_S)

    # Called by the membership

    def _received(self, messages: Sequence[Message]) -> None:
        found: defaultdict[tuple[object, object], list[Message]] = defaultdict(list)
        for message in messages:
            found[message.topic(), message.partition()].append(message)
        for where, theirs in found.items():
            stream = self._streams.get(where)
            if stream is not None:
                stream._put(theirs)  # noqa: SLF001

    def _claimed(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        super()._claimed(committed)
        for where in sorted(committed):
            stream = PartitionStream(where, self._membership)
            self._streams[where] = stream
            self._new.put(stream)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for stream in self._streams_of(partitions):
            stream._end()  # noqa: SLF001

    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        return any(stream._in_work for stream in self._streams_of(partitions))  # noqa: SLF001

    def _streams_of(self, partitions: Collection[TopicPartition]) -> list[PartitionStream]:
        return [self._streams[where] for where in partitions if where in self._streams]


def _where(message: Message) -> tuple[object, object]:
    return message.topic(), message.partition()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found
