"""Reads several clusters at once, as one stream of messages; acks go back to their own cluster.

Each cluster has a thread that makes its consumer and fills it, so that one that does not answer
holds up no other.  The application's thread takes the messages.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Message

from offsetmgr.clusters.link import PROBE_S, Link, check_clusters, close_all
from offsetmgr.consumer.ack_work import AckMessage, AckSettings, acknowledge_up_to
from offsetmgr.consumer.acks import AckConsumer, check_pool, sigterm_raises
from offsetmgr.consumer.base import LONG_S, MessageReader
from offsetmgr.consumer.group import GroupConsumer
from offsetmgr.consumer.settings import ConsumerSettings, ConsumerStats, drain
from offsetmgr.deadlines import Deadline, Latch
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetTimeoutError,
)
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.config import OWN_GROUP
from offsetmgr.logs import SafeLogger
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.stores.base import as_store_error
from offsetmgr.types import (
    TopicPartition,
    check_list,
    check_moment,
    check_offset,
    check_partition,
    check_timeout,
    check_topic,
)
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from offsetmgr.clusters.link import Clusters

_FILL_S: Final = 0.05  # longest wait of a cluster's thread for messages
_CLOSE_S: Final = 10.0  # after this time a cluster that does not answer is left to itself
_AT_ONCE: Final = 5_000
"""Messages of a cluster that are fetched at once; so many may wait to be read before that.

