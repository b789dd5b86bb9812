"""Reads a topic of several clusters at once, as one stream of messages."""

from __future__ import annotations

import threading
import time
from concurrent.futures import TimeoutError as NotDoneError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Message

from offsetmgr.clusters.link import PROBE_S, Link, check_clusters
from offsetmgr.clusters.merged import FILL_S, Feed, MergedClient
from offsetmgr.consumer.group import GroupConsumer
from offsetmgr.consumer.membership import ConsumerSettings
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetTimeoutError,
)
from offsetmgr.spark.starting import milliseconds
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_offset,
    check_partition,
    check_timeout,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from offsetmgr.clusters.link import Clusters

AT_ONCE: Final = 5_000
"""Messages of a cluster that are fetched at once; so many may wait to be read before that.

The thread that fetches gets the interpreter's lock every 5 ms at best, three times for each fetch.
"""

AT_ONCE_BYTES: Final = 32 * 2**20
"""The same in bytes, by the size of the last message."""

NEVER_JOINED: Final = "offsetmgr-reader"
"""Group of a consumer without one: librdkafka wants a name."""

_LOGICAL: Final = {"first": OFFSET_BEGINNING, "last": OFFSET_END}


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


class MultiClusterReader(MergedClient[ClusterMessage, "_ClusterConsumer"]):
    """Reads ``topic`` of several clusters; messages are read by one thread.

    ``clusters`` has bootstrap servers, or librdkafka's settings, by name.  With ``group`` it is a
    member of that consumer group in each of them, and commits.  Without, it reads ``partitions``
    (by default those that each topic has when its cluster first answers), from ``settings.start``.

    A cluster that does not answer holds up no other one.  Its failure is reported once, by a line
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
        numbers = None if partitions is None else [check_partition(each) for each in partitions]
        if group is not None and numbers is not None:
            fix = "leave them out: the members of a group share the partitions"
            raise InvalidValueError("partitions", numbers, "cannot be chosen with a group", fix)
        settings = settings or ConsumerSettings()
        self._feeds = {
            name: _ReaderFeed(
                Link(name, kafka, topic, time.monotonic), topic, group, numbers, settings
            )
            for name, kafka in check_clusters(clusters).items()
        }
        self._returned: ClusterMessage | None = None  # by `read_message`, to be marked
        super().__init__(self._feeds.values())
        self._start()

    # Messages

    def read_message(self, *, timeout: float | None = None) -> ClusterMessage | None:
        """Return the next message; None where none came within ``timeout`` s, or once closed.

        With a group, the message returned before is marked as processed, and committed within
        ``commit_interval_s``.  That of the last call is not: after ``close`` it comes again.
        """
        if self._returned is not None:
            self._feeds[self._returned.cluster].mark([self._returned.message])
        found = self._next(timeout)
        if self._group is not None:
            self._returned = found
        return found

    def __iter__(self) -> Iterator[ClusterMessage]:
        """Iterate by ``read_message`` until the reader is closed."""
        while (message := self.read_message()) is not None:
            yield message

    def fetch_message(self, *, timeout: float | None = None) -> ClusterMessage | None:
        """Return as ``read_message``, but mark nothing: see ``commit_messages``."""
        return self._next(timeout)

    def commit_messages(self, messages: Iterable[ClusterMessage], *, timeout: float = 10.0) -> None:
        """Mark ``messages``, and those before them in their partitions, as processed.

        Waits up to ``timeout`` s (0: not at all) until Kafka has committed it.  Marks of a
        partition that another member has taken over meanwhile are dropped.

        What fails is tried again every ``commit_interval_s``, but raises OffsetTimeoutError where a
        cluster does not answer, and KafkaRequestError where it refuses.  Raises InvalidValueError
        without a group.
        """
        deadline = time.monotonic() + check_timeout(timeout)
        if self._group is None:
            fix = "give the reader a group; without one nothing is committed"
            raise InvalidValueError("group", None, "is missing", fix)
        found: dict[str, list[Message]] = {}
        for each in messages:
            found.setdefault(each.cluster, []).append(each.message)
        feeds = [self._feed(name) for name in found]
        for feed in feeds:
            feed.mark(found[feed.link.name])
        waiting = [(feed, feed.order(feed.commit)) for feed in feeds] if timeout else []
        for feed, done in waiting:
            try:
                done.result(max(0.0, deadline - time.monotonic()))
            except NotDoneError:
                text = f"not committed in cluster {feed.link.name} within {timeout:g} s"
                raise OffsetTimeoutError(f"{text}; it is tried again") from None

    # Positions

    def offset(self, cluster: str, partition: int = 0) -> int | None:
        """Return the offset after the last message read of a partition; None before the first."""
        return self._feed(cluster).position(check_partition(partition))

    def lag(self, cluster: str, partition: int | None = None) -> int | None:
        """Return the messages behind ``offset``, by the end of the log as the last fetch saw it.

        Of all partitions where ``partition`` is None.  None where it is not known.
        """
        feed = self._feed(cluster)
        ends = feed.ends()
        total = 0
        for number in ends if partition is None else [check_partition(partition)]:
            end, position = ends.get(number), feed.position(number)
            if end is None or (end > 0 and position is None):
                return None
            total += max(0, end - (position or 0))
        return total if ends else None

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
        at_ms = milliseconds(at, "at")
        wait_s = check_timeout(timeout)
        numbers = feed.numbers if partition is None else [check_partition(partition)]
        found = feed.link.offsets_at(at_ms, numbers or feed.link.partitions(wait_s), wait_s)
        for number, offset in found.items():
            feed.move(number, OFFSET_END if offset < 0 else offset)

    # State

    def stats(self) -> dict[str, ReaderStats]:
        """Return figures of each cluster."""
        return {
            name: ReaderStats(feed.link.up, feed.read, self.lag(name))
            for name, feed in self._feeds.items()
        }

    def _feed(self, cluster: str) -> _ReaderFeed:
        if self._closed:
            raise ManagerStoppedError("the reader is closed")
        found = self._feeds.get(cluster)
        if found is None:
            fix = f"give one of {', '.join(self._feeds)}"
            raise InvalidValueError("cluster", cluster, "is unknown", fix)
        return found

    def _positioned(self, cluster: str) -> _ReaderFeed:
        if self._group is not None:
            fix = "move the group: offsetmgr reset"
            raise InvalidValueError("group", self._group, "keeps the positions", fix)
        return self._feed(cluster)


class _ReaderFeed(Feed[ClusterMessage, "_ClusterConsumer"]):
    """Reads as a member of ``group``, or ``numbers`` (None: all partitions) where that is None.

    To move, a new consumer is opened: no message of the old one can come after that.
    """

    def __init__(
        self,
        link: Link,
        topic: str,
        group: str | None,
        numbers: Sequence[int] | None,
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(link)
        self.read = 0
        self._topic = topic
        self._group = group
        self.numbers = numbers
        self._settings = settings
        self._start = OFFSET_BEGINNING if settings.start == "earliest" else OFFSET_END
        self._lock = threading.Lock()  # of what follows, and of changes of the consumer
        self._moves = 0
        self._positions: dict[int, int] = {}  # where the consumer begins

    def next(self) -> ClusterMessage | None:
        message = None if self.consumer is None else self.consumer.next()
        if message is None:
            return None
        self.read += 1
        return ClusterMessage(self.link.name, message)

    def mark(self, messages: Iterable[Message]) -> None:
        if self.consumer is not None:
            self.consumer.mark_messages(messages)

    def commit(self) -> None:
        if self.consumer is not None:
            self.consumer.commit_offsets()

    def position(self, partition: int) -> int | None:
        with self._lock:
            last = None if self.consumer is None else self.consumer.last.get(partition)
            found = self._positions.get(partition, -1) if last is None else _after(last)
            return found if found >= 0 else None

    def ends(self) -> dict[int, int]:
        consumer = self.consumer
        return {} if consumer is None else consumer.high_water_marks().get(self._topic, {})

    def move(self, partition: int | None, offset: int) -> None:
        """Read on from ``offset``, all partitions where ``partition`` is None."""
        known_numbers = self.numbers
        if partition is not None and known_numbers is not None and partition not in known_numbers:
            fix = f"give one of {', '.join(map(str, known_numbers))}"
            raise InvalidValueError("partition", partition, "is not read", fix)
        with self._lock:
            self._moves += 1
            if self.consumer is not None:
                self._positions.update(self.consumer.retire())
                self.order(self.consumer.close)
                self.consumer = None
            if partition is None:
                self._start = offset
                self._positions.clear()
            else:
                self._positions[partition] = offset

    def _open(self) -> None:
        config = self.link.settings({})
        if self._group is not None:
            self.consumer = _ClusterConsumer(
                self.link, config, self._group, [self._topic], settings=self._settings
            )
            return
        if self.numbers is None:
            self.numbers = self.link.partitions(PROBE_S)
        with self._lock:
            moves = self._moves
            for number in self.numbers:
                self._positions.setdefault(number, self._start)
            starts = {TopicPartition(self._topic, n): self._positions[n] for n in self.numbers}
        made = _ClusterConsumer(
            self.link,
            config,
            NEVER_JOINED,
            partitions=starts,
            offsets=_Starts(starts),
            settings=self._settings,
        )
        with self._lock:
            if moves == self._moves:
                self.consumer = made
        if self.consumer is not made:  # it was moved meanwhile
            made.close()


class _ClusterConsumer(GroupConsumer):
    """The consumer of a feed; the thread that fills it is not the one that takes messages."""

    def __init__(self, link: Link, *args: Any, **options: Any) -> None:
        self._link = link
        super().__init__(*args, **options)

    def _prepare(self) -> None:
        super()._prepare()
        self.last: dict[int | None, Message] = {}  # the messages that were taken last
        self._retired = False
        self._most = AT_ONCE

    def next(self) -> Message | None:
        """Return a message that is there already."""
        with self._lock:
            if not self._waiting:
                self._in_work = ()
                return None
            message = self._waiting.popleft()
            self._in_work = (message,)
            self.last[message.partition()] = message
            return message

    def retire(self) -> dict[int, int]:
        """Hand out no more; return the positions behind what was handed out."""
        with self._lock:
            self._retired = True
            self._waiting.clear()
            return {number or 0: _after(message) for number, message in self.last.items()}

    def fill(self) -> bool:
        """Fetch for about ``FILL_S``; False where there is no room."""
        if len(self._waiting) > self._most:
            return False
        with suppress(ManagerStoppedError):
            self._membership.take(self._most, FILL_S)
        return True

    def _received(self, messages: Sequence[Message]) -> None:
        self._link.answered()
        if messages:
            size = 100 + len(messages[-1])
            self._most = max(1, min(AT_ONCE, AT_ONCE_BYTES // size))
        with self._lock:
            if not self._retired:
                self._waiting.extend(messages)


class _Starts(NamedTuple):
    """Keeps no offsets but those to start at; librdkafka's negative ones among them."""

    offsets: Mapping[TopicPartition, int]

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        del group
        return {each: OffsetAndMetadata(self.offsets[each]) for each in partitions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Nothing is committed."""

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Nothing was taken over."""


def _after(message: Message) -> int:
    return (message.offset() or 0) + 1
