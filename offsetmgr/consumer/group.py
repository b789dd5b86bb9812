"""A group consumer that commits what the application has marked, and nothing else."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from confluent_kafka import Message

from offsetmgr.consumer.base import PREFETCH, UNREAD, BaseConsumer, MessageReader, drain
from offsetmgr.consumer.marks import Marks, OffsetStash
from offsetmgr.consumer.membership import ConsumerSettings
from offsetmgr.errors import ManagerStoppedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.consumer.keepers import OffsetKeeper
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_LOOK_S: Final = 0.005
_LONG_S: Final = 1.0


class Notification(NamedTuple):
    """A step of a rebalance; partitions are lists by topic."""

    kind: Literal["start", "ok", "error"]
    """``start`` before partitions are released, ``ok`` after partitions were claimed or released,
    ``error`` after partitions were lost without a release."""
    claimed: Mapping[str, Sequence[int]]
    released: Mapping[str, Sequence[int]]
    current: Mapping[str, Sequence[int]]


class MarkingConsumer(BaseConsumer):
    """A consumer that commits what is marked; subclasses hand out the messages.

    The parameters are those of BaseConsumer.  Messages are confluent-kafka's own.  Marks are
    committed every ``commit_interval_s``, before a partition is released, and at ``close``.  Marks
    of a partition that was lost are dropped.  They may come from any thread.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str] = (),
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        partitions: Iterable[tuple[str, int]] = (),
        offsets: OffsetKeeper | Offsets | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._marks = Marks()
        self._current: frozenset[TopicPartition] = frozenset()
        self._notifications: deque[Notification] = deque(maxlen=UNREAD)
        super().__init__(
            kafka,
            group,
            topics,
            whitelist=whitelist,
            blacklist=blacklist,
            partitions=partitions,
            offsets=offsets,
            settings=settings or ConsumerSettings(),
        )

    @abstractmethod
    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more messages of ``partitions``."""

    @abstractmethod
    def _working_on(self, partitions: Collection[TopicPartition]) -> bool:
        """True while the application has messages of ``partitions`` in work."""

    # Marks

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Mark ``message`` and all before it in its partition as processed."""
        self._marks.mark_message(message, metadata)

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Mark the message at ``offset`` and all before it as processed."""
        stash = OffsetStash()
        stash.mark_partition_offset(topic, partition, offset, metadata)
        self.mark_offsets(stash)

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Mark all of ``messages``, such as those of a batch."""
        stash = OffsetStash()
        stash.mark_messages(messages)
        self.mark_offsets(stash)

    def mark_offsets(self, stash: OffsetStash) -> None:
        """Mark what ``stash`` holds, resets included.

        A mark that is not higher than the last one changes nothing, nor does one of a partition
        that is not claimed.
        """
        self._marks.mark(stash.positions, stash.resets)

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Let the group go back to after ``message``; reading goes on where it is."""
        stash = OffsetStash()
        stash.reset_offset(message, metadata)
        self.mark_offsets(stash)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Let the group go back to after the message at ``offset``."""
        stash = OffsetStash()
        stash.reset_partition_offset(topic, partition, offset, metadata)
        self.mark_offsets(stash)

    def reset_offsets(self, stash: OffsetStash) -> None:
        """Let the group go back to what ``stash`` holds."""
        self._marks.mark(stash.positions, stash.positions)

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

    def _to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._marks.to_commit()

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._marks.committed(offsets)

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


def _where(message: Message) -> tuple[object, object]:
    return message.topic(), message.partition()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found