The thread that fetches gets the interpreter's lock every 5 ms at best, three times for each fetch.
"""

_AT_ONCE_BYTES: Final = 32 * 2**20  # the same in bytes, by the size of the last message
_LOGICAL: Final = {"first": OFFSET_BEGINNING, "last": OFFSET_END}
_FULL_S: Final = 0.005

_T = TypeVar("_T")
_C = TypeVar("_C", bound=MessageReader[Any])
_F = TypeVar("_F", bound="_Feed[Any, Any]")

log = SafeLogger("offsetmgr.clusters")


class _Feed(Generic[_T, _C]):
    """The messages of one cluster, and the thread that fetches them."""

    def __init__(self, link: Link, make: Callable[[], _C]) -> None:
        """``make`` returns the consumer, or raises OffsetManagerError where none can be had yet."""
        self.link: Final = link
        self.consumer: _C | None = None
        self.failure: OffsetManagerError | None = None
        """The reason why no more messages come of this cluster, now or later."""
        self.fill: Callable[[_C], object] = lambda consumer: consumer._fill(_FILL_S)  # noqa: SLF001 -- a part of this one
        self._make = make
        self._news = Latch()
        self._ended = Latch()
        self._thread = threading.Thread(target=self._run, name=f"feed-{link.name}", daemon=True)

    def next(self) -> _T | None:
        """Return a message that is there already."""
        return None if self.consumer is None else self.consumer._next()  # noqa: SLF001 -- a part of this one

    def start(self, news: Latch) -> None:
        """Begin; ``news`` is set where there may be messages."""
        self._news = news
        self._thread.start()

    def commit(self) -> None:
        """Commit what is processed.  Raises OffsetManagerError."""
        if self.failure is not None:
            raise self.failure
        if self.consumer is not None:
            self.consumer.commit_offsets()

    def end(self) -> None:
        self._ended.set()
        self._close()
        if self._thread.ident is not None:
            self._thread.join()
            self._close()  # it may have made a consumer meanwhile
        self.link.close()

    def _close(self) -> None:
        if self.consumer is not None:
            self.consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set() and self.failure is None:
            try:
                if self.consumer is None and self.link.up:  # else it is probed
                    self.consumer = self._make()
                    self.consumer._member.reports_connections = False  # noqa: SLF001 -- the link does
                if self.consumer is None:
                    self._ended.wait(_FILL_S)
                else:
                    self.fill(self.consumer)
                self.link.probe_if_due()
            except BaseException as raised:
                error = as_store_error(f"reading of cluster {self.link.name}", raised)
                has_ended = self.consumer is not None and self.consumer.closed
                if has_ended or isinstance(error, InvalidValueError):
                    self.failure = error
                    if not (has_ended and error is raised):  # the consumer has reported it
                        self.link.refused(error)
                elif error is raised:
                    self.link.failed(error)
                else:
                    if self.link.is_new(error):
                        self.link.errors.append(error)
                        log.exception("cluster %s: reading failed, and goes on", self.link.name)
                    self._ended.wait(LONG_S)
            self._news.set()


class _MergedClient(Closing, Generic[_T, _F]):
    """Takes messages of all feeds in turn; for one thread."""

    def __init__(self, feeds: Mapping[str, _F], close_s: float = _CLOSE_S) -> None:
        self._feeds = feeds
        self._turns = deque(feeds.values())
        self._close_s = close_s
        self._process = os.getpid()
        self._news = Latch()
        self._started = self._closed = False

    def _start(self) -> None:
        """Begin to read, unless that has begun."""
        if not self._started:
            self._started = True
            for feed in self._feeds.values():
                feed.start(self._news)

    def _next(self, timeout: float | None) -> _T | None:
        """Return the next message; None where none came within ``timeout`` s, or once closed.

        Raises OffsetManagerError once no cluster can ever answer again, and ManagerStoppedError in
        the child of a fork.
        """
        deadline = Deadline(timeout, forever=True)
        self.check_process()  # no thread would bring any
        while not self._closed:
            try:
                for _ in self._feeds:
                    self._turns.rotate(-1)
                    message: _T | None = self._turns[0].next()
                    if message is not None:
                        return message
            except BaseException:  # of a signal's handler: one may be lost
                self._closed = True
                raise
            self._check()
            if deadline.over:
                break
            self._news.wait(min(deadline.left_s, LONG_S))
            self._news.clear()
        return None

    def _check(self) -> None:
        """Raise the failure of the first cluster once all have failed for good."""
        failures = [feed.failure for feed in self._feeds.values()]
        if not self._closed and failures[0] is not None and all(failures):
            raise failures[0]

    @property
    def closed(self) -> bool:
        return self._closed

    def errors(self) -> list[OffsetManagerError]:
        """Return the errors since the last call; at most the newest 100 of each cluster."""
        found: list[OffsetManagerError] = []
        for feed in self._feeds.values():
            found += drain(feed.link.errors)
            found += feed.consumer.errors() if feed.consumer is not None else []
        return found

    def close(self) -> None:
        """Commit and end; twice is harmless; in the child of a fork it does nothing.

        A cluster that does not answer is left to itself after 10 s.  In a signal's handler during a
        call this returns at once, and a thread does it.
        """
        if self.is_forked:
            return
        self._closed = True
        self._news.set()
        ends = {name: feed.end for name, feed in self._feeds.items()}
        end = partial(close_all, ends, self._close_s)
        members = [feed.consumer._member for feed in self._feeds.values() if feed.consumer]  # noqa: SLF001 -- a part of this one
        if any(member.defers(lambda: None) for member in members):
            Question(end)
        else:
            end()


class ClusterMessage(NamedTuple):
    """A message and the cluster that it was read from."""

    cluster: str
    message: Message
    """confluent-kafka's own."""


class ReaderStats(NamedTuple):
    """Figures of one cluster since the reader was made."""

    up: bool
    """False while the cluster does not answer."""
    read: int
    """Messages that were returned to the application."""
    lag: int | None
    """As of ``MultiClusterReader.lag``."""
    bytes: int = 0
    """Size of the values of these messages."""
    errors: int = 0
    """Failures of the cluster and errors of its consumer."""
    timeouts: int = 0
    """Failures in which the cluster did not answer in time."""
    rebalances: int = 0
    """Rebalances in which partitions were claimed, released or lost."""
    retries: int = 0
    """Tries to reach the cluster after a failure."""


