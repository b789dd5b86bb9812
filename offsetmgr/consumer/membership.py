"""One member of a consumer group: polling, rebalances and commits.

The application polls in its own thread.  While it is busy with what it got, a thread of the
membership pauses the partitions and polls in its place, so that a slow application neither leaves
the group nor delays a rebalance.

All calls of confluent-kafka's consumer are in the turn of one thread: during a rebalance a second
thread's call waits for the end of the first one's poll, so that the two could wait for each other.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.client.offsets import Offsets
from offsetmgr.config import is_number
from offsetmgr.consumer.keepers import ManagedOffsets, MemberOffsets, request_error
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetManagerError
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.types import TopicPartition, check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.consumer.keepers import OffsetKeeper
    from offsetmgr.types import OffsetAndMetadata

Strategy = Literal["range", "roundrobin", "cooperative-sticky"]

_RETRY_S: Final = 1.0
"""Pause before committed offsets are asked for again."""

_REBALANCING: Final = frozenset({"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"})
"""Refusals of a commit between two generations of the group; later it is taken."""

_FULL_QUEUE_MS: Final = 50
"""librdkafka's pause in fetching after its queue was full.  In its default of 1 s a fast consumer
of small messages reads the whole queue and waits."""

_SLICE_S: Final = 0.1
"""Longest single poll, so that another thread's turn comes soon."""

log = logging.getLogger("offsetmgr.consumer")


@dataclass(frozen=True)
class ConsumerSettings:
    """Settings of a group consumer.  All times are seconds."""

    strategy: Strategy = "cooperative-sticky"
    """Assignment of partitions to members; the same in all members of the group."""

    start: Literal["earliest", "latest"] = "earliest"
    """First message of a partition where nothing is committed."""

    commit_interval_s: float = 1.0
    """Marks and acks are committed this often, in one request."""

    dwell_s: float = 5.0
    """Time that the application has to process what it got of a partition that is released."""

    away_s: float = 0.5
    """After this time without a poll of the application the partitions are paused."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first setting that makes no sense."""
        _check_choice(self.strategy, "strategy", get_args(Strategy))
        _check_choice(self.start, "start", ("earliest", "latest"))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not (is_number(value, (int, float)) and value >= 0):
                fix = "give seconds, such as 5"
                raise InvalidValueError(field.name, value, "is not a number of seconds", fix)


def _check_choice(value: object, field: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidValueError(field, value, "is unknown", f"give one of {', '.join(choices)}")


class MemberCallbacks(NamedTuple):
    """Functions of a consumer that its membership calls, in the thread that polls."""

    received: Callable[[Sequence[Message]], None]
    """Take in messages, all of claimed partitions."""

    claimed: Callable[[Mapping[TopicPartition, OffsetAndMetadata | None]], None]
    """Take partitions, with what is committed for them."""

    releasing: Callable[[Collection[TopicPartition], float], None]
    """Hand out no more of partitions; wait so many seconds for what is in work of them.

    Not called where the consumer is being closed.
    """

    released: Callable[[Collection[TopicPartition], bool], None]
    """Forget partitions; True where they were lost, and another member may have them already."""

    to_commit: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]]
    """Return the offsets to commit that are not committed yet; called by any thread."""

    committed: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None]
    """Take in that these offsets are committed; called by any thread."""

    failed: Callable[[OffsetManagerError], None]
    """Take in an error; called by any thread."""


