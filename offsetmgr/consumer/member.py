"""A member of a consumer group: polling, rebalances and commits.

The application polls in its own thread.  While it is busy with what it got, a thread of the member
pauses the partitions and polls in its place, so that a slow application neither leaves the group
nor delays a rebalance.

All calls of confluent-kafka's consumer are in the turn of one thread: during a rebalance a second
thread's call waits for the end of the first one's poll, so that the two could wait for each other.

Offsets belong to a log.  Before a commit the ids of the topics are looked up: the partitions of a
recreated topic begin again with their new log, and offsets of the former one are not committed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.backoff import Backoff
from offsetmgr.codes import GENERATION_FENCED, TOPIC_RECREATED, error_info
from offsetmgr.consumer.client import END, FATAL, OUT_OF_RANGE, REFUSING, SLICE_S
from offsetmgr.consumer.offsets import Claims, Commits, MemberStore, as_kafka, claim, is_rebalancing
from offsetmgr.consumer.settings import (
    UNREAD,
    ConsumerStats,
    Kind,
    Notification,
    by_topic,
    kafka_settings,
    log,
)
from offsetmgr.consumer.topics import Discovery, LogWatch, report_missing, restart_at
from offsetmgr.consumer.work import Start, runs_of
from offsetmgr.deadlines import LONGEST_WAIT_S, POLL_S, Deadline, Latch
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import asking_config
from offsetmgr.kafka.errors import cause_of, known, request_error
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.stores.base import as_store_error, causes_of, offer_topic_ids, passes_later
from offsetmgr.text import listed
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata, TopicPartition
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from offsetmgr.consumer.settings import ConsumerSettings
    from offsetmgr.consumer.topics import Subscription
    from offsetmgr.consumer.work import Work
    from offsetmgr.stores import OffsetStore

_MOST_AT_ONCE: Final = 1_000_000  # messages that confluent-kafka takes
_REQUEST_S: Final = 10.0  # for an answer of Kafka in the background
_WATCH_S: Final = 5.0  # between looks at the ids of topics while nothing is committed
_ELECTION_TRIES: Final = 3  # in which the ends of a new topic's logs may not be known
_RETRY_S: Final = 1.0  # before a question to Kafka is asked again
_MOVING_S: Final = 1.0  # for the group's next generation, while a rebalance waits for us
_BUSY_S: Final = 0.02  # between looks at what is due while messages come
_SERVE_S: Final = 0.01  # longest poll while a commit waits for its answer

NO_RETRY: Final = "could not retry a message"
LATE_ACK: Final = "an ack came too late"
_NO_COMMIT: Final = "could not commit"
# A refused offset rises with each try; all messages of a topic, or of a claim, fare alike.
_NOT_BY_OFFSET: Final = frozenset({_NO_COMMIT, NO_RETRY, LATE_ACK})
_REBALANCE_IN_PROGRESS: Final = 27
_FENCED: Final = error_info(GENERATION_FENCED).name

_Offsets: TypeAlias = "Mapping[TopicPartition, OffsetAndMetadata]"
_Done: TypeAlias = "dict[TopicPartition, OffsetAndMetadata]"
_Places: TypeAlias = "Iterable[TopicPartition]"


class Member:
    """Reads topics as a member of a group, or partitions alone, and commits what is processed."""

    _paused: frozenset[TopicPartition] = frozenset()

    def __init__(
        self,
        kafka: Mapping[str, Any],
        group: str,
        work: Work[Any],
        settings: ConsumerSettings,
        subscription: Subscription,
        *,
        partitions: Collection[TopicPartition] = (),
        store: OffsetStore | None = None,
        starts: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """``starts`` are offsets to begin at, librdkafka's negative ones among them.

        Raises as BaseConsumer.
        """
        self.group = group
        self.work = work
        work.member = self
        self.settings = settings
        self.ended = Latch()
        """Set once no more messages come."""
        self.stats = ConsumerStats()
        self.errors: deque[OffsetManagerError] = deque(maxlen=UNREAD)
        self.notifications: deque[Notification] = deque(maxlen=UNREAD)
        self.assigned: frozenset[TopicPartition] = frozenset()
        """The claimed partitions."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._partitions = partitions
        self._latest = settings.missing == "latest"
        self._cooperative = settings.strategy == "cooperative-sticky" and not partitions
        self._begin_at = starts
        self._fatal: OffsetManagerError | None = None
        self._repeats = RepeatLimiter()
        # Locks of C are left wherever a handler raises.  Next polls wait for those in `_next`.
        self._next, self._turn = threading.RLock(), threading.RLock()
        self._closed = self._here = False  # the latter while the application waits for messages
        self._polled_at_s = time.monotonic()
        self._commit_at_s = self._polled_at_s + settings.commit_interval_s
        self._moved: set[TopicPartition] = set()  # by `move`, to any offset
        self.reports_connections = True
        """False where ``error_cb`` is one of ours, which reports them."""
        self._is_cut_off = False  # no broker has answered since an error of all connections
        self._deferred: Callable[[], None] | None = None  # a close that waits for the end of a turn
        self._released_in_poll: set[TopicPartition] = set()
        self._settle_at_s = self._watch_at_s = self._look_at_s = self._due_at_s = self._polled_at_s
        self._settling = Backoff(_RETRY_S / 4, _RETRY_S)
        self._leftovers: Mapping[TopicPartition, OffsetAndMetadata] = {}
        """Offsets of revoked partitions that the group did not take between two generations."""
        config = kafka_settings(kafka, group, settings)
        self._error_cb: Callable[[KafkaError], object] = config.get("error_cb") or (lambda _: None)
        self._commit_cb: Callable[..., object] = config.get("on_commit") or (lambda *_: None)
        ours = {"error_cb": self._connection_failed, "on_commit": self._commit_answered}
        self._open = partial(open_consumer, config, ours)
        self._consumer = self._open()
        self._reader = ClusterReader(asking_config(kafka), timeout_s=_REQUEST_S)
        self._store = store or MemberStore(lambda: self._consumer, self._reader)
        keeps = partitions and store is None  # as Kafka does for members
        recommit_s = settings.recommit_interval_s if keeps else inf
        self._commits = Commits(self._store, group, self._take_commit, self.report, recommit_s)
        self._end_offer = offer_topic_ids(
            self._store, self._reader.existing_ids, self._reader.log_ranges
        )
        self._claims = Claims(self._store, group, self.report)
        self._logs = LogWatch(self._reader, group, self.report, alone=bool(partitions))
        self._discovery = Discovery(
            subscription, self._reader, self._store, group, self.report, kafka, latest=self._latest
        )
        self._thread = threading.Thread(target=self._keep, name=f"member-{group}", daemon=True)
        self._join()

    # For the consumer

    @property
    def topics(self) -> list[str]:
        """Topics that are subscribed to, but for retry topics."""
        retries = self._discovery.subscription.retries
        return [each for each in self._discovery.topics if each not in retries]

    def wait_for(self, most: int, timeout_s: float, *, patient: bool = False) -> None:
        """Receive up to ``most`` messages; wait ``timeout_s`` for the first.

        Where ``patient``, up to 0.1 s longer for the others.  Returns at once where the consumer is
        closed.  Raises the error that has ended it.
        """
        deadline = time.monotonic() + timeout_s
        self._here = True
        try:
            while True:
                with self._next:
                    pass  # others wait for their turn
                with self._turn:
                    if self.ended.is_set():
                        self.raise_failure()
                        return
                    if again := self.work.take_left_off():
                        self._read_from(again)
                    self._pause_and_resume(away=False)
                    slice_s = min(SLICE_S, max(0.0, deadline - time.monotonic()))
                    more_s = slice_s if patient else 0.0
                    received = self._poll(most, slice_s, more_s)
                    if not received or time.monotonic() >= self._due_at_s:
                        self._do_what_is_due()
                if received or time.monotonic() >= deadline:
                    return
        finally:
            self._polled_at_s = time.monotonic()
            self._here = False
            self._close_deferred()

    def raise_failure(self) -> None:
        """Raise the error that has ended the consumer, unless it was closed since."""
        if self._fatal is not None and not self._closed:
            raise self._fatal

    def log_end(self, topic_partition: TopicPartition) -> int | None:
        """Return the end of a log at its last fetch; None before.  For ``Work`` alone."""
        end = self._consumer.get_watermark_offsets(KafkaPartition(*topic_partition), cached=True)[1]
        return None if end == OFFSET_INVALID else int(end)

    def commit(self) -> None:
        """Commit what is processed by now.  Raises OffsetManagerError."""
        with self._next, self._turn:
            error = self._commit(LONGEST_WAIT_S)
            self._look_at_ends()
        self._close_deferred()
        if error is not None:
            raise error

    def move(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from ``offsets``, and drop what was received of their partitions.

        Only for partitions without membership.
        """
        with self._next, self._turn:
            if not self._closed:
                self.work.begin_release(offsets.keys(), 0.0)
                for each in offsets:
                    self._logs.doubts.pop(each, None)
                self._moved.update(offsets)
                self._read_from(offsets)

    def report(self, error: OffsetManagerError, what: str) -> None:
        """Log an error and keep it for the application; each cause once in 30 s."""
        for each in causes_of(error):
            offset = None if what in _NOT_BY_OFFSET else each.offset
            cause = what, each.topic, each.partition, offset, cause_of(str(each))
            suppressed = self._repeats.suppressed(cause, time.monotonic())
            if suppressed is not None:
                self.errors.append(each)
                self.stats.errors += 1
                log.warning("group %s: %s: %s (%d more)", self.group, what, each, suppressed)

    def end(self, error: OffsetManagerError) -> None:
        """End the consumer, whose next read raises ``error``."""
        self.report(error, "the consumer ends")
        self._fatal = self._fatal or error
        self.ended.set()

    def defers(self, close: Callable[[], None]) -> bool:
        """Return True where this thread is in the midst of a call, after which ``close`` is called.

        A signal's handler or a callback of librdkafka's is called there: other threads would wait
        for the end of that call, and the close for them.
        """
        for lock in (self._turn, self.work.lock):
            with suppress(RuntimeError):  # it is another thread's, or nobody's
                threading.Condition(lock).notify()
                self._deferred = close
                self.ended.set()
                return True
        return False

    def _close_deferred(self) -> None:
        close, self._deferred = self._deferred, None
        if close is not None:
            close()

    def close(self) -> None:
        """Commit what is processed and leave the group; twice is harmless."""
        self.ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._next, self._turn, ExitStack() as rest:  # whatever a signal's handler raises here
            if self._closed:
                return
            rest.callback(self._reader.close)
            rest.callback(self._end_offer)
            rest.callback(self._claims.close, self.settings.dwell_s)
            rest.callback(self._leave)
            self._closed = True
            self._last_commit(max(_MOVING_S, self.settings.dwell_s), polls=True)
            if self._partitions:
                self._let_go(self._partitions)

    def _leave(self) -> None:
        """Leave the group; librdkafka waits for a coordinator that is away."""
        question = Question(self._consumer.close)
        deadline = Deadline(max(_MOVING_S, self.settings.dwell_s))
        while not question.wait(POLL_S):
            if deadline.over and self._is_cut_off:
                log.warning("group %s: left without an answer of its coordinator", self.group)
                break

    # Polling

    def _poll(self, most: int, timeout_s: float, more_s: float) -> bool:
        """Wait for one message, then ``more_s`` for others; True if any were received."""
        try:
            return self._receive(most, timeout_s, more_s)
        except BaseException as error:
            # What was just read is lost, so that a later mark would pass it over.
            self.ended.set()
            self._commits.abandon()  # its answer may be lost, too
            if isinstance(error, SystemError):  # of Ctrl-C in a callback, before Python 3.12
                raise KeyboardInterrupt from error
            raise

    def _receive(self, most: int, timeout_s: float, more_s: float) -> bool:
        first = self._consumer.poll(timeout_s)
        self._released_in_poll.clear()
        if first is None:
            return False
        found = [first]
        if most > 1:
            try:
                found += self._consumer.consume(min(most, _MOST_AT_ONCE) - 1, more_s)
            except KafkaException as error:
                self.report(request_error("poll", error), "could not poll")
        if self.ended.is_set():
            return False
        events = [each for each in found if each.error()] if any(map(Message.error, found)) else []
        messages = [each for each in found if not each.error()] if events else found
        received = 0
        # A poll also returns what was read of partitions before a rebalance in it released them.
        left_out = self._released_in_poll.union(self._logs.uncompared)
        for topic_partition, run in runs_of(messages):
            if topic_partition in self.assigned and topic_partition not in left_out:
                received += len(run)
                self.stats.bytes += sum(map(len, run))
                self._logs.receive(topic_partition, run[-1])
                self.work.receive(topic_partition, run)
        self._is_cut_off = self._is_cut_off and not received
        self.stats.messages += received
        for event in events:
            self._take_event(event)
        return received > 0

    def _take_event(self, event: Message) -> None:
        error, topic, offset = event.error(), event.topic() or "", event.offset()
        topic_partition = TopicPartition(topic, event.partition() or 0)
        if error is None or topic_partition in self._released_in_poll:
            return
        if error.code() == END:
            reading = self.assigned.difference(self._logs.doubts, self._logs.uncompared)
            if topic_partition in reading:
                self._logs.unfetched.pop(topic_partition, None)
                self.work.reach_end(topic_partition, offset or 0)
        elif error.code() in OUT_OF_RANGE:
            self._doubt(topic_partition, offset)
        else:
            partition = event.partition() if topic else None
            place: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
            failure = request_error(f"group {self.group}", error, right="READ", **place)
            if error.fatal() or error.code() == FATAL:
                self.end(failure)
            else:
                self.report(failure, "Kafka reports")

    def _doubt(self, topic_partition: TopicPartition, offset: int | None) -> None:
        """Take in that ``offset`` is out of range; None if the log was cut, or has no start."""
        if topic_partition not in self.assigned:
            return
        known_at = self._logs.places(self._consumer, [topic_partition])[0].offset
        if offset is not None and offset != known_at >= 0:  # of a former log, or of a bad batch
            self._read_from({topic_partition: known_at})
            return
        if offset is None:
            offset = known_at if known_at < 0 else MAX_OFFSET
            self._settle_at_s = time.monotonic() + _RETRY_S
        self._logs.doubts.setdefault(topic_partition, offset)
        self._logs.expire()

    def _connection_failed(self, error: KafkaError) -> None:
        """Take in an error that is not about a message, in the thread that polls."""
        self._error_cb(error)
        self._is_cut_off = self._is_cut_off or error.code() in REFUSING
        if error.fatal():
            self.end(request_error(f"group {self.group}", error))
        elif error.code() in REFUSING and self.reports_connections:
            self.report(request_error(f"group {self.group}", error), "Kafka cannot be reached")

    def _keep(self) -> None:
        """Commit in intervals, and poll while the application is away."""
        while not self.ended.wait(SLICE_S / 2):
            if self._here:
                continue
            try:
                with self._next, self._turn:
                    self._do_what_is_due()
                    away_s = time.monotonic() - self._polled_at_s
                    if away_s >= self.settings.away_s and not self._here:
                        self._pause_and_resume(away=True)
                        self._poll(1, 0.0, 0.0)  # a message may be on its way already
            except BaseException as error:  # noqa: BLE001 -- others depend on this thread
                log.exception("group %s: the member's own thread failed", self.group)
                if self.ended.is_set():
                    self.end(as_store_error(f"polling for group {self.group}", error))
        self._close_deferred()

    def _pause_and_resume(self, *, away: bool) -> None:
        wanted = self.assigned if away else self.assigned.intersection(self.work.paused)
        if wanted != self._paused:
            self._consumer.pause([KafkaPartition(*each) for each in wanted - self._paused])
            self._consumer.resume([KafkaPartition(*each) for each in self._paused - wanted])
            self._paused = wanted

    def _do_what_is_due(self) -> None:
        if (error := self._commits.end()) is not None:
            self._report_commit(error)
        if claimed := self._claims.take():
            self._take_over(claimed)
        self._logs.compare(self._consumer)
        if not self._partitions:
            if self._discovery.changed():
                self._subscribe()
            elif self._discovery.unassigned.are_found(self._discovery.topics):
                self._consumer.unsubscribe()
                self._subscribe()
        now_s = time.monotonic()
        if self._logs.doubts and now_s >= self._settle_at_s:
            self._settle_doubts()
        if now_s >= self._watch_at_s and self._logs.look(self.assigned):
            self._watch_at_s = now_s + _WATCH_S
        if now_s >= self._look_at_s:
            self._look_at_ends()
            self._renew_client()
        if now_s >= self._commit_at_s and self._commit_in_turn():
            self._commit_at_s = time.monotonic() + self.settings.commit_interval_s
        self._due_at_s = now_s + _BUSY_S

    def _report_commit(self, error: OffsetManagerError) -> None:
        fenced = [each for each in causes_of(error) if each.code == _FENCED]
        if fenced and self._partitions:  # no rebalance takes away what another consumer has
            self.end(fenced[0])
        elif not is_rebalancing(error):
            self.report(error, _NO_COMMIT)

    def _renew_client(self) -> None:
        """Go on with another client where this one cannot read a recreated topic."""
        reading = self.assigned - self._paused
        unread = self._logs.unread(reading, self.high_watermarks)
        if not unread or self._commits.under_way or self._to_commit().keys() & set(unread):
            return  # the new log's start is committed first
        consumer = self._open()
        text, info = "its former leader was asked; it joins again", error_info(TOPIC_RECREATED)
        what, topic = f"reading of {listed(unread)}", unread[0].topic
        self.report(KafkaRequestError(what, info, text, topic=topic), "partitions were not read")
        here = self._logs.places(self._consumer, self.assigned)
        if not self._partitions:
            self._on_revoke(sorted(self.assigned))
        self._leave()
        self._consumer = consumer
        self._logs.recreated.clear()
        if self._partitions:  # nobody else has had them meanwhile
            self._paused = frozenset()
            self._assign(here)
        else:
            self._subscribe()

    def _look_at_ends(self) -> None:
        found = {}
        for each in sorted(self.assigned):
            if each not in self._paused:
                # A former claim may have left it paused, and librdkafka may lose a resume that
                # meets a rebalance.  Else this does nothing.
                self._consumer.resume([KafkaPartition(*each)])
            if (end := self.log_end(each)) is not None:
                found[each] = end
        self.high_watermarks = found
        self._look_at_s = time.monotonic() + SLICE_S

    # Logs

    def _settle_doubts(self) -> None:
        """Go on in partitions whose offset is not in their log."""
        if not self._logs.look(self.assigned):
            return
        doubts, failures = self._logs.doubts, self._settling.failures
        for each, offset in list(doubts.items()):
            if each.topic in self._logs.missing or each not in self.assigned:
                continue
            try:
                where, wait_s = KafkaPartition(*each), _RETRY_S / 2 * min(failures + 1, 3)
                low, high = self._consumer.get_watermark_offsets(where, timeout=wait_s)
            except KafkaException as error:
                self._settle_at_s = time.monotonic() + self._settling.failed()
                if self._settling.failures > _ELECTION_TRIES:
                    failure = request_error(f"ends of {each}", error, topic=each.topic)
                    self.report(failure, "could not go on; tries again")
                doubts[each] = doubts.pop(each)  # the others come first next time
                return
            self._settling.succeeded()
            self._settle(each, offset, low, high)

    def _settle(self, each: TopicPartition, offset: int | None, low: int, high: int) -> None:
        """Go on in a log from ``low`` up to before ``high``, which does not have ``offset``."""
        moved = each in self._moved and offset == self._logs.starts[each].offset
        if offset is not None and low <= offset <= high and not moved:
            offset = MAX_OFFSET  # the log has grown since, or never had so high a leader epoch
        elif offset is not None and offset > high and moved:
            self._settle_at_s = time.monotonic() + _RETRY_S  # it waits for the log to grow
            return
        del self._logs.doubts[each]
        latest = self._latest and each.topic not in self._discovery.subscription.retries
        start, reason = restart_at(each, offset, low, high, latest=latest)
        if reason is not None:
            self.report(reason, "offsets are not of the log")
        if offset is None:
            self._discovery.firsts.pop(each, None)
        if offset is None or offset > high:  # what is known of the log does not count any more
            self.work.restart(each, start)
            self._logs.received.pop(each, None)
            self._commit_at_s = min(self._commit_at_s, time.monotonic())
        else:
            self.stats.skipped += start - offset
        self._read_from({each: start})

    def _read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        moved = [KafkaPartition(*each, offset) for each, offset in offsets.items()]
        if self._cooperative or self._partitions:
            self._consumer.incremental_unassign(moved)
        self._assign(moved)

    def _assign(self, partitions: list[KafkaPartition]) -> None:
        """Begin to read ``partitions`` where they say; all others go on where they are."""
        begun = {TopicPartition(each.topic, each.partition): each for each in partitions}
        self._logs.starts.update(begun)
        for each in begun:
            self._logs.unfetched[each] = self.log_end(each), time.monotonic()
        if self._cooperative or self._partitions:
            self._consumer.incremental_assign(partitions)
        else:  # only the whole assignment can be changed
            others = self._logs.places(self._consumer, self.assigned - begun.keys())
            partitions = [*others, *partitions]
            self._consumer.assign(partitions)
        # A pause or resume would undo the start before librdkafka's thread, which does in turn what
        # it is asked for, has stopped former fetches, learnt of their end, and started new ones.
        for _ in range(3):
            self._consumer.assignment()
        self._logs.compare(self._consumer, partitions)

    # Commits

    def _commit_answered(self, error: KafkaError | None, answers: list[KafkaPartition]) -> None:
        self._is_cut_off = self._is_cut_off and error is not None
        if isinstance(self._store, MemberStore):
            self._store.answered(error, answers)
        self._commit_cb(error, answers)

    def _take_commit(self, offsets: _Offsets) -> None:
        self._logs.positions.update((each, at.offset) for each, at in offsets.items())
        self.work.committed(offsets)

    def _commit(
        self, timeout_s: float, *, polls: bool = False, leftovers: _Done | None = None
    ) -> OffsetManagerError | None:
        """Commit ``leftovers``, or what is processed, after a commit under way; return an error.

        With ``polls`` rebalances are served meanwhile.  A store has ``timeout_s``.
        """
        deadline = Deadline(max(0.0, timeout_s))
        if polls or not isinstance(self._store, MemberStore):
            self._await_commit(deadline, polls=polls)  # a former one, tried again if refused
            if self._commits.under_way:
                return self._commits.unanswered()
        missing = self._begin_commit(leftovers, at_once=not polls)
        return self._await_commit(deadline, polls=polls) or missing

    def _begin_commit(
        self, leftovers: _Done | None = None, *, at_once: bool = False
    ) -> KafkaRequestError | None:
        """Begin to commit what is processed; return an error of those whose topic is missing."""
        offsets = self._to_commit() if leftovers is None else leftovers
        missing = self._logs.leave_out_former(offsets, self.assigned.union(offsets))
        self._commits.begin(offsets, at_once=at_once)
        return missing

    def _to_commit(self) -> _Done:
        """Return what is processed, and what was committed too long ago."""
        return {**self._commits.expiring(), **self.work.to_commit()}

    def _await_commit(self, deadline: Deadline, *, polls: bool) -> OffsetManagerError | None:
        """Wait until the commit under way is answered; return its error."""
        error = None if polls else self._commits.end(deadline.left_s)
        while polls and self._commits.under_way and not (deadline.over and self._may_hang):
            self._serve(_SERVE_S)
            error = self._commits.end()
        return self._commits.unanswered() or error

    @property
    def _may_hang(self) -> bool:
        """True unless each commit is answered.

        A coordinator that can be reached answers once this member has joined again, which takes up
        to the session's time-out of another one.  That time does not count.
        """
        return self._is_cut_off or not isinstance(self._store, MemberStore)

    def _commit_in_turn(self) -> bool:
        """Begin to commit what is processed; False if that has to wait."""
        if self._commits.under_way:
            return False
        if not self._to_commit():
            return True
        if not self._logs.look(self.assigned):
            return False
        if (missing := self._begin_commit()) is not None:
            self.report(missing, _NO_COMMIT)
        return True

    def _last_commit(self, moving_s: float, *, polls: bool = False) -> None:
        """Commit what is processed; try again for ``dwell_s`` in all where that can help.

        While the group is between two generations, it is tried again only for ``moving_s``.
        """
        dwell_s, began_s = self.settings.dwell_s, time.monotonic()
        self._logs.expire()  # no later look repairs this commit
        while True:
            begun_s = time.monotonic()
            error = self._commit(max(_MOVING_S, dwell_s) - (begun_s - began_s), polls=polls)
            if not self._may_hang:
                began_s += time.monotonic() - begun_s
            if error is None and not (self._closed and self._leftovers):
                return
            moving = error is None or is_rebalancing(error)
            passes = error is None or passes_later(error)
            limit_s = moving_s if moving else dwell_s if passes else 0.0
            if time.monotonic() - began_s >= limit_s:
                break
            if polls:
                self._serve(SLICE_S)
            else:
                time.sleep(SLICE_S)
        if moving and not self._closed:
            self._leftovers = dict(self.work.to_commit())
        elif error is not None:
            self.report(error, _NO_COMMIT)

    def _serve(self, timeout_s: float) -> None:
        """Poll for rebalances alone: without it, a member gets no valid generation again."""
        with suppress(KafkaException):
            self._consumer.poll(timeout_s)

    # Rebalances, in the thread that polls

    def _join(self) -> None:
        """Join the group, or claim the partitions.

        Raises OffsetManagerError where partitions cannot be claimed.  A member tries it again until
        it succeeds.
        """
        committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
        try:
            if self._partitions:
                committed = claim(self._store, self.group, self._partitions)
                new = [e for e in self._partitions if not (committed[e] or e in self._begin_at)]
                if new and self._latest:
                    for each, found in self._reader.log_ranges(new).items():
                        self._discovery.firsts[each] = known(found).high_watermark
                self._take_over(committed)
                Question(partial(report_missing, self._reader, self._partitions, self.report))
            elif self._discovery.changed():
                self._subscribe()
            self._thread.start()
        except BaseException:  # of a signal, too
            self._claims.release(committed, _REQUEST_S)
            self._end_offer()
            self._consumer.close()
            self._reader.close()
            raise

    def _subscribe(self) -> None:
        if not self._discovery.topics:  # those that matched are deleted
            self._consumer.unsubscribe()
            return
        self._consumer.subscribe(
            self._discovery.topics,
            on_assign=self._guarded(self._on_assign),
            on_revoke=self._guarded(self._on_revoke),
            on_lost=self._guarded(partial(self._let_go, kind="error")),
        )

    def _guarded(
        self, callback: Callable[[list[TopicPartition]], None]
    ) -> Callable[[Consumer, list[KafkaPartition]], None]:
        """Report an exception, which would lose the messages read by the same ``consume``.

        The consumer ends then: it may have partitions without a claim.
        """

        def run(_: Consumer, partitions: list[KafkaPartition]) -> None:
            try:
                callback([TopicPartition(each.topic, each.partition) for each in partitions])
            except Exception as error:  # noqa: BLE001 -- of a user's store, too
                log.exception("group %s: a rebalance failed", self.group)
                self.end(as_store_error(f"rebalance of group {self.group}", error))

        return run

    def _on_assign(self, partitions: list[TopicPartition]) -> None:
        self._discovery.unassigned.begin()
        self._commit_leftovers(partitions)
        if not self.ended.is_set():
            self._claims.add(partitions)
        # Else confluent-kafka itself would begin to read them, from anywhere.
        self._take_over(self._claims.take(SLICE_S))

    def _commit_leftovers(self, partitions: Collection[TopicPartition]) -> None:
        """Commit what was processed before the group moved on without our commit.

        Only of partitions that come back at once: nobody else had them meanwhile.
        """
        offsets = {each: self._leftovers[each] for each in partitions if each in self._leftovers}
        lost = self._leftovers.keys() - offsets.keys()
        self._leftovers = {}
        if lost:
            self._report_lost(lost)
        if offsets:
            self._logs.expire()
            if (error := self._commit(_MOVING_S, leftovers=offsets)) is not None:
                self.report(error, _NO_COMMIT)

    def _report_lost(self, partitions: Collection[TopicPartition]) -> None:
        what, info = f"commit for group {self.group}", error_info(_REBALANCE_IN_PROGRESS)
        text = f"the group rebalanced meanwhile; {listed(sorted(partitions))} are read again"
        self.report(KafkaRequestError(what, info, text), _NO_COMMIT)

    def _take_over(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Begin to read at once: librdkafka does not have to look up where."""
        firsts = self._discovery.firsts
        partitions, starts = [], {}
        for each, position in committed.items():
            first = self._begin_at.get(each, firsts.get(each, OFFSET_BEGINNING))
            start = position or OffsetAndMetadata(first)
            is_first = position is None and each in firsts
            topic_id = self._discovery.first_ids.get(each.topic, "") if is_first else ""
            resumed = self._logs.begin(each, start.offset, topic_id)
            starts[each] = Start(position, firsts.get(each), resumed)
            partitions.append(as_kafka(each, start))
        self._commits.keep(committed)
        if committed:
            self.work.claim(starts)
            self._notify("ok", claimed=committed)
            self._logs.expire()
            self._watch_at_s = self._commit_at_s = time.monotonic()
        self.assigned = self.assigned.union(committed)  # `|=` would make a set that can change
        self._assign(partitions)
        # What this poll returns of a partition that it has released before is of the former claim.
        again = committed.keys() & self._released_in_poll
        self._consumer.pause([KafkaPartition(*each) for each in again])
        self._paused |= again

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        releasing = self.assigned.intersection(partitions)
        with ExitStack() as rest:  # whatever a signal's handler raises here
            rest.callback(self._let_go, partitions)
            rest.callback(self._last_commit, min(_MOVING_S, self.settings.dwell_s))
            if not self.ended.is_set():
                self._notify("start", released=releasing)
                self.work.begin_release(releasing, self.settings.dwell_s)

    def _let_go(self, partitions: Collection[TopicPartition], kind: Kind = "ok") -> None:
        timeout_s = 0.0 if kind == "error" else self.settings.dwell_s
        self._claims.drop(partitions, timeout_s)
        gone = self.assigned.intersection(partitions)
        lost = gone & self.work.to_commit().keys() if kind == "error" else ()
        if lost:
            self._report_lost(lost)
        self.assigned -= gone
        self._paused -= gone
        self._released_in_poll.update(gone)
        self._logs.leave(partitions)
        self._commits.forget(partitions)
        if gone:
            self.work.release(gone)
            self._notify(kind, released=gone)
        if self._cooperative:
            self._consumer.incremental_unassign([KafkaPartition(*each) for each in gone])
        else:
            self._consumer.unassign()
        self._claims.release(gone, timeout_s)

    def _notify(self, kind: Kind, *, claimed: _Places = (), released: _Places = ()) -> None:
        self.stats.rebalances += kind != "start"
        steps = map(by_topic, (claimed, released, self.assigned.union(claimed)))
        self.notifications.append(Notification(kind, *steps))
