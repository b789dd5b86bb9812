"""Acks over several clusters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from offsetmgr.clusters.link import Link, check_clusters
from offsetmgr.clusters.merged import CLOSE_S, FILL_S, Feed, MergedClient
from offsetmgr.consumer.acks import AckConsumer, AckSettings
from offsetmgr.consumer.deliveries import AckFunctions, AckMessage
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import check_group, check_list, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from confluent_kafka import Message

    from offsetmgr.clusters.link import Clusters


class MultiClusterAckConsumer(MergedClient[AckMessage, "_ClusterConsumer"]):
    """A member of ``group`` in each of several clusters, with an ack for each message.

    ``clusters`` has bootstrap servers, or librdkafka's settings, by name; ``message.cluster`` is
    the name.  ``settings`` count for each cluster by itself.  Messages are read by one thread.

    A cluster that does not answer holds up no other one.  Its failure is reported once; it is tried
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
        self._settings = settings or AckSettings()
        names = [check_topic(each) for each in check_list(topics, "topics", '["orders"]')]
        if not names:
            raise InvalidValueError("topics", names, "is empty", 'give some, such as ["orders"]')
        self._feeds = {
            name: _AckFeed(
                Link(name, kafka, names[0], time.monotonic),
                check_group(group),
                names,
                self._settings,
            )
            for name, kafka in check_clusters(clusters).items()
        }
        super().__init__(self._feeds.values(), self._settings.dwell_s + CLOSE_S)
        self._reading = False

    def poll(self, *, timeout: float | None = 1.0) -> AckMessage | None:
        """Return the next message, or None where none came within ``timeout`` s (None: no limit).

        None as well once the consumer is closed.
        """
        if not self._reading:
            self._reading = True
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
        for feed in self._feeds.values():
            feed.run = lambda each: each.run(handler, workers=workers, ordered_by=ordered_by)
        self._start()
        while not self._closed:
            self._news.wait(1.0)

    def commit_up_to(self, message: AckMessage) -> None:
        """Acknowledge ``message`` and all messages before it in its partition."""
        consumer = self._feeds[message.cluster].consumer
        if consumer is not None:
            consumer.commit_up_to(message)

    @property
    def pending(self) -> int:
        """Messages that are handed out or about to be, and not acknowledged."""
        return sum(each.consumer.pending for each in self._feeds.values() if each.consumer)


class _AckFeed(Feed[AckMessage, "_ClusterConsumer"]):
    def __init__(
        self, link: Link, group: str, topics: Sequence[str], settings: AckSettings
    ) -> None:
        super().__init__(link)
        self.run: Callable[[_ClusterConsumer], None] | None = None
        """Used in place of ``fill`` where given."""
        self._arguments = group, topics, settings

    def next(self) -> AckMessage | None:
        return None if self.consumer is None else self.consumer.next()

    def _open(self) -> None:
        self.consumer = _ClusterConsumer(self.link, *self._arguments)

    def _fill(self, consumer: _ClusterConsumer) -> bool:
        if self.run is None:
            return consumer.fill()
        self.run(consumer)
        return False


class _ClusterConsumer(AckConsumer):
    """An AckConsumer whose messages say the name of the cluster."""

    def __init__(
        self, link: Link, group: str, topics: Sequence[str], settings: AckSettings
    ) -> None:
        self._link = link
        super().__init__(link.settings({}), group, topics, settings=settings)

    def next(self) -> AckMessage | None:
        return self._next()

    def fill(self) -> bool:
        self._fill(FILL_S)
        return True  # it waits itself where there is no room

    def _prepare(self) -> None:
        super()._prepare()
        self.cluster = self._link.name
        self._functions = AckFunctions(self.cluster, self._acknowledge, self._reject)

    def _received(self, messages: Sequence[Message]) -> None:
        self._link.answered()
        super()._received(messages)