class MultiClusterReader(_MergedClient[ClusterMessage, "_ReaderFeed"]):
    """Reads ``topic`` of several clusters; messages are read by one thread.

    ``clusters`` has bootstrap servers, or librdkafka's settings, by name.  With ``group`` it is a
    member of that consumer group in each of them, and commits.  Without, it reads ``partitions``
    (by default those that each topic has when its cluster first answers), from where
    ``settings.missing`` says.

    A cluster that does not answer delays no other one.  Its failure is reported once, by a line
    in the log and by ``errors``; it is tried again until the reader is closed.

    Raises InvalidValueError for a bad name or setting.
    """

    def __init__(
        self,
        clusters: Clusters,
        topic: str,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._topic = check_topic(topic)
        self._group = group
        numbers = None
        if partitions is not None:
            numbers = [check_partition(e) for e in check_list(partitions, "partitions", "[0, 1]")]
        if group is not None and numbers is not None:
            fix = "leave them out: the members of a group share the partitions"
            raise InvalidValueError("partitions", numbers, "cannot be chosen with a group", fix)
        if numbers == []:
            raise InvalidValueError("partitions", [], "is empty", "give some, or None for all")
        checked = check_clusters(clusters)
        settings = ConsumerSettings() if settings is None else settings
        for kafka in checked.values():
            _ReaderConsumer._checked(kafka, OWN_GROUP if group is None else group, settings)  # noqa: SLF001 -- a part of this one
        super().__init__(
            {
                name: _ReaderFeed(Link(name, kafka, topic), topic, group, numbers, settings)
                for name, kafka in checked.items()
            }
        )
        self._returned: ClusterMessage | None = None  # by `read_message`, to be marked
        self._start()

    # Messages

    def read_message(self, *, timeout: float | None = None) -> ClusterMessage | None:
        """Return as ``fetch_message``, and mark as processed what was returned before.

        With a group, that is committed within ``commit_interval_s``.  The message of the last call
        is not: after ``close`` it comes again.
        """
        if self._returned is not None:
            self._feeds[self._returned.cluster].mark([self._returned.message])
            self._returned = None
        found = self.fetch_message(timeout=timeout)
        if self._group is not None:
            self._returned = found
        return found

    def __iter__(self) -> Iterator[ClusterMessage]:
        """Iterate by ``read_message`` until the reader is closed."""
        while (message := self.read_message()) is not None:
            yield message

    def fetch_message(self, *, timeout: float | None = None) -> ClusterMessage | None:
        """Return the next message, which is not marked: see ``commit_messages``.

        None once the reader is closed.  Raises OffsetTimeoutError where none came within
        ``timeout`` s, and OffsetManagerError once no cluster can ever answer again.
        """
        found = self._next(timeout)
        if found is None and not self._closed:
            raise OffsetTimeoutError(f"no message of topic {self._topic} within {timeout:g} s")
        return found

    def commit_messages(self, messages: Iterable[ClusterMessage], *, timeout: float = 10.0) -> None:
        """Mark ``messages``, and those before them in their partitions, as processed.

        Waits up to ``timeout`` s (0: not at all) until Kafka has committed it.  Marks of a
        partition that another member has taken over meanwhile are dropped.

        What fails is tried again every ``commit_interval_s``, but raises OffsetTimeoutError where a
        cluster does not answer, and KafkaRequestError where it refuses.  Raises InvalidValueError
        without a group.
        """
        deadline = Deadline(timeout)
        if self._group is None:
            fix = "give the reader a group; without one nothing is committed"
            raise InvalidValueError("group", None, "is missing", fix)
        found: dict[_ReaderFeed, list[Message]] = {}
        for each in check_list(messages, "messages", "[message]"):
            if not isinstance(each, ClusterMessage) or not isinstance(each.message, Message):
                hint = "give messages as fetch_message returns them"
                raise InvalidValueError("messages", each, "is not a message", hint)
            found.setdefault(self._feed(each.cluster), []).append(each.message)
        for feed, marked in found.items():
            feed.mark(marked)
        waiting = [(feed, Question(feed.commit)) for feed in found] if timeout else []
        for feed, commit in waiting:
            if not commit.wait(deadline.left_s):
                text = f"not committed in cluster {feed.link.name} within {timeout:g} s"
                raise OffsetTimeoutError(f"{text}; it is tried again")
            commit.result()

    # Positions

    def offset(self, cluster: str, partition: int = 0) -> int | None:
        """Return the offset after the last message read of a partition; None before the first."""
        return self._feed(cluster).position(check_partition(partition))

    def lag(self, cluster: str, partition: int | None = None) -> int | None:
        """Return the messages behind ``offset``, by the end of the log as the last fetch saw it.

        Of all partitions where ``partition`` is None.  None where it is not known.
        """
        return self._feed(cluster).lag(None if partition is None else check_partition(partition))

    def read_lag(self, cluster: str, partition: int = 0, *, timeout: float = 10.0) -> int:
        """Ask Kafka for the end of a partition, and return the lag; 0 where nothing was read yet.

        Raises KafkaRequestError.
        """
        feed = self._feed(cluster)
        end = feed.link.log_end(check_partition(partition), check_timeout(timeout))
        position = feed.position(partition)
        return 0 if position is None else max(0, end - position)

    def set_offset(
        self, cluster: str, offset: int | Literal["first", "last"], partition: int | None = None
    ) -> None:
        """Read on from ``offset``; of all partitions where ``partition`` is None.

        Returns at once, also while the cluster does not answer.  Raises InvalidValueError, also
        with a group; ManagerStoppedError.
        """
        number = _LOGICAL.get(str(offset))
        if partition is not None:
            check_partition(partition)
        feed = self._positioned(cluster)
        feed.move(partition, check_offset(offset) if number is None else number)

    def set_offset_at(
        self, cluster: str, at: datetime, partition: int | None = None, *, timeout: float = 10.0
    ) -> None:
        """Read on from the first message of the time ``at`` or later; else from the end.

        Raises as ``set_offset``, and KafkaRequestError where Kafka does not answer within
        ``timeout`` s.
        """
        feed = self._positioned(cluster)
        at_ms = check_moment(at, "at")
        deadline = Deadline(timeout)
        numbers = feed.numbers if partition is None else [check_partition(partition)]
        numbers = numbers or feed.link.partitions(deadline.left_s)
        found = feed.link.offsets_at(at_ms, numbers, deadline.left_s)
        for number, offset in found.items():
            feed.move(number, OFFSET_END if offset < 0 else offset)

    # State

    def stats(self) -> dict[str, ReaderStats]:
        """Return figures of each cluster, also once closed."""
        return {name: feed.stats() for name, feed in self._feeds.items()}

    def _feed(self, cluster: str) -> _ReaderFeed:
        self.check_process()
        if self._closed:
            raise ManagerStoppedError("the reader is closed")
        found = next((feed for name, feed in self._feeds.items() if name == cluster), None)
        if found is None:
            fix = f"give one of {', '.join(self._feeds)}"
            raise InvalidValueError("cluster", cluster, "is unknown", fix)
        return found

    def _positioned(self, cluster: str) -> _ReaderFeed:
        if self._group is not None:
            fix = "move the group: offsetmgr reset"
            raise InvalidValueError("group", self._group, "keeps the positions", fix)
        return self._feed(cluster)


class _ReaderFeed(_Feed[ClusterMessage, "_ReaderConsumer"]):
    """Reads as a member of ``group``, or ``numbers`` (None: all partitions) where that is None."""

    def __init__(
        self,
        link: Link,
        topic: str,
        group: str | None,
        numbers: Sequence[int] | None,
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(link, self._open)
        self._read = self._bytes = 0
        self._topic = topic
        self._group = group
        self.numbers = numbers
        self._settings = settings
        self._lock = threading.RLock()  # of the positions, and of the consumer's making
        self._start = OFFSET_BEGINNING if settings.missing == "earliest" else OFFSET_END
        self._positions: dict[int, int] = {}
        """The next offsets to hand out, librdkafka's negative ones among them."""

    def next(self) -> ClusterMessage | None:
        with self._lock:
            message = None if self.consumer is None else self.consumer._next()  # noqa: SLF001 -- a part of this one
            if message is None:
                return None
            self._positions[message.partition() or 0] = (message.offset() or 0) + 1
        self._read += 1
        self._bytes += len(message)
        return ClusterMessage(self.link.name, message)

    def lag(self, partition: int | None) -> int | None:
        known = {} if self.consumer is None else self.consumer.high_water_marks()
        ends = known.get(self._topic, {})
        total = 0
        for number in ends if partition is None else [partition]:
            end, position = ends.get(number), self.position(number)
            if end is None or (end > 0 and position is None):
                return None
            total += max(0, end - (position or 0))
        return total if ends else None

    def stats(self) -> ReaderStats:
        link = self.link
        figures = ConsumerStats() if self.consumer is None else self.consumer.stats()
        errors, rebalances = link.failures + figures.errors, figures.rebalances
        counts = (self._bytes, errors, link.timeouts, rebalances, link.retries)
        return ReaderStats(link.up, self._read, self.lag(None), *counts)

    def mark(self, messages: Iterable[Message]) -> None:
        if self.consumer is not None:
            self.consumer.mark_messages(messages)

    def position(self, partition: int) -> int | None:
        found = self._positions.get(partition, OFFSET_END)
        if self.consumer is not None:
            where = TopicPartition(self._topic, partition)
            found = self.consumer._work.end_from(where, found)  # noqa: SLF001 -- a part of this one
        return found if found >= 0 else None

    def move(self, partition: int | None, offset: int) -> None:
        """Read on from ``offset``, all partitions where ``partition`` is None."""
        numbers = self.numbers
        if partition is not None and numbers is not None and partition not in numbers:
            fix = f"give one of {', '.join(map(str, numbers))}"
            raise InvalidValueError("partition", partition, "is not read", fix)
        with self._lock:
            if partition is None:
                self._start = offset
            moved = dict.fromkeys(self._positions if partition is None else [partition], offset)
            self._positions |= moved
            if self.consumer is not None:
                self.consumer._member.move(self._of_topic(moved))  # noqa: SLF001 -- a part of this one

    def _of_topic(self, offsets: Mapping[int, int]) -> dict[TopicPartition, int]:
        return {TopicPartition(self._topic, each): at for each, at in offsets.items()}

    def _open(self) -> _ReaderConsumer:
        kafka, settings = self.link.settings({}), self._settings
        if self._group is not None:
            return _ReaderConsumer(kafka, self._group, {}, [self._topic], settings=settings)
        if self.numbers is None:
            self.numbers = self.link.partitions(PROBE_S)
        with self._lock:
            known = self._positions
            self._positions = {each: known.get(each, self._start) for each in self.numbers}
            starts = self._of_topic(self._positions)
            self.consumer = _ReaderConsumer(
                kafka, OWN_GROUP, starts, store=MemoryOffsetStore(), settings=settings
            )
            # Here, before a move can look for it.
            return self.consumer


class _ReaderConsumer(GroupConsumer):
    """Fetches many messages at once, and can begin anywhere."""

    _most = _AT_ONCE

    def __init__(
        self,
        kafka: Mapping[str, object],
        group: str,
        starts: Mapping[TopicPartition, int],
        topics: Iterable[str] = (),
        **options: Any,
    ) -> None:
        """Read the partitions of ``starts`` from there on, or ``topics`` as a member."""
        self._starts = starts
        super().__init__(kafka, group, topics, partitions=starts, **options)

    def _fill(self, timeout_s: float) -> None:
        with suppress(IndexError):
            size = 100 + len(self._work.waiting[-1][-1])
            self._most = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // size))
        if self._work.count() > self._most:
            self._member.ended.wait(_FULL_S)
            return
        self._member.wait_for(self._most, timeout_s)


class MultiClusterAckConsumer(_MergedClient[AckMessage, _Feed[AckMessage, AckConsumer]]):
    """A member of ``group`` in each of several clusters, with an ack for each message.

    ``clusters`` has bootstrap servers, or librdkafka's settings, by name; ``message.cluster`` is
    the name.  ``settings`` count for each cluster by itself.  Messages are read by one thread.

    A cluster that does not answer delays no other one.  Its failure is reported once; it is tried
    again until the consumer is closed.

    Raises InvalidValueError for a bad name or setting.
    """

    def __init__(
        self,
        clusters: Clusters,
        group: str,
        topics: Iterable[str],
        *,
        settings: AckSettings | None = None,
    ) -> None:
        names = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if not names:
            raise InvalidValueError("topics", names, "is empty", 'give some, such as ["orders"]')
        checked = check_clusters(clusters)
        self._settings = AckSettings() if settings is None else settings
        for kafka in checked.values():
            AckConsumer._checked(kafka, group, self._settings)  # noqa: SLF001 -- a part of this one
        feeds: dict[str, _Feed[AckMessage, AckConsumer]] = {}
        for name, kafka in checked.items():
            link = Link(name, kafka, None)  # one of the topics may be missing
            feeds[name] = _Feed(link, partial(self._open, link, group, names))
        super().__init__(feeds, self._settings.dwell_s + _CLOSE_S)

    def poll(self, timeout: float | None = 1.0) -> AckMessage | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.  Raises OffsetManagerError once no cluster can
        ever answer again.
        """
        self._start()
        return self._next(timeout)

    def __iter__(self) -> Iterator[AckMessage]:
        """Iterate over the messages until the consumer is closed."""
        while (message := self.poll(timeout=None)) is not None:
            yield message

    def run(
        self,
        handler: Callable[[AckMessage], object],
        *,
        workers: int = 8,
        ordered_by: Literal["partition", "key"] | None = None,
    ) -> None:
        """Call ``handler`` for each message, until the consumer is closed.

        As AckConsumer.run, with ``workers`` threads for each cluster.
        """
        check_pool(handler, workers, ordered_by)
        self.check_process()
        for feed in self._feeds.values():
            feed.fill = lambda each: each.run(handler, workers=workers, ordered_by=ordered_by)
        try:
            self._start()
            with sigterm_raises() as raise_again:
                while not self._closed:
                    self._check()
                    self._news.wait(LONG_S)
                    self._news.clear()
                    raise_again()
        finally:
            super().close()

    def close(self) -> None:
        """Commit and end, as AckConsumer.close; twice is harmless.

        A cluster that does not answer is left to itself after ``dwell_s`` and 10 s.
        """
        consumers = [feed.consumer for feed in self._feeds.values() if feed.consumer is not None]
        if any(each.is_called_by_handler for each in consumers):
            for each in consumers:
                each._work.closing = True  # noqa: SLF001 -- a part of this one
            self._closed = True
            self._news.set()
        else:
            super().close()

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        acknowledge_up_to(message)

    @property
    def pending(self) -> int:
        """Messages that are handed out or about to be, and not acknowledged."""
        return sum(each.consumer.pending for each in self._feeds.values() if each.consumer)

    def _open(self, link: Link, group: str, topics: list[str]) -> AckConsumer:
        consumer = AckConsumer(link.settings({}), group, topics, settings=self._settings)
        consumer._work.cluster = link.name  # noqa: SLF001 -- a part of this one
        return consumer
