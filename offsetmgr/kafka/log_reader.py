"""Reads logs without joining a group."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.config import OWN_GROUP, checked_config, client_config
from offsetmgr.kafka.errors import request_error
from offsetmgr.text import listed
from offsetmgr.types import MAX_OFFSET, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import KafkaError, Message

    from offsetmgr.errors import KafkaRequestError

BATCH: Final = 1_000
"""Messages that are taken from librdkafka at once."""

_POLL_S: Final = 0.2


def open_reader(config: str | Mapping[str, object]) -> Consumer:
    """Open a consumer that reads committed records and commits no offsets.

    ``config`` is the bootstrap servers, or librdkafka's settings.  Raises InvalidValueError if
    librdkafka refuses a setting.
    """
    ours = {
        "group.id": OWN_GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "log_level": 0,  # it would write to stderr, secrets included
    }
    return open_consumer(client_config(checked_config(config)), ours)


def read_to_end(
    config: str | Mapping[str, object],
    starts: Mapping[TopicPartition, int],
    timeout_s: float,
    stops: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Iterator[Message]:
    """Iterate over messages from ``starts`` to where the logs end now.

    Of a partition in ``stops`` only up to the first message at that offset or after it.  Raises
    KafkaRequestError, with the missing right where that is the cause, InvalidValueError as
    ``open_reader``, and OffsetTimeoutError where they were not read in time.
    """
    deadline = Deadline(timeout_s, "timeout_s")
    consumer = open_reader(config)
    try:
        ends = _ends(consumer, starts, timeout_s)
        consumer.assign([KafkaPartition(*where, starts[where]) for where in ends])
        while ends:
            if deadline.over:
                raise OffsetTimeoutError(f"{listed(ends)} not read to the end in time; give more")
            for message in consume(consumer, _POLL_S):
                where = TopicPartition(message.topic() or "", message.partition() or 0)
                if where in ends:
                    yield message
                    if (message.offset() or 0) >= stops.get(where, MAX_OFFSET):
                        del ends[where]
            # It passes the markers of transactions too, which are not messages.
            for position in consumer.position([KafkaPartition(*where) for where in ends]):
                where = TopicPartition(position.topic, position.partition)
                if position.offset >= ends[where]:
                    del ends[where]
    except KafkaException as error:
        raise read_error(listed({where.topic for where in starts}), error) from error
    finally:
        consumer.close()


def _ends(
    consumer: Consumer, starts: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the ends of the logs that have records from ``starts`` on."""
    ends = {}
    for where, start in starts.items():
        first, end = consumer.get_watermark_offsets(KafkaPartition(*where), timeout_s)
        if max(first, start) < end:
            ends[where] = end
    return ends


def consume(consumer: Consumer, timeout_s: float) -> list[Message]:
    """Return up to BATCH messages that came in ``timeout_s``.  Raises KafkaRequestError."""
    good = []
    for message in consumer.consume(BATCH, timeout_s):
        error = message.error()
        if error is None:
            good.append(message)
        elif not error.retriable():
            raise read_error(message.topic() or "", error)
    return good


def read_error(topic: str, error: KafkaError | KafkaException) -> KafkaRequestError:
    """Return the error to raise where ``topic`` cannot be read."""
    return request_error(f"read of {topic}", error, right="READ", topic=topic)
