"""Reads logs without joining a group."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.codes import GROUP_REFUSED
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError, OffsetTimeoutError
from offsetmgr.kafka.clients import in_short_waits, open_consumer
from offsetmgr.kafka.config import OWN_GROUP, checked_config, client_config
from offsetmgr.kafka.errors import request_error, tried
from offsetmgr.text import listed
from offsetmgr.types import MAX_OFFSET, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from confluent_kafka import Message

    from offsetmgr.errors import KafkaRequestError

BATCH: Final = 1_000
"""Messages that are taken from librdkafka at once."""

_POLL_S: Final = 0.2

_ONE_RECORD: Final = {
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "queued.min.messages": 1,
}
"""Settings of a consumer that reads a record here and there."""

_FETCHES: Final = (2_048, 1.0), (65_536, 1.0), (1_048_576, inf)
"""Bytes that are asked of a partition, and seconds for which so many are: little at first, since
all of it passes through Python.  Of batches beyond the limit, Kafka answers one in a request."""

_LIMIT: Final = "fetch.message.max.bytes"

_NEAR: Final = 1_000
"""An offset so few records ahead is reached by reading on."""


class NextRecord(NamedTuple):
    """The first committed record at an offset or behind it."""

    offset: int
    """The record's offset; without a record, the offset at which reading ended."""
    at_s: float | None
    """The time of the record in seconds since 1970; None where there is none."""


def open_reader(
    config: str | Mapping[str, object], more: Mapping[str, object] = MappingProxyType({})
) -> Consumer:
    """Open a consumer that reads committed records and commits no offsets.

    ``config`` is the bootstrap servers, or librdkafka's settings; ``more`` are settings on top.
    An offset out of range is followed by their ``auto.offset.reset``, without it by the log's end.
    Raises InvalidValueError if librdkafka refuses a setting.
    """
    ours = {
        "group.id": OWN_GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "log_level": 0,  # it would write to stderr, secrets included
    }
    return open_consumer(client_config(checked_config(config)), {**ours, **more})


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
    # Retention may cut a log behind its start meanwhile.
    consumer = open_reader(config, {"auto.offset.reset": "earliest"})
    try:
        ends = _ends(consumer, starts, deadline)
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


def next_records(
    config: str | Mapping[str, object],
    offsets: Mapping[TopicPartition, Collection[int]],
    timeout_s: float,
) -> dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError]:
    """Return the first committed record at each of ``offsets`` or behind it.

    The answer of a partition that is not read within ``timeout_s`` is an OffsetTimeoutError, that
    of all where no reader can be opened is the error of that.
    """
    deadline = Deadline(timeout_s, "timeout_s")
    waiting = {where: sorted(set(given), reverse=True) for where, given in offsets.items()}
    found: dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError] = {}
    unread: OffsetManagerError = OffsetTimeoutError(f"not read within {timeout_s:g} s")
    for limit, most_s in _FETCHES:
        if not waiting:
            break
        opened = tried(open_reader, config, _ONE_RECORD | {_LIMIT: limit})
        if isinstance(opened, OffsetManagerError):
            unread = opened
            break
        with closing(opened) as consumer:
            found |= _read_next(consumer, waiting, Deadline(min(most_s, deadline.left_s)))
    return found | {(where, each): unread for where, rest in waiting.items() for each in rest}


def _read_next(
    consumer: Consumer, waiting: dict[TopicPartition, list[int]], deadline: Deadline
) -> dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError]:
    """Return the records at offsets of ``waiting``, falling in each list, and take these out."""
    found: dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError] = {}
    consumer.assign([KafkaPartition(*where, wanted[-1]) for where, wanted in waiting.items()])
    while waiting and not deadline.over:
        done: list[KafkaPartition] = []
        for message in consumer.consume(BATCH, _POLL_S):
            where = TopicPartition(message.topic() or "", message.partition() or 0)
            wanted, at = waiting.get(where), message.offset() or 0
            answer = _next_record(where, message)
            if not wanted or answer is None:
                continue
            is_record = isinstance(answer, NextRecord) and answer.at_s is not None
            first = wanted[-1]
            while wanted and (wanted[-1] <= at or not is_record):
                found[where, wanted.pop()] = answer
            if not wanted:
                del waiting[where]
                done.append(KafkaPartition(*where))
            elif wanted[-1] != first and wanted[-1] - at > _NEAR:
                consumer.seek(KafkaPartition(*where, wanted[-1]))
        consumer.pause(done)
    return found


def _next_record(where: TopicPartition, message: Message) -> NextRecord | OffsetManagerError | None:
    """Return what a message says of its partition; None if it says nothing yet."""
    error, at = message.error(), message.offset() or 0
    if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- public
        return NextRecord(at, None)
    if error is not None:
        return None if error.retriable() else read_error(where.topic, error)
    kind, at_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE or at_ms < 0:
        return OffsetManagerError("records of this topic have no timestamps")
    return NextRecord(at, at_ms / 1_000)


def _ends(
    consumer: Consumer, starts: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the ends of the logs that have records from ``starts`` on."""
    ends = {}
    for where, start in starts.items():
        ask = partial(consumer.get_watermark_offsets, KafkaPartition(*where))
        first, end = in_short_waits(ask, deadline)
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
        # It needs no right on the group that it has to name, and never uses.
        elif not error.retriable() and error.code() != GROUP_REFUSED:
            raise read_error(message.topic() or "", error)
    return good


def read_error(topic: str, error: KafkaError | KafkaException) -> KafkaRequestError:
    """Return the error to raise where ``topic`` cannot be read."""
    return request_error(f"read of {topic}", error, right="READ", topic=topic)