class Membership:
    """A reader of ``topics`` as a member of ``group``, or of ``partitions`` without membership.

    A topic that begins with ``^`` is a regular expression.  ``kafka`` has librdkafka's settings.
    ``offsets`` keeps the offsets; without it the group in Kafka does.

    Raises InvalidValueError.
    """

    def __init__(
        self,
        kafka: Mapping[str, object],
        group: str,
        topics: Sequence[str],
        callbacks: MemberCallbacks,
        settings: ConsumerSettings,
        *,
        partitions: Sequence[TopicPartition] = (),
        offsets: OffsetKeeper | Offsets | None = None,
    ) -> None:
        self._group = check_group(group)
        self._settings = settings
        self._callbacks = callbacks
        _check_assignment(topics, partitions, offsets)
        config = _kafka_settings(kafka, self._group, settings)
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            fix = "see librdkafka's CONFIGURATION.md"
            problem = f"is refused by librdkafka: {error.args[0].str()}"
            raise InvalidValueError("kafka", sorted(config), problem, fix) from error
        self._in_kafka = MemberOffsets(self._consumer, kafka)
        self._keeper: OffsetKeeper = self._in_kafka
        if offsets is not None:
            self._keeper = ManagedOffsets(offsets) if isinstance(offsets, Offsets) else offsets
        self._cooperative = settings.strategy == "cooperative-sticky" and not partitions
        self._turn = _Turn()
        self._here = threading.Event()  # the application is in `take`
        self._ended = threading.Event()
        self._closed = False
        self._polled_at_s = time.monotonic()
        self._commit_at_s = self._polled_at_s + settings.commit_interval_s
        self._look_at_s = self._polled_at_s
        self._received = False  # the member's own thread handed over messages
        self._released: set[tuple[object, object]] = set()  # during the current poll
        self._away = False  # the application: all partitions are paused
        self._claimed: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._pauses = threading.Lock()
        self._held: frozenset[TopicPartition] = frozenset()  # the consumer wants them paused
        self._changed = False  # what is to be paused
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._repeats = RepeatLimiter()
        self._topics = list(topics)
        self._partitions = tuple(partitions)
        self._thread = threading.Thread(target=self._keep, name=f"member-{group}", daemon=True)

    def start(self) -> None:
        """Join the group, or claim the partitions.

        Raises OffsetManagerError where partitions cannot be claimed.  A member tries it again until
        it succeeds.
        """
        if self._partitions:
            try:
                committed = self._keeper.claim(self._group, self._partitions)
            except OffsetManagerError:
                self._consumer.close()
                self._in_kafka.close()
                raise
            self._take_over(committed)
        else:
            self._consumer.subscribe(
                self._topics,
                on_assign=self._guarded(self._on_assign),
                on_revoke=self._guarded(self._on_revoke),
                on_lost=self._guarded(self._on_lost),
            )
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def take(self, most: int, timeout_s: float, *, patient: bool = False) -> None:
        """Have the consumer receive up to ``most`` messages; wait ``timeout_s`` for the first.

        Where ``patient``, up to 0.1 s longer for the others.  Raises ManagerStoppedError once the
        consumer is closed.
        """
        deadline = time.monotonic() + timeout_s
        self._here.set()
        try:
            while True:
                with self._turn:
                    if self._ended.is_set():
                        raise ManagerStoppedError(f"the consumer of group {self._group} is closed")
                    self._pause(away=False)
                    slice_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
                    more_s = slice_s if patient else 0.0
                    try:
                        received = self._received or self._poll(most, slice_s, more_s)
                    except BaseException:
                        # A signal's handler has raised: what was just read is lost, so that a
                        # later mark would pass it over.
                        self._ended.set()
                        raise
                    self._received = False
                    self._do_what_is_due()
                if received or time.monotonic() >= deadline:
                    return
        finally:
            self._polled_at_s = time.monotonic()
            self._here.clear()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the ends of the claimed partitions as their fetches saw them, 0.1 s ago."""
        return {w: end for w, end in self._high_watermarks.items() if w in self._claimed}

    def _look_at_ends(self) -> None:
        found = {}
        for where in sorted(self._claimed):
            answer = self._consumer.get_watermark_offsets(KafkaPartition(*where), cached=True)
            if answer[1] != OFFSET_INVALID:
                found[where] = answer[1]
        self._high_watermarks = found
        self._look_at_s = time.monotonic() + _SLICE_S

    def pause(self, where: TopicPartition) -> None:
        """Receive no more of a partition from the next poll on, until ``resume``."""
        with self._pauses:
            self._held |= {where}
            self._changed = True

    def resume(self, where: TopicPartition) -> None:
        with self._pauses:
            self._held -= {where}
            self._changed = True

    def commit(self) -> None:
        """Commit what the consumer has to commit, and wait for it.

        Raises OffsetManagerError where one is refused; the consumer keeps them all.
        """
        with self._turn:
            self._commit()
            self._look_at_ends()

    def _commit(self) -> None:
        offsets = self._callbacks.to_commit()
        if offsets:
            self._keeper.commit(self._group, offsets)
            self._callbacks.committed(offsets)

    def close(self) -> None:
        """Commit, leave the group and end; twice is harmless."""
        self._ended.set()
        self._thread.join()
        with self._turn:
            if not self._closed:
                self._closed = True
                self._try_commit(last=True)
                if self._partitions:
                    self._let_go(self._partitions, lost=False)
                self._consumer.close()
                self._in_kafka.close()

    # Polling

    def _poll(self, most: int, timeout_s: float, more_s: float) -> bool:
        """Wait for one message, then ``more_s`` for others; True if the consumer received any."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return False
        found = [first]
        self._released.clear()
        if most > 1:
            try:
                found += self._consumer.consume(most - 1, more_s)
            except KafkaException as error:
                self._callbacks.failed(request_error("poll", error.args[0]))
        if self._released:
            # The rebalance came between messages; librdkafka returns those before it all the same.
            found = [
                each for each in found if (each.topic(), each.partition()) not in self._released
            ]
        good = [each for each in found if each.error() is None]
        if len(good) < len(found):
            for each in found:
                problem = each.error()
                if problem is not None:
                    self._callbacks.failed(request_error("poll", problem))
            found = good
        self._callbacks.received(found)
        return len(found) > 0

    def _keep(self) -> None:
        """Commit in intervals, and poll while the application is away."""
        while not self._ended.wait(_SLICE_S / 2):
            if self._here.is_set():
                continue
            try:
                with self._turn:
                    self._do_what_is_due()
                    away_s = time.monotonic() - self._polled_at_s
                    if away_s >= self._settings.away_s and not self._here.is_set():
                        self._pause(away=True)
                        # A message that was on its way already is kept for the application.
                        self._received = self._poll(1, 0.0, 0.0) or self._received
            except Exception:
                log.exception("group %s: the member's own thread failed, and goes on", self._group)

    def _pause(self, *, away: bool) -> None:
        if away == self._away and not self._changed:
            return
        self._changed = False
        self._away = away
        wanted = self._claimed.copy() if away else self._claimed & self._held
        self._consumer.pause([KafkaPartition(*where) for where in wanted - self._paused])
        self._consumer.resume([KafkaPartition(*where) for where in self._paused - wanted])
        self._paused = wanted

    def _do_what_is_due(self) -> None:
        if time.monotonic() >= self._look_at_s:
            self._look_at_ends()
        if time.monotonic() >= self._commit_at_s:
            self._try_commit(last=False)
            self._commit_at_s = time.monotonic() + self._settings.commit_interval_s

    def _try_commit(self, *, last: bool) -> None:
        deadline = time.monotonic() + (self._settings.dwell_s if last else 0.0)
        while True:
            try:
                self._commit()
            except OffsetManagerError as error:
                rebalancing = error.code in _REBALANCING
                if rebalancing and time.monotonic() < deadline:
                    time.sleep(_SLICE_S)
                    continue
                if last or not rebalancing:
                    self._failed(error, "could not commit")
            return

    def _failed(self, error: OffsetManagerError, what: str) -> None:
        self._callbacks.failed(error)
        suppressed = self._repeats.suppressed((error.code, what), time.monotonic())
        if suppressed is not None:
            log.warning("group %s: %s: %s (%d more)", self._group, what, error, suppressed)

    # Rebalances, in the thread that polls

    def _guarded(
        self, callback: Callable[[list[KafkaPartition]], None]
    ) -> Callable[[Consumer, list[KafkaPartition]], None]:
        """An exception in the middle of ``consume`` would lose the messages that it has read."""

        def run(_: Consumer, partitions: list[KafkaPartition]) -> None:
            try:
                callback(partitions)
            except Exception:
                log.exception("group %s: a rebalance failed half-way", self._group)

        return run

    def _on_assign(self, partitions: list[KafkaPartition]) -> None:
        wheres = list(map(_place, partitions))
        while True:
            try:
                committed = self._keeper.claim(self._group, wheres)
                break
            except OffsetManagerError as error:
                self._failed(error, "could not read the committed offsets; tries again")
            if self._ended.wait(_RETRY_S):
                return
        self._take_over(committed)

    def _take_over(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        self._callbacks.claimed(committed)
        partitions = [KafkaPartition(*where) for where in committed]
        if self._keeper is not self._in_kafka:
            missing = OFFSET_BEGINNING if self._settings.start == "earliest" else OFFSET_END
            for each, known in zip(partitions, committed.values(), strict=True):
                each.offset = missing if known is None else known.offset
        if self._cooperative:
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        # Paused until the next poll: what this one returns of a partition is of its former claim.
        self._consumer.pause(partitions)
        self._claimed.update(committed)
        self._paused.update(committed)
        self._changed = True

    def _on_revoke(self, partitions: list[KafkaPartition]) -> None:
        wheres = list(map(_place, partitions))
        if not self._ended.is_set():
            self._callbacks.releasing(wheres, self._settings.dwell_s)
        self._try_commit(last=True)
        self._let_go(wheres, lost=False)

    def _on_lost(self, partitions: list[KafkaPartition]) -> None:
        self._let_go(list(map(_place, partitions)), lost=True)

    def _let_go(self, partitions: Collection[TopicPartition], *, lost: bool) -> None:
        self._callbacks.released(partitions, lost)
        self._released.update(partitions)
        self._claimed.difference_update(partitions)
        self._paused.difference_update(partitions)
        with self._pauses:
            self._held -= frozenset(partitions)
        if self._cooperative:
            self._consumer.incremental_unassign([KafkaPartition(*where) for where in partitions])
        else:
            self._consumer.unassign()
        try:
            self._keeper.release(self._group, partitions)
        except OffsetManagerError as error:
            self._failed(error, "could not give back partitions")


class _Turn:
    """A lock that is had in turn: who lets it go and wants it again comes after who waits."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _place(partition: KafkaPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _check_assignment(
    topics: Sequence[str],
    partitions: Sequence[TopicPartition],
    offsets: OffsetKeeper | Offsets | None,
) -> None:
    if bool(topics) == bool(partitions):
        problem = "are given with topics" if partitions else "are not given, nor topics"
        fix = 'give topics, such as ["orders"], or partitions, such as [("orders", 0)]'
        raise InvalidValueError("partitions", partitions, problem, fix)
    if not partitions and isinstance(offsets, Offsets):
        problem = "commits only to groups without members"
        fix = "give partitions in place of topics, or leave it out"
        raise InvalidValueError("offsets", offsets, problem, fix)


def _kafka_settings(
    kafka: Mapping[str, object], group: str, settings: ConsumerSettings
) -> dict[str, object]:
    ours = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "partition.assignment.strategy": settings.strategy,
        "auto.offset.reset": settings.start,
    }
    for name in sorted(ours.keys() & kafka.keys()):
        fix = "leave it out: the group's name and ConsumerSettings say it"
        raise InvalidValueError("kafka", name, "is set by the consumer itself", fix)
    return {"fetch.queue.backoff.ms": _FULL_QUEUE_MS, **kafka, **ours}
