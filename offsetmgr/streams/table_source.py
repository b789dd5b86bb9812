"""The log of a table's topic in Kafka, as views read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import (
    KafkaError,
    TopicCollection,
    TopicPartition,
)

from offsetmgr.codes import UNKNOWN_TOPIC
from offsetmgr.errors import KafkaRequestError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import checked_config
from offsetmgr.kafka.errors import request_error
from offsetmgr.kafka.topics import EARLIEST, LATEST, id_of
from offsetmgr.streams.errors import TopicsError, made_anew
from offsetmgr.types import PartitionRange, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from confluent_kafka import Message

_CHUNK: Final = 250
"""Most messages of a read: fewer than start Python's garbage collector, whose full runs took half
of a recovery's time."""
_ANSWERS: Final = 3
"""Description, start and end of a log."""
_AWAY: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 -- its public name
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 -- its public name


class TableTopic(NamedTuple):
    """A table's topic."""

    topic_id: str
    """Another one once the topic was deleted and made anew; empty with brokers before 2.8."""
    partitions: int


class KafkaTable:
    """A topic and the consumers of its partitions."""

    def __init__(
        self, config: str | Mapping[str, object], topic: str, *, timeout_s: float = 30.0
    ) -> None:
        """``config`` is the bootstrap servers or librdkafka's settings.  Raises InvalidValueError.

        ``timeout_s`` is for each request.
        """
        self.topic = check_topic(topic)
        settings = checked_config(config)
        self._reader = ClusterReader(settings, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._topic_id = ""
        self._settings: dict[str, Any] = {
            # librdkafka's own, 1 MB and a second's pause whenever a queue is full, slow a recovery.
            "max.partition.fetch.bytes": 8 * 1024**2,
            "fetch.queue.backoff.ms": 5,
            **settings,
            "group.id": "offsetmgr-view",  # it joins no group and commits nothing
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }

    def describe(self) -> TableTopic:
        """Return what the topic is now.  Raises TopicsError, KafkaRequestError."""
        try:
            found = self._reader.result(self._description(), f"description of topic {self.topic}")
        except KafkaRequestError as error:
            if error.info.code != UNKNOWN_TOPIC:
                raise
            fix = "create it, or start what writes the table"
            raise TopicsError(f"topic {self.topic} does not exist: {fix}") from None
        numbers = sorted(each.id for each in found.partitions)
        if numbers != list(range(len(numbers))):
            raise TopicsError(f"topic {self.topic} has a gap: its partitions are {numbers}")
        self._topic_id = id_of(found.topic_id)
        return TableTopic(self._topic_id, len(numbers))

    def ask_range(
        self,
        partition: int,
        answer: Callable[[PartitionRange | KafkaRequestError | TopicsError], object],
    ) -> None:
        """Call ``answer`` with the range of a partition's log, in a thread of librdkafka's."""
        where = TopicPartition(self.topic, partition)
        found: list[Any] = []

        def ask() -> None:
            if found:
                asked = {where: LATEST if len(found) > 1 else EARLIEST}
                sent = self._reader.admin.list_offsets(asked, request_timeout=self._timeout_s)
                sent[where].add_done_callback(take)
            else:
                self._description().add_done_callback(take)

        def take(pending: Future[Any]) -> None:
            error = pending.exception()
            if error is not None:
                answer(request_error(f"log of {self.topic}/{partition}", error))
                return
            found.append(pending.result())
            if len(found) < _ANSWERS:
                ask()
                return
            description, first, last = found
            if id_of(description.topic_id) == self._topic_id:
                answer(PartitionRange(int(first.offset), int(last.offset)))
            else:
                answer(TopicsError(made_anew(self.topic)))

        ask()

    def open(self, partition: int, start: int) -> KafkaLog:
        return KafkaLog(self._settings, TopicPartition(self.topic, partition, start))

    def close(self) -> None:
        self._reader.close()

    def _description(self) -> Future[Any]:
        asked = TopicCollection([self.topic])
        sent = self._reader.admin.describe_topics(asked, request_timeout=self._timeout_s)
        pending: Future[Any] = sent[self.topic]
        return pending


class KafkaLog:
    """A consumer of one partition.  For one thread at a time."""

    def __init__(self, settings: Mapping[str, Any], start: TopicPartition) -> None:
        self._where = start
        self._failed: KafkaError | None = None
        self._at_end = False
        self._consumer = open_consumer(settings, {"error_cb": self._fail})
        self._consumer.assign([start])

    def read(self) -> list[Message]:
        found = self._consumer.consume(_CHUNK, timeout=0)
        messages = [each for each in found if each.error() is None]
        if messages:
            self._at_end = False
        for each in found if len(messages) < len(found) else ():
            error = each.error()
            self._at_end = error is not None and error.code() == _END
            if error is not None and not self._at_end:
                self._failed = error
        if self._failed is not None and not messages:
            what = f"read of {self._where.topic}/{self._where.partition}"
            raise request_error(what, self._failed, right="READ", topic=self._where.topic)
        return messages

    def at_end(self) -> bool:
        return self._at_end

    def high_watermark(self) -> int | None:
        known = self._consumer.get_watermark_offsets(self._where, cached=True)
        return known[1] if known[1] >= 0 else None

    def close(self) -> None:
        self._consumer.close()

    def _fail(self, error: KafkaError) -> None:
        """Take in an error of the client; it connects again to a single broker by itself."""
        if error.code() == _AWAY or error.fatal():
            self._failed = error
