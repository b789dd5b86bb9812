"""Messages on their way to an application that acknowledges each, and back as offsets.

The offset to commit is the lowest one that is not acknowledged.  The acknowledged ranges above it
go into the commit's metadata, so that a restart delivers again only what was not acknowledged.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import count, islice
from math import ceil, inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from confluent_kafka import TIMESTAMP_CREATE_TIME

from offsetmgr.acked_ranges import AckTracker
from offsetmgr.codes import OFFSET_CHANGED, error_info
from offsetmgr.consumer.client import PREFETCH, SLICE_S
from offsetmgr.consumer.member import LATE_ACK, NO_RETRY
from offsetmgr.consumer.retry import RetryPolicy, RetryProducer, read_retried
from offsetmgr.consumer.settings import MOST_METADATA_CHARS, ConsumerSettings
from offsetmgr.consumer.work import Claimed, Start, Work
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    MessageError,
    OffsetManagerError,
)
from offsetmgr.kafka.messages import headers_of
from offsetmgr.retry_headers import Origin
from offsetmgr.text import error_text, listed, visible
from offsetmgr.types import (
    MAX_OFFSET,
    OffsetAndMetadata,
    TopicPartition,
    check_choice,
    check_count,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from confluent_kafka import Message

    from offsetmgr.answers import Written
    from offsetmgr.retry_headers import Retried

_BLOCKED_S: Final = 0.01
"""Longest wait for Kafka or for an ack while messages wait for room in their partition."""

_OVERHEAD_BYTES: Final = 500  # of the objects that a message is made of
_NAME_CHARS: Final = 250  # shown of a group that a header names


Metadata = Literal["offsetmgr", "kafka-pixy"]
OrderedBy = Literal["partition", "key"]


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
        if not isinstance(self.retry, (RetryPolicy, type(None))):
            raise InvalidValueError("retry", self.retry, "is not a policy", "give RetryPolicy(...)")


class PartitionProgress(NamedTuple):
    """Progress of the acks of a claimed partition."""

    offset: int | None
    """The oldest offset that is not acknowledged; None before the first message."""
    pending: int
    """Messages that are handed out or about to be, and not acknowledged."""
    seconds: float
    """Age of the message at ``offset`` by its timestamp; 0 where it was not read yet."""
    metadata_chars: int
    """Length of the acknowledged ranges above ``offset`` in the commit, at most 4,095."""


class Claim(Claimed):
    """A claimed partition with its acks."""

    def __init__(
        self,
        receiver: AckWork,
        topic_partition: TopicPartition,
        committed: OffsetAndMetadata | None,
        *,
        start: int | None = None,
        bare: bool = False,
    ) -> None:
        """``start`` is where reading begins if nothing is committed, which is to be committed.

        ``bare`` as for AckTracker.  Raises ValueError for metadata that is not of acks.
        """
        self.receiver = receiver
        self.topic_partition = topic_partition
        self.committed = committed
        self.bytes = 0
        """Size of the messages that were delivered, and are neither acknowledged nor given up."""
        self.releasing = False
        self.waiting: deque[tuple[float, AckMessage]] = deque()  # with when they are due
        self.waiting_bytes = 0
        self.left_off: int | None = None
        """If set, messages from this offset on were not kept, as too many wait."""
        self.given_up: set[int] = set()
        """Offsets that are not acknowledged, and not delivered again."""
        self._end = 0
        self._bare = bare
        offset, metadata, _ = committed or OffsetAndMetadata(MAX_OFFSET if start is None else start)
        self.begun = offset != MAX_OFFSET
        """False until it is known where reading begins."""
        self.checked = not metadata
        """False while committed ranges may be of another log."""
        self.tracker = self._track(offset, metadata)

    def _track(self, offset: int, metadata: str = "") -> AckTracker[AckMessage]:
        return AckTracker(offset, metadata, limit_chars=MOST_METADATA_CHARS, bare=self._bare)

    @property
    def paused(self) -> bool:
        return bool(self.waiting)

    def to_commit(self) -> OffsetAndMetadata | None:
        position, known = self.tracker.position, self.committed
        is_new = self.begun and (known is None or position[:2] != known[:2])
        return position if is_new else None

    def commit(self, position: OffsetAndMetadata) -> None:
        self.committed = position

    def begin(self, offset: int) -> None:
        """Take in where reading begins, unless that is known."""
        if not self.begun:
            self.begun = True
            self.tracker = self._track(offset)

    def drop_ranges_beyond(self, end: int) -> bool:
        """Forget the committed ranges if one reaches beyond the log's end; True if so."""
        self.checked = True
        beyond = self.tracker.acknowledged_end > max(end, self.tracker.offset)
        if beyond:
            self.tracker = self._track(self.tracker.offset)
        return beyond

    def reach_end(self, end: int) -> None:
        if self.left_off is None:
            self._end = end
            self.pass_over_end()

    def pass_over_end(self) -> None:
        """Let the commit go up to the end of the log once the messages before it are done."""
        if self._end and not self.waiting:
            self.begin(self._end)
            self.tracker.pass_over(self._end)

    def progress(self, now_s: float) -> PartitionProgress:
        """``now_s`` is in seconds since 1970."""
        tracker = self.tracker
        since_ms = tracker.oldest.timestamp()[1] if tracker.oldest else 0
        return PartitionProgress(
            tracker.offset if self.begun else None,
            len(tracker.pending),
            max(0.0, now_s - since_ms / 1000) if since_ms > 0 else 0.0,
            len(tracker.position.metadata),
        )


