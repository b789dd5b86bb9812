"""A group consumer that commits what the application has marked, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from offsetmgr.codes import error_info
from offsetmgr.consumer.marks import Marks, OffsetStash
from offsetmgr.consumer.membership import ConsumerSettings, Membership
from offsetmgr.errors import InvalidValueError, KafkaRequestError, ManagerStoppedError
from offsetmgr.types import TopicPartition, check_list, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from confluent_kafka import KafkaError, Message
    from typing_extensions import Self

    from offsetmgr.types import OffsetAndMetadata

PREFETCH: Final = 500
"""Messages taken from librdkafka at once where they are iterated one by one."""

UNREAD: Final = 100
"""Notifications and errors kept until they are read; the oldest are dropped."""

_LOOK_S: Final = 0.005
_LONG_S: Final = 1.0

_T = TypeVar("_T")


class Notification(NamedTuple):
    """A step of a rebalance; partitions are lists by topic."""

    kind: Literal["start", "ok", "error"]
    """``start`` before partitions are released, ``ok`` after partitions were claimed or released,
    ``error`` after partitions were lost without a release."""
    claimed: Mapping[str, Sequence[int]]
    released: Mapping[str, Sequence[int]]
    current: Mapping[str, Sequence[int]]


class MarkingConsumer(ABC):
    """A member of a consumer group that commits what is marked; subclasses hand out the messages.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings; ``topics`` are names,
    ``whitelist`` is a regular expression of further topics, ``blacklist`` one of topics to leave
    out.  Messages are confluent-kafka's own.

    Marks are committed every ``commit_interval_s``, before a partition is released, and at
    ``close``.  Marks of a partition that was lost are dropped.  They may come from any thread.

    Raises InvalidValueError for a bad name or setting.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str] = (),
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._prepare()
        self._marks = Marks()
        self._current: frozenset[TopicPartition] = frozenset()
        self._notifications: deque[Notification] = deque(maxlen=UNREAD)
        self._errors: deque[KafkaRequestError] = deque(maxlen=UNREAD)
        self._group = group
        config = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        if blacklist is not None:
            config["topic.blacklist"] = _pattern(blacklist, "blacklist")
        names = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if whitelist is not None:
            names.append(_pattern(whitelist, "whitelist"))
        if not names:
            fix = 'name topics, such as ["orders"], or a whitelist'
            raise InvalidValueError("topics", topics, "is empty", fix)
        self._membership = Membership(config, group, names, self, settings or ConsumerSettings())

    @abstractmethod
    def _prepare(self) -> None:
        """Get ready for the first rebalance and the first message."""

    @abstractmethod
    def received(self, messages: Sequence[Message]) -> None:
        """Take in messages, all of claimed partitions."""

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

    def commit_offsets(self) -> None:
        """Commit what is marked now, and wait for it.

        Raises KafkaRequestError where Kafka refuses; the marks are kept and committed later.
        """
        try:
            self._membership.commit()
        except KafkaException as error:
            raise _request_error(error.args[0]) from error

    # State

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._group

    @property
    def closed(self) -> bool:
        return self._membership.closed

    def subscriptions(self) -> dict[str, list[int]]:
        """Return the claimed partitions by topic."""
        return _by_topic(self._current)

    def high_water_marks(self) -> dict[str, dict[int, int]]:
        """Return the ends of the claimed partitions by topic, as their last fetches saw them."""
        found: dict[str, dict[int, int]] = {}
        for where, end in self._membership.high_watermarks().items():
            if where in self._current:
                found.setdefault(where.topic, {})[where.partition] = end
        return found

    def notifications(self) -> list[Notification]:
        """Return the steps of rebalances since the last call; at most the newest 100."""
        return _drain(self._notifications)

    def errors(self) -> list[KafkaRequestError]:
        """Return the errors since the last call; at most the newest 100."""
        return _drain(self._errors)

    def close(self) -> None:
        """Commit what is marked and leave the group; twice is harmless."""
        self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # RebalanceListener, called in the turn of the thread that polls

    def claimed(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> Mapping[TopicPartition, int]:
        self._marks.claim(committed)
        self._current |= committed.keys()
        self._notify("ok", claimed=committed)
        return {}

    def releasing(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        self._notify("start", released=partitions)
        gone = set(partitions)
        self._drop(gone)
        deadline = time.monotonic() + timeout_s
        while self._working_on(gone) and time.monotonic() < deadline and not self.closed:
            time.sleep(_LOOK_S)

    def released(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        gone = frozenset(partitions)
        self._drop(gone)
        self._marks.release(partitions)
        self._current -= gone
        self._notify("error" if lost else "ok", released=partitions)

    def to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._marks.to_commit()

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._marks.committed(offsets)

    def failed(self, error: KafkaError) -> None:
        self._errors.append(_request_error(error))

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


class GroupConsumer(MarkingConsumer):
    """A member of a consumer group that reads its partitions as one stream of messages.

    Parameters and marks are those of MarkingConsumer.  Messages are read by one thread.
    """

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()  # received and not handed out yet
        self._in_work: Sequence[Message] = ()  # what the application got last

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages until the consumer is closed.

        A message is in work until the next one is asked for.
        """
        while (message := self.poll(timeout=None)) is not None:
            yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate without blocking the event loop."""
        while True:
            message = self._next()
            if message is not None:
                yield message
            elif self.closed:
                return
            else:
                await asyncio.to_thread(self._fill, PREFETCH, _LONG_S)

    def poll(self, *, timeout: float | None = 1.0) -> Message | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.
        """
        message = self._next()
        if message is not None:
            return message
        deadline = time.monotonic() + check_timeout(timeout, forever=True)
        while not self.closed:
            left_s = max(0.0, deadline - time.monotonic())
            self._fill(PREFETCH, min(_LONG_S, left_s))
            message = self._next()
            if message is not None or time.monotonic() >= deadline:
                return message
        return None

    def batches(self, max_records: int = 500, max_wait_s: float = 1.0) -> Iterator[list[Message]]:
        """Iterate over lists of up to ``max_records`` messages until the consumer is closed.

        A batch is handed out when it is full, or ``max_wait_s`` after its first message came; it
        is in work until the next one is asked for.
        """
        if type(max_records) is not int or max_records < 1:
            fix = "give a number from 1 on"
            raise InvalidValueError("max_records", max_records, "is not possible", fix)
        check_timeout(max_wait_s, "max_wait_s")
        while not self.closed:
            batch = self._next_batch(max_records, max_wait_s)
            if batch:
                yield batch

    def _next_batch(self, max_records: int, max_wait_s: float) -> list[Message]:
        self._in_work = ()
        deadline: float | None = None
        while (count := len(self._waiting)) < max_records and not self.closed:
            if count and deadline is None:
                deadline = time.monotonic() + max_wait_s
            left_s = _LONG_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                break
            self._fill(max_records - count, left_s, patient=True)
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(max_records, len(self._waiting)))]
            self._in_work = batch.copy()
        return batch

    def _fill(self, most: int, timeout_s: float, *, patient: bool = False) -> None:
        """Receive messages; returns at once where the consumer is closed."""
        with suppress(ManagerStoppedError):
            self._membership.take(most, timeout_s, patient=patient)

    def _next(self) -> Message | None:
        with self._lock:
            if not self._waiting:
                self._in_work = ()
                return None
            message = self._waiting.popleft()
            self._in_work = (message,)
            return message

    def received(self, messages: Sequence[Message]) -> None:
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


def _drain(unread: deque[_T]) -> list[_T]:
    found = []
    while unread:
        found.append(unread.popleft())
    return found


def _pattern(text: object, field: str) -> str:
    """A regular expression as librdkafka marks it."""
    if not isinstance(text, str) or not text:
        raise InvalidValueError(field, text, "is no regular expression", 'give one, as "orders.*"')
    return text if text.startswith("^") else f"^{text}"


def _request_error(error: KafkaError) -> KafkaRequestError:
    return KafkaRequestError("group consumer", error_info(error.code(), error.name()), error.str())
