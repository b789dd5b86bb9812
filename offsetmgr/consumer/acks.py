"""A group consumer with an ack for each message, in any order, that survives a restart."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from offsetmgr.consumer.base import (
    PREFETCH,
    SLICE_S,
    ConsumerSettings,
    MessageReader,
    check_choice,
    log,
)
from offsetmgr.consumer.deliveries import AckFunctions, AckMessage, Claim, Deliveries
from offsetmgr.consumer.retry import RetryPolicy, RetryProducer
from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.kafka.errors import request_error
from offsetmgr.retry_headers import DUE, TRIES, number, origin_of
from offsetmgr.types import OffsetAndMetadata, TopicPartition, check_count, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from offsetmgr.consumer.deliveries import PartitionProgress

_BLOCKED_S: Final = 0.01
"""Longest wait for Kafka or for an ack while messages wait for room in their partition."""

PROGRESS_S: Final = 30.0
"""Interval of the progress of ``AckConsumer.run`` in the log."""


@dataclass(frozen=True)
class AckSettings(ConsumerSettings):
    """Settings of an AckConsumer.  All times are seconds."""

    max_pending: int = 10_000
    """Messages handed out or about to be, and not acknowledged; beyond it none is read."""

    ack_timeout_s: float = 300.0
    """A message without an ack or nack for so long is rejected."""

    nack_delay_s: float = 1.0
    """Delay of a rejected message, where neither the nack nor ``retry`` says another one."""

    retry: RetryPolicy | None = None
    """Retry topics and dead letters; without, rejected messages are delivered again for ever."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first setting that makes no sense."""
        super().__post_init__()
        check_count(self.max_pending, "max_pending")