class AckMessage:
    """A message that waits for its ack or nack; any thread may give it.

    It has the methods of a message of confluent-kafka.  A second ack or nack has no effect, nor has
    one for a partition that was released, which ``errors`` reports once for acks.
    """

    __slots__ = ("at", "claim", "nacked", "raw", "retried", "size", "tries")

    def __init__(
        self, message: Message, claim: Claim, tries: int = 1, retried: Retried | None = None
    ) -> None:
        """``retried`` are the headers of a message from a retry topic."""
        self.raw: Final = message
        """confluent-kafka's message."""
        self.claim: Final = claim
        self.at: Final = message.offset() or 0
        key = message.key()
        self.size: Final = len(message) + _OVERHEAD_BYTES + (len(key) if key else 0)
        """Bytes of key and value, and of the objects around them, as they count in memory."""
        self.tries: Final = tries
        """The number of known deliveries of the message, with this one."""
        self.retried: Final = retried
        self.nacked = False
        """True once this delivery is rejected by ``nack``."""

    def topic(self) -> str:
        """Return the topic from which it was read, which may be a retry topic."""
        return self.claim.topic_partition.topic

    def partition(self) -> int:
        return self.claim.topic_partition.partition

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.raw.key()

    def value(self) -> bytes | None:
        return self.raw.value()

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers, None if there are none; a name that is not UTF-8 is ``\ufffd``."""
        return headers_of(self.raw) or None

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp and milliseconds since 1970, as first produced."""
        if self.retried is not None and self.retried.timestamp_ms >= 0:
            return TIMESTAMP_CREATE_TIME, self.retried.timestamp_ms
        return self.raw.timestamp()

    def leader_epoch(self) -> int | None:
        return self.raw.leader_epoch()

    def error(self) -> None:
        """Return None: errors are not handed out as messages."""

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        return True

    @property
    def origin(self) -> Origin:
        """Place where it was first produced; differs from its own place after a retry topic."""
        return self.place if self.retried is None else self.retried.origin

    @property
    def place(self) -> Origin:
        """Place where it was read from."""
        return Origin(*self.claim.topic_partition, self.at)

    @property
    def cluster(self) -> str:
        """Bootstrap servers of its cluster, or its name where several are read."""
        return self.claim.receiver.cluster

    @property
    def is_pending(self) -> bool:
        """True until it is acknowledged, or its partition was released."""
        return not self.claim.released and self.at in self.claim.tracker.pending

    @property
    def given_up(self) -> bool:
        """True if it is not delivered again, though it is not acknowledged."""
        return self.at in self.claim.given_up

    def ack(self) -> None:
        """Acknowledge the message: it is processed."""
        self.claim.receiver.acknowledge(self)

    def nack(self, delay: float | None = None, *, error: BaseException | str | None = None) -> None:
        """Reject the message: it is delivered again after ``delay`` s, by default as set.

        ``error`` says why; it goes into the headers of retry topics and dead letters.
        """
        self.claim.receiver.reject(self, delay, error)
        self.nacked = True

    def __repr__(self) -> str:
        return f"AckMessage({self.claim.topic_partition}@{self.at}, tries={self.tries})"


