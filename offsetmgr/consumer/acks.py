"""A group consumer with an ack for each message, in any order, that survives a restart."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, Literal, get_args

from offsetmgr.consumer.base import (
    PREFETCH,
    SLICE_S,
    ConsumerSettings,
    MessageReader,
    check_choice,
    log,
)
from offsetmgr.consumer.deliveries import AckFunctions, AckMessage, Claim, Deliveries
from offsetmgr.consumer.pool import OrderedBy, Pool, PoolSource
from offsetmgr.consumer.retry import RetryPolicy, RetryProducer, read_retried
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    ManagerStoppedError,
    OffsetTimeoutError,
)
from offsetmgr.text import listed
from offsetmgr.types import OffsetAndMetadata, TopicPartition, check_count, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.answers import Written
    from offsetmgr.consumer.deliveries import PartitionProgress

_BLOCKED_S: Final = 0.01
"""Longest wait for Kafka or for an ack while messages wait for room in their partition."""

Metadata = Literal["offsetmgr", "kafka-pixy"]


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
    """Retry topics and dead letters; without, the same consumer delivers a rejected message again.
    """

    max_pending_bytes: int = 64 * 2**20
    """The limit of ``max_pending`` in bytes; a larger message comes alone."""

    max_tries: int = 100
    """A message without an ack after so many deliveries is not delivered again by this consumer,
    but stays uncommitted."""

    metadata: Metadata = "offsetmgr"
    """Form of the acknowledged ranges in the commits.  With ``kafka-pixy`` they are as kafka-pixy
    writes them, which may be mistaken for the metadata of other programs."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first bad setting."""
        super().__post_init__()
        check_count(self.max_pending, "max_pending")
        check_count(self.max_pending_bytes, "max_pending_bytes")
        check_count(self.max_tries, "max_tries")
        check_choice(self.metadata, "metadata", get_args(Metadata))


class AckConsumer(MessageReader[AckMessage]):
    """A consumer that commits what is acknowledged, and nothing else.

    Parameters are those of BaseConsumer.  The lowest offset that is not acknowledged is committed,
    with the acknowledged ranges above it in the commit's metadata, so that a restart delivers again
    only what was not acknowledged.  Metadata of other programs is ignored, and reported.

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
        self._usual_bytes = 0
        self._closing = False
        self._retries: RetryProducer | None = None
        if settings.retry is not None and self._topics:
            self._retries = RetryProducer(self._config, self._group, settings.retry, self._topics)
        self._retry_topics = self._retries.topics if self._retries is not None else {}
        self._longest_delay_s = (settings.retry or RetryPolicy()).longest_delay_s

    def _topics_to_read(self) -> Sequence[str]:
        return [*self._topics, *self._retry_topics]

    # Messages

    def run(
        self,
        handler: Callable[[AckMessage], object],
        *,
        workers: int = 8,
        ordered_by: OrderedBy | None = None,
    ) -> None:
        """Call ``handler`` for each message in ``workers`` threads, until the consumer is closed.

        A message is acknowledged when its handler returns, and rejected when it raises, whatever
        it raises.  With ``ordered_by`` the messages of one partition or one key are handled one
        after the other.  A rejected one is handled again before the next, unless there are retry
        topics: there it comes later.

        When the consumer is closed, or a signal's handler raises, running handlers have
        ``dwell_s`` to finish, and no others begin.  Messages that are not done by then are named
        in the log and by ``errors``, and are not committed.  In the main thread SIGTERM raises
        SystemExit here, unless the program handles it itself.

        Raises InvalidValueError; KafkaRequestError where Kafka refuses this consumer for good.
        """
        source = PoolSource(
            self._group,
            lambda timeout_s: self._poll(timeout_s, self._next_queued),
            self._begin,
            lambda: self._closing or self.closed,
            self._abandon,
            lambda: self.pending,
            self._settings.dwell_s,
            waits_for_retries=self._retries is None,
        )
        Pool(source, handler, workers, ordered_by).run()

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
            self._redeliver(message, self._settings.nack_delay_s if delay is None else delay)
            return

        def done(answer: Written | KafkaRequestError) -> None:
            if isinstance(answer, KafkaRequestError):
                self._failed(answer, "could not retry a message")
                self._redeliver(message, self._settings.nack_delay_s)
            else:
                self._acknowledge(message)

        self._retries.send(message, delay, error, done)

    def _abandon(self, waited_s: float) -> None:
        with self._lock:
            undone = self._deliveries.in_work()
            self._deliveries.abandon()
        if undone:
            text = f"not done within {waited_s:g} s and not committed: {listed(undone)}"
            self._failed(OffsetTimeoutError(text), "messages are left undone")

    def _redeliver(self, message: AckMessage, delay_s: float) -> None:
        given_up = message.tries >= self._settings.max_tries
        with self._lock:
            if given_up:
                self._deliveries.give_up(message)
            else:
                self._deliveries.redeliver(message, time.monotonic() + delay_s)
            self._changed.notify_all()
        if given_up:
            text = f"{message!r} is not delivered again: it was not acknowledged in so many tries"
            self._failed(OffsetTimeoutError(text), "gave up a message")

    # State

    @property
    def topics(self) -> list[str]:
        """Topics and whitelist that are read, but for retry topics."""
        return list(self._topics)

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
                stage = self._retry_topics.get(place[0] or "")
                if stage is None:
                    self._deliveries.add(AckMessage(message, claim), now_s, now_s)
                else:
                    retried = read_retried(message, stage, time.time(), self._longest_delay_s)
                    due_s = now_s + retried.due_s - time.time()
                    again = AckMessage(message, claim, retried.tries + 1, retried.first)
                    self._deliveries.add(again, due_s, now_s)
            self._pause_blocked()

    def _claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        functions = AckFunctions(self.cluster, self._acknowledge, self._reject)
        bare = self._settings.metadata == "kafka-pixy"
        with self._lock:
            for where, position in committed.items():
                self._blocked.discard(where)
                try:
                    claim = Claim(functions, where, position, bare=bare)
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
            room = self._room()
            if room <= 0 and not overdue:
                self._wait(lambda: self._room() > 0, wait_s)
        for message in overdue:
            reason = f"neither ack nor nack within {self._settings.ack_timeout_s:g} s"
            self._reject(message, None, reason)
        if room > 0:
            with suppress(ManagerStoppedError):
                self._wait_for(min(PREFETCH, room), wait_s)

    def _room(self) -> int:
        """Return how many messages of the usual size may be read."""
        count, size = self._deliveries.unfinished
        if count:
            self._usual_bytes = size // count
        left = self._settings.max_pending_bytes - size
        # The size of the first message of all is not known.
        by_size = ceil(left / self._usual_bytes) if self._usual_bytes else 1
        return min(self._settings.max_pending - self._deliveries.pending, by_size)

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
