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
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.config import is_number
from offsetmgr.coordinator.clients import FORCED
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OffsetManagerError
from offsetmgr.lag.cluster import ClusterReader
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.types import OffsetAndMetadata, TopicPartition, check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Message

Strategy = Literal["range", "roundrobin", "cooperative-sticky"]

REQUEST_S: Final = 10.0
"""Time that Kafka has to answer a fetch of committed offsets."""

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


class RebalanceListener(Protocol):
    """The consumer behind a membership; all but commits are in the thread that polls."""

    def received(self, messages: Sequence[Message]) -> None:
        """Take in messages, all of claimed partitions."""

    def claimed(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> Mapping[TopicPartition, int]:
        """Take partitions with what is committed; return offsets to start at instead, if any."""

    def releasing(self, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        """Hand out no more of ``partitions``; wait until the application has done with them.

        Not called where the consumer is being closed.
        """

    def released(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        """Forget ``partitions``; with ``lost`` another member may have them already."""

    def to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit that are not committed yet."""

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take in that Kafka has ``offsets``."""

    def failed(self, error: KafkaError) -> None:
        """Take in an error of Kafka."""


class Membership:
    """A member of ``group`` that reads ``topics``; for one listener.

    A topic that begins with ``^`` is a regular expression.  ``kafka`` is the bootstrap servers or
    librdkafka's settings.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, object],
        group: str,
        topics: Iterable[str],
        listener: RebalanceListener,
        settings: ConsumerSettings,
    ) -> None:
        self._group = check_group(group)
        self._settings = settings
        self._listener = listener
        self._reader: ClusterReader | None = None
        config = _kafka_settings(kafka, self._group, settings)
        given = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
        self._connection = {
            name: value
            for name, value in given.items()
            if name not in FORCED and not callable(value)
        }
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            fix = "see librdkafka's CONFIGURATION.md"
            problem = f"is refused by librdkafka: {error.args[0].str()}"
            raise InvalidValueError("kafka", sorted(config), problem, fix) from error
        self._cooperative = settings.strategy == "cooperative-sticky"
        self._turn = _Turn()
        self._here = threading.Event()  # the application is in `take`
        self._ended = threading.Event()
        self._closed = False
        self._polled_at_s = time.monotonic()
        self._commit_at_s = self._polled_at_s + settings.commit_interval_s
        self._received = False  # the keeper handed over messages
        self._released: set[tuple[object, object]] = set()  # during the current poll
        self._away = False  # the application: all partitions are paused
        self._claimed: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._pauses = threading.Lock()
        self._held: frozenset[TopicPartition] = frozenset()  # the listener wants them paused
        self._changed = False  # what is to be paused
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._repeats = RepeatLimiter()
        self._consumer.subscribe(
            list(topics),
            on_assign=self._guarded(self._on_assign),
            on_revoke=self._guarded(self._on_revoke),
            on_lost=self._guarded(self._on_lost),
        )
        self._keeper = threading.Thread(target=self._keep, name=f"member-{group}", daemon=True)
        self._keeper.start()

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def take(self, most: int, timeout_s: float, *, patient: bool = False) -> None:
        """Let the listener receive up to ``most`` messages; wait ``timeout_s`` for the first.

        Where ``patient``, up to 0.1 s longer for the others.  Raises ManagerStoppedError once the
        consumer is closed.
        """
        deadline = time.monotonic() + timeout_s
        self._here.set()
        try:
            while True:
                with self._turn:
                    self._check_open()
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
                    self._commit_if_due()
                if received or time.monotonic() >= deadline:
                    return
        finally:
            self._polled_at_s = time.monotonic()
            self._here.clear()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the ends of the claimed partitions as their last fetches saw them.

        While partitions are being released these are those of the last call.
        """
        if self._turn.acquire(2 * _SLICE_S):
            try:
                if not self._closed:
                    self._high_watermarks = self._read_high_watermarks()
            finally:
                self._turn.release()
        return self._high_watermarks

    def _read_high_watermarks(self) -> dict[TopicPartition, int]:
        found = {}
        for where in sorted(self._claimed):
            answer = self._consumer.get_watermark_offsets(KafkaPartition(*where), cached=True)
            if answer[1] != OFFSET_INVALID:
                found[where] = answer[1]
        return found

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
        """Commit what the listener has to commit, and wait for it.

        Raises KafkaException where Kafka refuses; the listener keeps what is not committed.
        """
        with self._turn:
            self._commit()

    def _commit(self) -> None:
        offsets = self._listener.to_commit()
        if not offsets:
            return
        answers = self._consumer.commit(
            offsets=[
                KafkaPartition(*where, each.offset, each.metadata)
                for where, each in offsets.items()
            ],
            asynchronous=False,
        )
        done = dict(offsets)
        refusal: KafkaError | None = None
        for answer in answers or ():
            if answer.error is not None:
                refusal = answer.error
                del done[_place(answer)]
        self._listener.committed(done)
        if refusal is not None:
            raise KafkaException(refusal)

    def close(self) -> None:
        """Commit, leave the group and end; twice is harmless."""
        self._ended.set()
        self._keeper.join()
        with self._turn:
            if not self._closed:
                self._closed = True
                self._try_commit()
                self._consumer.close()
                if self._reader is not None:
                    self._reader.close()

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise ManagerStoppedError(f"the consumer of group {self._group} is closed")

    # Polling

    def _poll(self, most: int, timeout_s: float, more_s: float) -> bool:
        """Wait for one message, then ``more_s`` for others; True if the listener received any."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return False
        found = [first]
        self._released.clear()
        if most > 1:
            try:
                found += self._consumer.consume(most - 1, more_s)
            except KafkaException as error:
                self._listener.failed(error.args[0])
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
                    self._listener.failed(problem)
            found = good
        self._listener.received(found)
        return len(found) > 0

    def _keep(self) -> None:
        """Commit in intervals, and poll while the application is away."""
        while not self._ended.wait(_SLICE_S / 2):
            if self._here.is_set():
                continue
            try:
                with self._turn:
                    self._commit_if_due()
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

    def _commit_if_due(self) -> None:
        if time.monotonic() >= self._commit_at_s:
            self._try_commit()
            self._commit_at_s = time.monotonic() + self._settings.commit_interval_s

    def _try_commit(self) -> None:
        try:
            self._commit()
        except KafkaException as error:
            self._failed(error.args[0], "could not commit; what is marked stays marked")

    def _failed(self, error: KafkaError, what: str) -> None:
        self._listener.failed(error)
        suppressed = self._repeats.suppressed((error.code(), what), time.monotonic())
        if suppressed is not None:
            log.warning("group %s: %s: %s (%d more)", self._group, what, error.str(), suppressed)

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
        starts = self._listener.claimed(self._committed(partitions))
        for each in partitions:
            start = starts.get(_place(each))
            if start is not None:
                each.offset = start
        if self._cooperative:
            self._consumer.incremental_assign(partitions)
        else:
            self._consumer.assign(partitions)
        # Paused until the next poll: what this one returns of a partition is of its former claim.
        self._consumer.pause(partitions)
        self._claimed.update(map(_place, partitions))
        self._paused.update(map(_place, partitions))
        self._changed = True

    def _committed(
        self, partitions: list[KafkaPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(
            map(_place, partitions)
        )
        if not partitions:
            return found
        # confluent-kafka's own `committed` reads beyond metadata that has no NUL at its end, and
        # what follows it may look like acks.
        if self._reader is None:
            self._reader = ClusterReader(self._connection, timeout_s=REQUEST_S)
        answer = self._reader.committed([self._group])[self._group]
        if isinstance(answer, OffsetManagerError):
            # Kafka is asked again for where to start; only what the metadata says is missed.
            log.warning("group %s: %s", self._group, answer)
            return found
        return {where: answer.get(where) for where in found}

    def _on_revoke(self, partitions: list[KafkaPartition]) -> None:
        if not self._ended.is_set():
            self._listener.releasing(list(map(_place, partitions)), self._settings.dwell_s)
        self._try_commit()
        self._let_go(partitions, lost=False)

    def _on_lost(self, partitions: list[KafkaPartition]) -> None:
        self._let_go(partitions, lost=True)

    def _let_go(self, partitions: list[KafkaPartition], *, lost: bool) -> None:
        wheres = list(map(_place, partitions))
        self._listener.released(wheres, lost=lost)
        self._released.update(wheres)
        self._claimed.difference_update(wheres)
        self._paused.difference_update(wheres)
        with self._pauses:
            self._held -= frozenset(wheres)
        if self._cooperative:
            self._consumer.incremental_unassign(partitions)
        else:
            self._consumer.unassign()


class _Turn:
    """A lock that is had in turn: who lets it go and wants it again comes after who waits."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def acquire(self, timeout_s: float) -> bool:
        if not self._next.acquire(timeout=timeout_s):
            return False
        try:
            return self._lock.acquire(timeout=timeout_s)
        finally:
            self._next.release()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _place(partition: KafkaPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _kafka_settings(
    kafka: str | Mapping[str, object], group: str, settings: ConsumerSettings
) -> dict[str, object]:
    given = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
    ours = {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "partition.assignment.strategy": settings.strategy,
    }
    for name in sorted(ours.keys() & given.keys()):
        fix = "leave it out: the group's name and ConsumerSettings say it"
        raise InvalidValueError("kafka", name, "is set by the consumer itself", fix)
    return {"auto.offset.reset": settings.start, **given, **ours}