class AckWork(Work[Claim]):
    """Messages on their way to an application that acknowledges each; for any thread.

    A message waits until it is due and its partition has room for one more; then it is ready, then
    in work, then acknowledged, or delayed until it is ready once more.
    """

    def __init__(
        self,
        settings: AckSettings,
        cluster: str,
        retries: RetryProducer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``cluster`` is that of messages."""
        super().__init__()
        self.cluster = cluster
        self.retries: Final = retries
        self.closing = False
        """True once no more messages are to be handed out."""
        self.settings: Final = settings
        self._now_s = clock
        self._changed = threading.Condition(self.lock)
        self._waiters = 0  # threads that wait for `_changed`
        self._ready: queue.SimpleQueue[AckMessage | None] = queue.SimpleQueue()
        self._make_ready: Callable[[AckMessage], None] = self._ready.put
        """Hands a message out, in its turn."""
        self._ordered_by: OrderedBy | None = None
        self._lines: dict[Hashable, deque[AckMessage]] = {}
        """The messages of each key; the first is ready, in work, or waits to come again."""
        self._waiting_lines: set[Hashable] = set()  # keys whose first message waits to come again
        self._ack_timeout_s = settings.ack_timeout_s
        self._in_work: dict[AckMessage, float | None] = {}
        """With their time-outs, which rise; None on the way to a retry topic.  Filled without the
        lock."""
        self._delayed: list[tuple[float, int, AckMessage]] = []  # a heap
        self._numbers = count()
        self._usual_bytes = 0

    @property
    def pending(self) -> int:
        """Messages that were delivered and are not acknowledged."""
        with self.lock:
            return sum(len(claim.tracker.pending) for claim in self.claims.values())

    def progress(self) -> dict[TopicPartition, PartitionProgress]:
        with self.lock:
            now_s = time.time()
            return {each: claim.progress(now_s) for each, claim in sorted(self.claims.items())}

    # Acks

    def acknowledge(self, message: AckMessage) -> None:
        """Take in an ack; that of an earlier delivery counts as well: the message was processed."""
        claim = message.claim
        with self.lock:
            # First, as a signal's handler may raise anywhere: else nobody would deliver it again.
            if claim.released:
                self._report_released(message)
            elif claim.tracker.acknowledge(message.at):
                if message.at in claim.given_up:
                    claim.given_up.remove(message.at)
                else:
                    claim.bytes -= message.size
            self._in_work.pop(message, None)
            if self._waiters:
                self._changed.notify_all()

    def acknowledge_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        claim = message.claim
        with self.lock:
            for each in [m for at, m in claim.tracker.pending.items() if at <= message.at]:
                self.acknowledge(each)
            # Of later deliveries of them, too.
            self._end_work(lambda message: not message.is_pending)
            self._changed.notify_all()

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None:
        if delay is not None:
            check_timeout(delay, "delay")

        def done(answer: Written | KafkaRequestError) -> None:
            if isinstance(answer, KafkaRequestError):
                answer.topic, answer.partition, answer.offset = message.place
                not_retried(answer)
            else:
                self.acknowledge(message)

        def not_retried(failure: OffsetManagerError) -> None:
            self.member.report(failure, NO_RETRY)
            self._redeliver(message, self.settings.nack_delay_s)

        try:
            with self.lock:
                if self._in_work.get(message) is None or not message.is_pending:
                    return
                self._in_work[message] = None
            if self.retries is not None:
                self.retries.send(message, delay, error, done)
            else:
                self._redeliver(message, self.settings.nack_delay_s if delay is None else delay)
        except BaseException as failure:
            text = f"{message!r} could not be retried: {visible(error_text(failure))}"
            not_retried(MessageError(text, *message.place))
            if not isinstance(failure, Exception):
                raise

    def _redeliver(self, message: AckMessage, delay_s: float) -> None:
        claim, due_s = message.claim, self._now_s() + delay_s
        with self.lock:
            self._in_work.pop(message, None)
            given_up = message.is_pending and message.tries >= self.settings.max_tries
            if given_up:
                claim.given_up.add(message.at)
                claim.bytes -= message.size
            elif message.is_pending and not claim.releasing:
                again = AckMessage(message.raw, claim, message.tries + 1, message.retried)
                heapq.heappush(self._delayed, (due_s, next(self._numbers), again))
            self._changed.notify_all()
        if given_up:
            text = f"{message!r} is not delivered again: no try has acknowledged it"
            self.member.report(MessageError(text, *message.place), "gave up a message")

    def abandon(self) -> None:
        """Wait no longer for messages in work, for which ``dwell_s`` is over, and report them.

        A late ack of them still counts.
        """
        with self.lock:
            undone = self._of(self.claims)
            self._in_work.clear()
        if undone:
            dwell_s = self.settings.dwell_s
            text = f"not done within {dwell_s:g} s and not committed: {listed(undone)}"
            error = MessageError(text, *undone[0].place)
            self.member.report(error, "messages are left undone")

    def wait_until_done(self, timeout_s: float) -> None:
        """Wait for messages in work."""
        with self.lock:
            self._wait(lambda: not self._of(self.claims), timeout_s)

    # Called in the thread that polls

    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        stage = None if self.retries is None else self.retries.topics.get(topic_partition.topic)
        with self.lock:
            claim, now_s = self._checked_claim(topic_partition), self._now_s()
            if claim.releasing or claim.left_off is not None:
                return
            # What waits, which may be for an hour, leaves room for what can be handled.
            most_bytes = self.settings.max_pending_bytes / 2 / len(self.claims)
            for message in messages:
                due_s = now_s
                if stage is None or self.retries is None:
                    read = AckMessage(message, claim)
                else:
                    retried = read_retried(message, stage, time.time(), self.retries.longest_s)
                    if retried.group not in {"", self.retries.group}:
                        self._report_foreign(topic_partition.topic, retried.group)
                        continue
                    due_s += retried.due_s - time.time()
                    read = AckMessage(message, claim, retried.tries + 1, retried)
                if not claim.waiting and due_s <= now_s and self._deliver(read):
                    continue
                if claim.waiting and claim.waiting_bytes + read.size > most_bytes:
                    claim.left_off = read.at
                    break
                claim.waiting.append((due_s, read))
                claim.waiting_bytes += read.size
            number, size = self._unfinished()
            if number:
                self._usual_bytes = size // number

    def take_left_off(self) -> dict[TopicPartition, int]:
        with self.lock:
            found: dict[TopicPartition, int] = {}
            for each, claim in self.claims.items():
                if claim.left_off is not None and not (claim.waiting or claim.releasing):
                    found[each], claim.left_off = claim.left_off, None
            return found

    def reach_end(self, topic_partition: TopicPartition, end: int) -> None:
        with self.lock:
            self._checked_claim(topic_partition).reach_end(end)

    def _checked_claim(self, topic_partition: TopicPartition) -> Claim:
        """Return a claim; acknowledged ranges that were committed for another log are dropped."""
        claim = self.claims[topic_partition]
        end = None if claim.checked else self.member.log_end(topic_partition)
        if end is not None and claim.drop_ranges_beyond(end):
            self._report_metadata(claim, f"it has acks beyond the log's end {end}")
        return claim

    def _report_metadata(self, claim: Claim, problem: str) -> None:
        offset, (topic, partition) = claim.tracker.offset, claim.topic_partition
        what = f"the metadata committed for {claim.topic_partition} is dropped"
        text = f"{problem}; messages acknowledged above offset {offset} are delivered again"
        info = error_info(OFFSET_CHANGED)
        error = KafkaRequestError(what, info, text, topic=topic, partition=partition, offset=offset)
        self.member.report(error, "acks are lost")

    def _report_foreign(self, topic: str, group: str) -> None:
        text = f"messages of group {visible(group, _NAME_CHARS)} in {topic} are left to that group"
        error = OffsetManagerError(f"{text}; give each group a RetryPolicy.name of its own")
        self.member.report(error, "passed over messages")

    def _report_released(self, message: AckMessage) -> None:
        if message.at in message.claim.tracker.pending:
            text = f"{message.claim.topic_partition} was released before messages of it were"
            text += " acknowledged; they are delivered again"
            self.member.report(MessageError(text, *message.place), LATE_ACK)

    def _report_full(self, claim: Claim) -> None:
        number, offset = len(claim.given_up), claim.tracker.offset
        text = f"no more of {claim.topic_partition} is delivered: {number} messages that were given"
        text += f" up, from offset {offset} on, leave no room for acks in the metadata of a commit"
        self.member.report(MessageError(text, *claim.topic_partition, offset), "a partition waits")

    def release(self, partitions: Collection[TopicPartition]) -> None:
        with self.lock:
            super().release(partitions)
            self._end_work(lambda message: message.claim.released)

    # Reading

    def next(self, *, forever: bool = False) -> AckMessage | None:
        """Take a ready message into work; None if there is none, ``forever`` only once it ends."""
        while True:
            try:
                message = self._ready.get(forever)
            except queue.Empty:
                return None
            if message is None or self.closing:
                return None
            # Before the look, and so without the lock, which takes as long as all the rest: a
            # release either is seen or sees this.
            self._in_work[message] = self._now_s() + self._ack_timeout_s
            claim = message.claim
            if message.at in claim.tracker.pending and not claim.releasing:
                return message
            self._in_work.pop(message, None)
            self.end_turn(message)

    def count(self) -> int:
        """Return how many messages are ready."""
        return self._ready.qsize()

    def take(self, most: int) -> list[AckMessage]:
        """Take up to ``most`` ready messages into work."""
        return list(islice(iter(self.next, None), most))

    def stop(self, waiting: int) -> None:
        """Hand out no more messages, also to so many threads that wait for one."""
        self.closing = True
        for _ in range(waiting):
            self._ready.put(None)

    def order_by(self, ordered_by: OrderedBy | None) -> None:
        """Let each message of a key or a partition wait for ``end_turn`` of the one before it."""
        with self.lock:
            self._ordered_by = ordered_by
            self._make_ready = self._ready.put if ordered_by is None else self._line_up
            for _ in range(self._ready.qsize()):
                if (message := self._ready.get()) is not None:
                    self._make_ready(message)

    def end_turn(self, message: AckMessage) -> None:
        """Go on with the messages of a key, after its retries unless there are retry topics."""
        key = self._order_key(message)
        if key is None:
            return
        with self.lock:
            line = self._lines[key]
            comes_again = len(line) > 1 and line[1].origin == message.origin
            if self.retries is None and _is_unfinished(message) and not comes_again:
                self._waiting_lines.add(key)
            else:
                self._advance(key)

    def fill(self, timeout_s: float) -> None:
        """Read messages, and make ready what is due or has room."""
        with self.lock:
            due_in_s = self.refresh() - self._now_s()
            overdue = self.overdue()
            # A due message that waits for room all the same waits for an ack.
            wait_s = min(timeout_s, SLICE_S, due_in_s if due_in_s > 0 else _BLOCKED_S)
            room = self._room()
            if room <= 0 and not overdue:
                self._wait(lambda: self._room() > 0, wait_s)
        for message in overdue:
            reason = f"neither ack nor nack within {self.settings.ack_timeout_s:g} s"
            self.reject(message, None, reason)
        if room > 0:
            self.member.wait_for(min(PREFETCH, room), wait_s)

    def refresh(self) -> float:
        """Make ready what has room and is due; return when others will be due, infinity if none."""
        with self.lock:
            now_s, due_s = self._now_s(), inf
            for claim in self.claims.values():
                waiting = claim.waiting
                while waiting and waiting[0][0] <= now_s and self._deliver(waiting[0][1]):
                    claim.waiting_bytes -= waiting.popleft()[1].size
                    claim.pass_over_end()
                # What is due and still waits has no room, and no ack may come that makes some.
                awaits_none = len(claim.tracker.pending) == len(claim.given_up)
                if waiting and waiting[0][0] <= now_s and awaits_none:
                    self._report_full(claim)
                if waiting:
                    due_s = min(due_s, waiting[0][0])
            while self._delayed and self._delayed[0][0] <= now_s:
                self._make_ready(heapq.heappop(self._delayed)[2])
            if self._delayed:
                due_s = min(due_s, self._delayed[0][0])
            for key in list(self._waiting_lines):
                if not _is_unfinished(self._lines[key][0]):
                    self._advance(key)
            return due_s

    def overdue(self) -> list[AckMessage]:
        """Return the messages in work whose ack has timed out."""
        with self.lock:
            now_s, found = self._now_s(), []
            for message, timeout_s in self._in_work.copy().items():
                if timeout_s is not None and timeout_s > now_s:
                    break
                if timeout_s is not None:
                    found.append(message)
            return found

    # With the lock

    def _to_come(self) -> int:
        """Return the number of pending messages without those that are given up."""
        return self.pending - sum(len(claim.given_up) for claim in self.claims.values())

    def _unfinished(self) -> tuple[int, int]:
        """Return number and size of the messages that were read and take up room."""
        claims = self.claims.values()
        waiting = sum(len(claim.waiting) for claim in claims)
        return self._to_come() + waiting, sum(e.bytes + e.waiting_bytes for e in claims)

    def _end_work(self, is_over: Callable[[AckMessage], bool]) -> None:
        for message in filter(is_over, self._in_work.copy()):
            self._in_work.pop(message, None)

    def _has_in_work(self, partitions: Collection[TopicPartition]) -> bool:
        with self.lock:
            return bool(self._of(partitions))

    def _of(self, partitions: Collection[TopicPartition]) -> list[AckMessage]:
        """Return the messages of ``partitions`` that the application has in work."""
        return [
            message
            for message in self._in_work.copy()
            if message.claim.topic_partition in partitions and message.is_pending
        ]

    def _open(self, topic_partition: TopicPartition, start: Start) -> Claim:
        committed, offset, _ = start
        bare = self.settings.metadata == "kafka-pixy"
        try:
            return Claim(self, topic_partition, committed, start=offset, bare=bare)
        except ValueError as problem:
            at = 0 if committed is None else committed.offset
            claim = Claim(self, topic_partition, OffsetAndMetadata(at), bare=bare)
            self._report_metadata(claim, str(problem))
            return claim

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for claim in (self.claims[each] for each in partitions if each in self.claims):
            claim.releasing = True
            claim.waiting_bytes = 0
            claim.waiting.clear()
        self._delayed = [each for each in self._delayed if not each[2].claim.releasing]
        heapq.heapify(self._delayed)

    def _deliver(self, message: AckMessage) -> bool:
        """Make a message ready, unless it is acknowledged; False where it has no room."""
        claim = message.claim
        if not claim.begun:
            claim.begin(message.at)
        tracker = claim.tracker
        if not (tracker.room or tracker.has_room):
            return False
        if tracker.deliver(message.at, message):
            claim.bytes += message.size
            self._make_ready(message)
        return True

    def _line_up(self, message: AckMessage) -> None:
        """Hand a message out, after those of its key that came before it."""
        key = self._order_key(message)
        if key is not None:
            line = self._lines.setdefault(key, deque())
            if not line:
                line.append(message)
            elif line[0].origin != message.origin:
                line.append(message)
                return
            elif key in self._waiting_lines:
                self._waiting_lines.discard(key)
                line[0] = message
            else:
                line.insert(1, message)  # its former delivery is in work still
                return
        self._ready.put(message)

    def _advance(self, key: Hashable) -> None:
        """Hand out the next message of a key."""
        self._waiting_lines.discard(key)
        line = self._lines[key]
        line.popleft()
        if line:
            self._ready.put(line[0])
        else:
            del self._lines[key]

    def _order_key(self, message: AckMessage) -> Hashable:
        """Return the key in whose order a message is handled; None for no order."""
        if self._ordered_by == "partition":
            return message.origin[:2]
        key = None if self._ordered_by is None else message.key()
        return None if key is None else (message.origin.topic, key)

    def _room(self) -> int:
        """Return how many messages of the usual size may be read."""
        most_bytes = self.settings.max_pending_bytes
        waiting_bytes = sum(claim.waiting_bytes for claim in self.claims.values())
        # One that waits in each partition may be larger than all of the room.
        left = most_bytes - self._unfinished()[1] + max(0, waiting_bytes - most_bytes // 2)
        # The size of the first message of all is not known.
        by_size = ceil(left / self._usual_bytes) if self._usual_bytes else 1
        return min(self.settings.max_pending - self._to_come(), by_size)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        self._waiters += 1
        try:
            self._changed.wait_for(condition, timeout_s)
        finally:
            self._waiters -= 1


def _is_unfinished(message: AckMessage) -> bool:
    """Return True if a message is to be delivered again."""
    return message.is_pending and not message.given_up


def acknowledge_up_to(message: AckMessage) -> None:
    """Acknowledge ``message`` and all before it in its partition.  Raises InvalidValueError."""
    given: object = message
    if not isinstance(given, AckMessage):
        hint = "give a message as it was handed out"
        raise InvalidValueError("message", given, "is not a message with an ack", hint)
    given.claim.receiver.acknowledge_up_to(given)
