"""Messages on their way to an application that acknowledges each, and back as offsets."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, Literal, get_args

from offsetmgr.codes import OFFSET_CHANGED, error_info
from offsetmgr.consumer.deliveries import AckFunctions, AckMessage, Claim, Deliveries
from offsetmgr.consumer.member import SLICE_S, Start
from offsetmgr.consumer.retry import RetryPolicy, RetryProducer, read_retried
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.errors import (
    KafkaRequestError,
    ManagerStoppedError,
    MessageError,
)
from offsetmgr.text import error_text, listed, visible
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_choice,
    check_count,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.answers import Written
    from offsetmgr.consumer.deliveries import PartitionProgress
    from offsetmgr.consumer.member import Member

_BLOCKED_S: Final = 0.01
"""Longest wait for Kafka or for an ack while messages wait for room in their partition."""

_PREFETCH: Final = 500
"""Messages taken from librdkafka at once."""

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


class AckWork:
    """Messages on their way to an application that acknowledges each; for any thread."""

    member: Member

    def __init__(self, settings: AckSettings, cluster: str, retries: RetryProducer | None) -> None:
        self.cluster = cluster
        self.retries: Final = retries
        self.closing = False
        self.settings: Final = settings
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0  # threads that wait for `_changed`
        self._deliveries = Deliveries(settings.ack_timeout_s)
        self._blocked: set[TopicPartition] = set()
        self._usual_bytes = 0

    @property
    def pending(self) -> int:
        with self._lock:
            return self._deliveries.pending

    def progress(self) -> dict[TopicPartition, PartitionProgress]:
        with self._lock:
            return self._deliveries.progress(time.time())

    # Acks

    def acknowledge(self, message: AckMessage) -> None:
        with self._lock:
            self._deliveries.acknowledge(message)
            if self._waiters:
                self._changed.notify_all()

    def acknowledge_up_to(self, message: AckMessage) -> None:
        with self._lock:
            self._deliveries.acknowledge_up_to(message)
            self._changed.notify_all()

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None:
        if delay is not None:
            check_timeout(delay, "delay")
        with self._lock:
            if not self._deliveries.reject(message):
                return
        if self.retries is None:
            self._redeliver(message, self.settings.nack_delay_s if delay is None else delay)
            return

        def done(answer: Written | KafkaRequestError) -> None:
            if isinstance(answer, KafkaRequestError):
                answer.topic, answer.partition, answer.offset = message.place
                self.member.report(answer, "could not retry a message")
                self._redeliver(message, self.settings.nack_delay_s)
            else:
                self.acknowledge(message)

        try:
            self.retries.send(message, delay, error, done)
        except Exception as failure:  # noqa: BLE001 -- such as of an ``error`` of any type
            text = f"{message!r} could not be retried: {visible(error_text(failure))}"
            self.member.report(MessageError(text, *message.place), "could not retry a message")
            self._redeliver(message, self.settings.nack_delay_s)

    def _redeliver(self, message: AckMessage, delay_s: float) -> None:
        given_up = message.tries >= self.settings.max_tries
        with self._lock:
            if given_up:
                self._deliveries.give_up(message)
            else:
                self._deliveries.redeliver(message, time.monotonic() + delay_s)
            self._changed.notify_all()
        if given_up:
            text = f"{message!r} is not delivered again: no try has acknowledged it"
            self.member.report(MessageError(text, *message.place), "gave up a message")

    def abandon(self) -> None:
        """Wait no longer for messages in work, for which ``dwell_s`` is over, and report them."""
        with self._lock:
            undone = self._deliveries.in_work()
            self._deliveries.abandon()
        if undone:
            dwell_s = self.settings.dwell_s
            text = f"not done within {dwell_s:g} s and not committed: {listed(undone)}"
            error = MessageError(text, *undone[0].place)
            self.member.report(error, "messages are left undone")

    def wait_until_done(self, timeout_s: float) -> bool:
        """Hand out no more, and wait for messages in work; False if that was called before."""
        with self._lock:
            if self.closing:
                return False
            self.closing = True
            self._wait(lambda: not self._deliveries.in_work(None), timeout_s)
        return True

    # Called in the thread that polls

    def receive(self, messages: Sequence[Message]) -> None:
        retry_topics = self.retries.topics if self.retries is not None else {}
        with self._lock:
            now_s = time.monotonic()
            place: tuple[str | None, int | None] = "", -1
            claim: Claim | None = None
            for message in messages:
                before, place = place, (message.topic(), message.partition())
                if place != before:
                    claim = self._deliveries.claim_of(place)
                    self._check_ranges(claim)
                if claim is None:
                    continue
                stage = retry_topics.get(place[0] or "")
                if stage is None or self.retries is None:
                    self._deliveries.add(AckMessage(message, claim), now_s, now_s)
                else:
                    retried = read_retried(message, stage, time.time(), self.retries.longest_s)
                    due_s = now_s + retried.due_s - time.time()
                    again = AckMessage(message, claim, retried.tries + 1, retried.first)
                    self._deliveries.add(again, due_s, now_s)
            count, size = self._deliveries.unfinished
            if count:
                self._usual_bytes = size // count
            self._pause_blocked()

    def reach_end(self, topic_partition: TopicPartition, end: int) -> None:
        with self._lock:
            claim = self._deliveries.claim_of(topic_partition)
            self._check_ranges(claim)
            if claim is not None:
                claim.reach_end(end)

    def claim(self, starts: Mapping[TopicPartition, Start]) -> None:
        functions = AckFunctions(self.cluster, self.acknowledge, self.reject)
        bare = self.settings.metadata == "kafka-pixy"
        with self._lock:
            for each, (committed, start) in starts.items():
                self._blocked.discard(each)
                try:
                    claim = Claim(functions, each, committed, start=start, bare=bare)
                except ValueError as problem:
                    offset = 0 if committed is None else committed.offset
                    claim = Claim(functions, each, OffsetAndMetadata(offset), bare=bare)
                    self._report_metadata(claim, str(problem))
                self._deliveries.claim(claim)

    def _check_ranges(self, claim: Claim | None) -> None:
        """Ignore acknowledged ranges that were committed and are not of this log."""
        if claim is not None and not claim.checked:
            end = self.member.log_end(claim.topic_partition)
            if end is not None and claim.drop_ranges_beyond(end):
                self._report_metadata(claim, f"it has acks beyond the log's end {end}")

    def _report_metadata(self, claim: Claim, problem: str) -> None:
        offset, (topic, partition) = claim.tracker.offset, claim.topic_partition
        what = f"the metadata committed for {claim.topic_partition} is dropped"
        text = f"{problem}; messages acknowledged above offset {offset} are delivered again"
        info = error_info(OFFSET_CHANGED)
        error = KafkaRequestError(what, info, text, topic=topic, partition=partition, offset=offset)
        self.member.report(error, "acks are lost")

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        self.claim({topic_partition: Start(None, offset)})

    def begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        with self._lock:
            self._deliveries.begin_release(partitions)
            self._wait(lambda: not self._deliveries.in_work(partitions), timeout_s)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        with self._lock:
            self._deliveries.release(partitions)
            self._blocked.difference_update(partitions)

    def to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            return self._deliveries.positions()

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            self._deliveries.committed(offsets)

    # Reading

    def next(self) -> AckMessage | None:
        with self._lock:
            return None if self.closing else self._deliveries.next(time.monotonic())

    def next_queued(self) -> AckMessage | None:
        """Return a message that a worker will begin later."""
        with self._lock:
            return None if self.closing else self._deliveries.next_ready()

    def begin(self, message: AckMessage) -> bool:
        """Take a message into work; False if it must not be handled any more."""
        with self._lock:
            return not self.closing and self._deliveries.begin(message, time.monotonic())

    def fill(self, timeout_s: float) -> None:
        """Read messages, and make ready what is due or has room."""
        with self._lock:
            now_s = time.monotonic()
            self._deliveries.refresh(now_s)
            self._pause_blocked()
            overdue = self._deliveries.overdue(now_s)
            due_in_s = self._deliveries.next_due_s() - now_s
            # A due message that waits for room all the same waits for an ack.
            wait_s = min(timeout_s, SLICE_S, due_in_s if due_in_s > 0 else _BLOCKED_S)
            room = self._room()
            if room <= 0 and not overdue:
                self._wait(lambda: self._room() > 0, wait_s)
        for message in overdue:
            reason = f"neither ack nor nack within {self.settings.ack_timeout_s:g} s"
            self.reject(message, None, reason)
        if room > 0:
            with suppress(ManagerStoppedError):
                self.member.wait_for(min(_PREFETCH, room), wait_s)

    def _room(self) -> int:
        """Return how many messages of the usual size may be read."""
        left = self.settings.max_pending_bytes - self._deliveries.unfinished[1]
        # The size of the first message of all is not known.
        by_size = ceil(left / self._usual_bytes) if self._usual_bytes else 1
        return min(self.settings.max_pending - self._deliveries.pending, by_size)

    def _pause_blocked(self) -> None:
        """Pause the partitions whose messages wait; others go on."""
        blocked = self._deliveries.blocked()
        for each in blocked - self._blocked:
            self.member.pause(each)
        for each in self._blocked - blocked:
            self.member.resume(each)
        self._blocked = blocked

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        self._waiters += 1
        try:
            self._changed.wait_for(condition, timeout_s)
        finally:
            self._waiters -= 1
