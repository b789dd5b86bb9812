"""A group consumer that hands out a stream for each claimed partition, for a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from offsetmgr.consumer.group import MarkingConsumer
from offsetmgr.errors import ManagerStoppedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.consumer.membership import Membership
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

BUFFERED: Final = 1_000
"""A partition with so many messages that were not asked for is paused until half are taken."""

_AT_ONCE: Final = 500
_LOOK_S: Final = 0.005
_LONG_S: Final = 1.0

log = logging.getLogger("offsetmgr.consumer")


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

    Parameters and marks are those of MarkingConsumer.
    """

    def _prepare(self) -> None:
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
                self._membership.take(_AT_ONCE, _LONG_S)
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
