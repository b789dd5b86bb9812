"""A group consumer with an ack for each message, in any order, that survives a restart."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from offsetmgr.codes import error_info
from offsetmgr.config import is_number
from offsetmgr.consumer.deliveries import AckMessage, Claim, Deliveries, Origin
from offsetmgr.consumer.membership import ConsumerSettings, Membership
from offsetmgr.consumer.pool import Pool
from offsetmgr.consumer.retry import DUE, TRIES, RetryPolicy, RetryProducer, number, origin_of
from offsetmgr.errors import InvalidValueError, KafkaRequestError, ManagerStoppedError
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_list,
    check_timeout,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from confluent_kafka import KafkaError, Message
    from typing_extensions import Self

PREFETCH: Final = 500
"""Messages taken from librdkafka at once."""

UNREAD: Final = 100
"""Errors kept until they are read; the oldest are dropped."""

_SLICE_S: Final = 0.1
"""Longest wait for Kafka or for an ack before time-outs and delays are looked at again."""

_BLOCKED_S: Final = 0.01
"""The same while messages wait for room in their partition."""

log = logging.getLogger("offsetmgr.consumer")


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
        if not is_number(self.max_pending, int) or self.max_pending < 1:
            fix = "give a number from 1 on"
            raise InvalidValueError("max_pending", self.max_pending, "is not possible", fix)


class AckConsumer:
    """A member of a consumer group that commits what is acknowledged, and nothing else.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings.  The lowest offset
    that is not acknowledged is committed, with the acknowledged ranges above it in the commit's
    metadata, so that a restart delivers again only what was not acknowledged.  The group must be
    of AckConsumers alone: other metadata is misread or dropped.

    Messages are read by one thread; acks, nacks and all else may come from any.

    Raises InvalidValueError for a bad name or setting; KafkaRequestError where the topics of
    ``settings.retry`` cannot be created.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str],
        *,
        name: str | None = None,
        settings: AckSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or AckSettings()
        self._group = check_group(group)
        self._name = group if name is None else name
        self._topics = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if not self._topics:
            raise InvalidValueError("topics", topics, "is empty", 'name some, such as ["orders"]')
        config = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        self.cluster = str(config.get("bootstrap.servers", ""))
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0  # threads that wait for `_changed`
        self._deliveries = Deliveries(self._settings.ack_timeout_s)
        self._blocked: set[TopicPartition] = set()
        self._errors: deque[KafkaRequestError] = deque(maxlen=UNREAD)
        self._closing = False
        policy = self._settings.retry
        self._retries = None if policy is None else RetryProducer(config, group, policy)
        self._retry_topics = [] if self._retries is None else self._retries.topics
        read = [*self._topics, *self._retry_topics]
        self._membership = Membership(config, group, read, self, self._settings)

    # Messages

    def __iter__(self) -> Iterator[AckMessage]:
        """Iterate over the messages until the consumer is closed."""
        while (message := self._next(queued=False) or self._poll(math.inf)) is not None:
            yield message

    def poll(self, *, timeout: float | None = 1.0) -> AckMessage | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.
        """
        return self._poll(check_timeout(timeout, forever=True))

    def _poll(self, timeout_s: float, *, queued: bool = False) -> AckMessage | None:
        message = self._next(queued=queued)
        if message is not None:
            return message
        deadline = self._clock() + timeout_s
        while not self._closing:
            left_s = deadline - self._clock()
            try:
                self._fill(max(0.0, left_s))
            except ManagerStoppedError:
                return None
            message = self._next(queued=queued)
            if message is not None or left_s <= 0:
                return message
        return None

    def batches(
        self, max_records: int = 500, max_wait_s: float = 1.0
    ) -> Iterator[list[AckMessage]]:
        """Iterate over lists of up to ``max_records`` messages until the consumer is closed.

        A batch is handed out when it is full, or ``max_wait_s`` after its first message came.
        """
        while (first := self.poll(timeout=None)) is not None:
            batch = [first]
            deadline = self._clock() + max_wait_s
            while len(batch) < max_records:
                message = self.poll(timeout=max(0.0, deadline - self._clock()))
                if message is None:
                    break
                batch.append(message)
            yield batch

    def run(
        self,
        handler: Callable[[AckMessage], object],
        *,
        workers: int = 8,
        ordered_by: Literal["partition", "key"] | None = None,
    ) -> None:
        """Call ``handler`` for each message in ``workers`` threads, until the consumer is closed.

        A message is acknowledged when its handler returns, and rejected when it raises.
        ``ordered_by`` has messages of one partition or one key handled one after the other; one
        that is delivered again comes later than those after it.  When the consumer is closed,
        handlers that have begun get ``dwell_s``, and no others begin.

        Raises InvalidValueError.
        """
        pool = Pool(handler, self._begin, workers, ordered_by)
        take = partial(self._poll, _SLICE_S, queued=True)
        pool.run(self, take, self._settings.dwell_s)

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        with self._lock:
            self._deliveries.acknowledge_up_to(message)
            self._changed.notify_all()

    # Acknowledger, called by the messages

    def acknowledge(self, message: AckMessage) -> None:
        with self._lock:
            self._deliveries.acknowledge(message)
            if self._waiters:
                self._changed.notify_all()

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None:
        if delay is not None:
            check_timeout(delay, "delay")
        with self._lock:
            if not self._deliveries.reject(message):
                return
            if self._retries is None:
                wait_s = self._settings.nack_delay_s if delay is None else delay
                self._deliveries.redeliver(message, self._clock() + wait_s)
                return

        def done(failure: KafkaError | None) -> None:
            with self._lock:
                if failure is None:
                    self._deliveries.acknowledge(message)
                else:
                    due_s = self._clock() + self._settings.nack_delay_s
                    self._deliveries.redeliver(message, due_s)
                self._changed.notify_all()
            if failure is not None:
                self.failed(failure)

        self._retries.send(message, delay, error, done)

    # State

    @property
    def name(self) -> str:
        """Name that was given, else that of the group."""
        return self._name

    @property
    def topics(self) -> list[str]:
        """Topics that are read, but for retry topics."""
        return list(self._topics)

    @property
    def closed(self) -> bool:
        return self._closing

    @property
    def pending(self) -> int:
        """Messages that are handed out or about to be, and not acknowledged."""
        return self._deliveries.pending

    def partitions(self) -> list[TopicPartition]:
        """Return the claimed partitions, those of retry topics included."""
        with self._lock:
            return self._deliveries.partitions()

    def errors(self) -> list[KafkaRequestError]:
        """Return the errors since the last call; at most the newest 100."""
        found = []
        while self._errors:
            found.append(self._errors.popleft())
        return found

    def close(self) -> None:
        """Wait up to ``dwell_s`` for messages in work, commit and leave the group.

        Twice is harmless.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wait_for_work(None, self._settings.dwell_s)
        self._membership.close()
        if self._retries is not None:
            self._retries.close(self._settings.dwell_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # RebalanceListener, called in the thread that polls

    def received(self, messages: Sequence[Message]) -> None:
        with self._lock:
            now_s = self._clock()
            for message in messages:
                topic = message.topic() or ""
                claim = self._deliveries.claim_of(topic, message.partition() or 0)
                if claim is None:
                    continue
                if topic in self._retry_topics:
                    retried, due_s = _retried(message, claim, now_s)
                    self._deliveries.add(retried, due_s, now_s)
                else:
                    self._deliveries.add(AckMessage(message, claim), now_s, now_s)
            self._pause_and_resume()

    def claimed(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> Mapping[TopicPartition, int]:
        with self._lock:
            for where, position in committed.items():
                self._blocked.discard(where)
                try:
                    claim = Claim(self, where, position)
                except ValueError as problem:
                    log.warning(
                        "group %s: the metadata committed for %s is dropped: %s; messages that "
                        "were acknowledged above offset %s are delivered again",
                        self._group, where, problem, position.offset if position else None,
                    )  # fmt: skip
                    offset = 0 if position is None else position.offset
                    claim = Claim(self, where, OffsetAndMetadata(offset))
                self._deliveries.claim(claim)
        return {}

    def releasing(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        with self._lock:
            self._deliveries.begin_release(partitions)
            self._wait_for_work(set(partitions), timeout_s)

    def released(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        del lost
        with self._lock:
            self._deliveries.release(partitions)
            self._blocked.difference_update(partitions)

    def to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            return self._deliveries.positions()

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            self._deliveries.committed(offsets)

    def failed(self, error: KafkaError) -> None:
        info = error_info(error.code(), error.name())
        self._errors.append(KafkaRequestError("ack consumer", info, error.str()))

    # Reading

    def _next(self, *, queued: bool) -> AckMessage | None:
        with self._lock:
            if self._closing:
                return None
            return self._deliveries.next(self._clock(), queued=queued)

    def _begin(self, message: AckMessage) -> bool:
        with self._lock:
            return not self._closing and self._deliveries.begin(message, self._clock())

    def _fill(self, timeout_s: float) -> None:
        """Read messages, and make ready what is due or has room."""
        with self._lock:
            now_s = self._clock()
            self._deliveries.refresh(now_s)
            self._pause_and_resume()
            overdue = self._deliveries.overdue(now_s)
            due_in_s = self._deliveries.next_due_s() - now_s
            # What is due and waits for room all the same waits for an ack.
            wait_s = min(timeout_s, _SLICE_S, due_in_s if due_in_s > 0 else _BLOCKED_S)
            room = self._settings.max_pending - self._deliveries.pending
            if room <= 0 and not overdue:
                self._wait(wait_s)
        for message in overdue:
            reason = f"neither ack nor nack within {self._settings.ack_timeout_s:g} s"
            self.reject(message, None, reason)
        if room > 0:
            self._membership.take(min(PREFETCH, room), wait_s)

    def _pause_and_resume(self) -> None:
        """Pause the partitions whose messages wait; others go on."""
        blocked = self._deliveries.blocked()
        for where in blocked - self._blocked:
            self._membership.pause(where)
        for where in self._blocked - blocked:
            self._membership.resume(where)
        self._blocked = blocked

    def _wait_for_work(
        self, partitions: Collection[TopicPartition] | None, timeout_s: float
    ) -> None:
        deadline = self._clock() + timeout_s
        while self._deliveries.in_work(partitions):
            left_s = deadline - self._clock()
            if left_s <= 0:
                return
            self._wait(left_s)

    def _wait(self, timeout_s: float) -> None:
        self._waiters += 1
        try:
            self._changed.wait(timeout_s)
        finally:
            self._waiters -= 1


def _retried(message: Message, claim: Claim, now_s: float) -> tuple[AckMessage, float]:
    """Return a message of a retry topic, and when it is due by the clock of ``now_s``."""
    read = AckMessage(message, claim)
    headers = dict(read.headers)
    wait_s = number(headers, DUE) / 1000 - time.time()
    origin = origin_of(headers, Origin(read.topic, read.partition, read.offset))
    return AckMessage(message, claim, number(headers, TRIES) + 1, origin), now_s + wait_s