class AckConsumer(MessageReader[AckMessage]):
    """A consumer that commits what is acknowledged, and nothing else.

    Parameters are those of BaseConsumer.  The lowest offset that is not acknowledged is committed,
    with the acknowledged ranges above it in the commit's metadata, so that a restart delivers again
    only what was not acknowledged.  Only AckConsumers may commit to
    the group: other metadata is misread or dropped.

    Read messages in one thread; all other methods may be called in any thread.

    Raises KafkaRequestError if the topics of ``settings.retry`` cannot be created.
    """

    _SETTINGS = AckSettings
    _settings: AckSettings

    def _prepare(self) -> None:
        settings = self._settings
        if settings.retry is not None and self._partitions:
            fix = "give topics, or leave settings.retry out"
            problem = "do not go with retry topics, which a group shares"
            raise InvalidValueError("partitions", self._partitions, problem, fix)
        self.cluster = str(self._config.get("bootstrap.servers", ""))
        """Bootstrap servers."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0  # threads that wait for `_changed`
        self._deliveries = Deliveries(settings.ack_timeout_s)
        self._blocked: set[TopicPartition] = set()
        self._closing = False
        self._retries: RetryProducer | None = None
        if settings.retry is not None and self._topics:
            self._retries = RetryProducer(self._config, self._group, settings.retry)
        self._retry_topics = self._retries.topics if self._retries is not None else []

    def _topics_to_read(self) -> Sequence[str]:
        return [*self._topics, *self._retry_topics]

    # Messages

    def run(
        self,
        handler: Callable[[AckMessage], object],
        *,
        workers: int = 8,
        ordered_by: Literal["partition", "key"] | None = None,
    ) -> None:
        """Call ``handler`` for each message in ``workers`` threads, until the consumer is closed.

        A message is acknowledged when its handler returns, and rejected when it raises.
        With ``ordered_by`` the messages of one partition or one key are handled one after the
        other, except that a message that is delivered again comes later.  When the consumer is
        closed, running handlers have ``dwell_s`` to finish, and no others begin.

        Raises InvalidValueError.
        """
        _Pool(self, handler, workers, ordered_by).run()

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        with self._lock:
            self._deliveries.acknowledge_up_to(message)
            self._changed.notify_all()

    # Called by the messages

    def _acknowledge(self, message: AckMessage) -> None:
        with self._lock:
            self._deliveries.acknowledge(message)
            if self._waiters:
                self._changed.notify_all()

    def _reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None:
        if delay is not None:
            check_timeout(delay, "delay")
        with self._lock:
            if not self._deliveries.reject(message):
                return
            if self._retries is None:
                wait_s = self._settings.nack_delay_s if delay is None else delay
                self._deliveries.redeliver(message, time.monotonic() + wait_s)
                return

        def done(failure: KafkaError | None) -> None:
            with self._lock:
                if failure is None:
                    self._deliveries.acknowledge(message)
                else:
                    due_s = time.monotonic() + self._settings.nack_delay_s
                    self._deliveries.redeliver(message, due_s)
                self._changed.notify_all()
            if failure is not None:
                self._errors.append(request_error(f"retry of {message!r}", failure))

        self._retries.send(message, delay, error, done)

    # State

    @property
    def topics(self) -> list[str]:
        """Topics and whitelist that are read, but for retry topics."""
        return list(self._topics)

    @property
    def closed(self) -> bool:
        return self._closing

    @property
    def pending(self) -> int:
        """Messages that are handed out or about to be, and not acknowledged."""
        with self._lock:
            return self._deliveries.pending

    def progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Return the claimed partitions, those of retry topics included, with their progress."""
        with self._lock:
            return self._deliveries.progress(time.time())

    def close(self) -> None:
        """Wait up to ``dwell_s`` for unfinished messages, commit and leave the group.

        Twice is harmless.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wait_for_work(None, self._settings.dwell_s)
        super().close()
        if self._retries is not None:
            self._retries.close(self._settings.dwell_s)

    # Called in the thread that polls

    def _receive(self, messages: Sequence[Message]) -> None:
        with self._lock:
            now_s = time.monotonic()
            place: tuple[str | None, int | None] = "", -1
            claim: Claim | None = None
            for message in messages:
                before, place = place, (message.topic(), message.partition())
                if place != before:
                    claim = self._deliveries.claim_of(place)
                if claim is None:
                    continue
                if place[0] in self._retry_topics:
                    retried, due_s = _retried(message, claim, now_s)
                    self._deliveries.add(retried, due_s, now_s)
                else:
                    self._deliveries.add(AckMessage(message, claim), now_s, now_s)
            self._pause_blocked()

    def _claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        functions = AckFunctions(self.cluster, self._acknowledge, self._reject)
        with self._lock:
            for where, position in committed.items():
                self._blocked.discard(where)
                try:
                    claim = Claim(functions, where, position)
                except ValueError as problem:
                    log.warning(
                        "group %s: the metadata committed for %s is dropped: %s; messages that "
                        "were acknowledged above offset %s are delivered again",
                        self._group, where, problem, position.offset if position else None,
                    )  # fmt: skip
                    offset = 0 if position is None else position.offset
                    claim = Claim(functions, where, OffsetAndMetadata(offset))
                self._deliveries.claim(claim)

    def _begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        with self._lock:
            self._deliveries.begin_release(partitions)
            self._wait_for_work(partitions, timeout_s)

    def _release(self, partitions: Collection[TopicPartition], *, lost: bool) -> None:
        del lost
        with self._lock:
            self._deliveries.release(partitions)
            self._blocked.difference_update(partitions)

    def _to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            return self._deliveries.positions()

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            self._deliveries.committed(offsets)

    # Reading

    def _next(self) -> AckMessage | None:
        with self._lock:
            return None if self._closing else self._deliveries.next(time.monotonic())

    def _next_queued(self) -> AckMessage | None:
        """Return a message that a worker will begin later."""
        with self._lock:
            return None if self._closing else self._deliveries.next_ready()

    def _begin(self, message: AckMessage) -> bool:
        with self._lock:
            return not self._closing and self._deliveries.begin(message, time.monotonic())

    def _fill(self, timeout_s: float) -> None:
        """Read messages, and make ready what is due or has room."""
        with self._lock:
            now_s = time.monotonic()
            self._deliveries.refresh(now_s)
            self._pause_blocked()
            overdue = self._deliveries.overdue(now_s)
            due_in_s = self._deliveries.next_due_s() - now_s
            # What is due and waits for room all the same waits for an ack.
            wait_s = min(timeout_s, SLICE_S, due_in_s if due_in_s > 0 else _BLOCKED_S)
            most = self._settings.max_pending
            room = most - self._deliveries.pending
            if room <= 0 and not overdue:
                self._wait(lambda: self._deliveries.pending < most, wait_s)
        for message in overdue:
            reason = f"neither ack nor nack within {self._settings.ack_timeout_s:g} s"
            self._reject(message, None, reason)
        if room > 0:
            with suppress(ManagerStoppedError):
                self._wait_for(min(PREFETCH, room), wait_s)

    def _pause_blocked(self) -> None:
        """Pause the partitions whose messages wait; others go on."""
        blocked = self._deliveries.blocked()
        for where in blocked - self._blocked:
            self._pause(where)
        for where in self._blocked - blocked:
            self._resume(where)
        self._blocked = blocked

    def _wait_for_work(
        self, partitions: Collection[TopicPartition] | None, timeout_s: float
    ) -> None:
        self._wait(lambda: not self._deliveries.in_work(partitions), timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        self._waiters += 1
        self._changed.wait_for(condition, timeout_s)
        self._waiters -= 1


class _Pool:
    """Threads that handle messages; those of one key after each other."""

    def __init__(
        self,
        consumer: AckConsumer,
        handler: Callable[[AckMessage], object],
        workers: int,
        ordered_by: Literal["partition", "key"] | None,
    ) -> None:
        """Raises InvalidValueError."""
        check_count(workers, "workers")
        check_choice(ordered_by, "ordered_by", ("partition", "key", None))
        self._consumer = consumer
        self._handler = handler
        self._ordered_by = ordered_by
        self._queue: queue.SimpleQueue[tuple[Hashable, AckMessage] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._behind: dict[Hashable, deque[AckMessage]] = {}
        """Messages that wait for another one of their key that is queued or in work."""
        self._stopping = False
        self._handled = 0
        self._failed = 0
        numbers = range(workers)
        self._threads = [threading.Thread(target=self._work, name=f"handler-{n}") for n in numbers]

    def run(self) -> None:
        """Handle what the consumer reads until it is closed; what has begun then is finished."""
        consumer = self._consumer
        began_s = told_s = time.monotonic()
        told = 0
        for thread in self._threads:
            thread.start()
        try:
            while not consumer.closed:
                message = consumer._poll(SLICE_S, consumer._next_queued)
                if message is not None:
                    self._put(message, _order_key(message, self._ordered_by))
                now_s = time.monotonic()
                if now_s - told_s >= PROGRESS_S:
                    self._tell("", (self._handled - told) / (now_s - told_s))
                    told_s, told = now_s, self._handled
        finally:
            self._stopping = True
            for _ in self._threads:
                self._queue.put(None)
            for thread in self._threads:
                thread.join()
            took_s = max(0.001, time.monotonic() - began_s)
            self._tell("stopped after ", self._handled / took_s)

    def _tell(self, what: str, rate: float) -> None:
        text = "%s: %s%d handled, %d of them failed, %.1f/s, %d pending"
        name, pending = self._consumer.name, self._consumer.pending
        log.info(text, name, what, self._handled, self._failed, rate, pending)

    def _put(self, message: AckMessage, key: Hashable) -> None:
        """Have a message handled; None as its key is for no order."""
        if key is not None:
            with self._lock:
                behind = self._behind.get(key)
                if behind is not None:
                    behind.append(message)
                    return
                self._behind[key] = deque()
        self._queue.put((key, message))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopping:
            key, message = item
            handled = self._consumer._begin(message)
            failed = handled and not self._handle(message)
            with self._lock:
                self._handled += handled
                self._failed += failed
                if key is not None:
                    behind = self._behind[key]
                    if behind:
                        self._queue.put((key, behind.popleft()))
                    else:
                        del self._behind[key]

    def _handle(self, message: AckMessage) -> bool:
        """Return True if the handler succeeds."""
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the message failed
            log.warning("%r failed: %s: %s", message, type(error).__name__, error)
            message.nack(error=error)
            return False
        message.ack()
        return True


def _retried(message: Message, claim: Claim, now_s: float) -> tuple[AckMessage, float]:
    """Return a message of a retry topic, and when it is due by the clock of ``now_s``."""
    first = AckMessage(message, claim)
    headers = dict(first.headers)
    due_s = now_s + number(headers, DUE) / 1000 - time.time()
    origin = origin_of(headers, first.origin)
    return AckMessage(message, claim, number(headers, TRIES) + 1, origin), due_s


def _order_key(message: AckMessage, ordered_by: str | None) -> Hashable:
    if ordered_by == "partition":
        return message.topic, message.partition
    if ordered_by == "key" and message.key is not None:
        return message.topic, message.key
    return None
