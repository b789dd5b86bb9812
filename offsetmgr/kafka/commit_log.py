"""Every commit of a group that Kafka still has, read from ``__consumer_offsets`` itself.

Kafka keeps committed offsets as records of this topic, all of a group in one partition.
Compaction removes a record only after a newer one of the same group and partition, so behind the
oldest record that is left of a partition the history is whole.
"""

from __future__ import annotations

import struct
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import KafkaRequestError
from offsetmgr.kafka.clients import in_short_waits
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.kafka.log_reader import consume, open_reader, read_error, read_to_end
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from confluent_kafka import Message

TOPIC: Final = "__consumer_offsets"

TIMEOUT_S: Final = 120.0

_KEY_VERSIONS: Final = (0, 1)
"""Of offsets; higher versions are records of groups and their members."""
_EPOCH: Final = 3
"""From this version of the value on, a leader epoch follows the offset."""
_FLEXIBLE: Final = 4
"""From this version of the value on, lengths are varints."""
_POLL_S: Final = 0.5
_METADATA_S: Final = 10.0


class CommitRecord(NamedTuple):
    """A commit in Kafka's log."""

    key: ManagerKey
    offset: int | None
    """None where the committed offset expired or was deleted."""
    metadata: str = ""
    at_s: float = 0.0
    """Time of the commit by the coordinator's wall clock, in seconds since 1970."""


class _Fields:
    """Reads the fields of a record one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        """Return a big-endian number of ``struct``'s format ``code``."""
        (value,) = struct.unpack_from(f">{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def text(self) -> str:
        """Return a string with a length of two bytes before it."""
        return self._take(self.number("h"))

    def compact_text(self) -> str:
        """Return a string with its length plus one before it, as an unsigned varint."""
        length = shift = 0
        while True:
            byte = self.number("B")
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 -- the bit of a byte that is not the last
                return self._take(length - 1)

    def _take(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length : self._at].decode(errors="replace")


def decode(key: bytes, value: bytes | None, record_s: float = 0.0) -> CommitRecord | None:
    """Return the commit of a record; None for one of another kind, and one cut off or garbled.

    ``record_s`` is the time of the record: a deletion has no other time.
    """
    try:
        return _decode(key, value, record_s)
    except (struct.error, OverflowError):
        return None


def _decode(key: bytes, value: bytes | None, record_s: float) -> CommitRecord | None:
    fields = _Fields(key)
    if fields.number("h") not in _KEY_VERSIONS:
        return None
    name = ManagerKey(fields.text(), fields.text(), fields.number("i"))
    if value is None:
        return CommitRecord(name, None, at_s=record_s)
    fields = _Fields(value)
    version = fields.number("h")
    offset = fields.number("q")
    if version >= _EPOCH:
        fields.number("i")
    metadata = fields.compact_text() if version >= _FLEXIBLE else fields.text()
    return CommitRecord(name, offset, metadata, fields.number("q") / 1_000)


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of the topic that holds a group: Java's hash of its name."""
    units = group.encode("utf-16-be")
    number = 0
    for (unit,) in struct.iter_unpack(">H", units):
        number = (31 * number + unit) & 0xFFFF_FFFF
    signed = number - 2**32 if number >= 2**31 else number
    return 0 if signed == -(2**31) else abs(signed) % partitions


def read_commits(
    config: str | Mapping[str, object],
    groups: Collection[str],
    *,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[CommitRecord]:
    """Yield every commit of ``groups``, those of one partition in the order of the log.

    ``config`` is the bootstrap servers, or librdkafka's settings.  Of transactions only committed
    ones count.  Raises as ``read_to_end``.
    """
    deadline = Deadline(timeout_s, "timeout_s")
    try:
        with closing(open_reader(config)) as consumer:
            count = len(_partitions(consumer, deadline))
    except KafkaException as error:
        failure = read_error(TOPIC, error)
        if does_not_exist(failure):  # nobody has committed anything yet
            return
        raise failure from error
    numbers = sorted({partition_of(group, count) for group in groups})
    starts = {TopicPartition(TOPIC, number): OFFSET_BEGINNING for number in numbers}
    for commit in _decoded(read_to_end(config, starts, deadline.left_s)):
        if commit.key.group in groups:
            yield commit


class CommitTail:
    """New commits of all groups, as they come."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._consumer: Consumer | None = None

    def read(self) -> list[CommitRecord] | None:
        """Return the commits since the last call; None at the first, also after an error.

        Raises KafkaRequestError, InvalidValueError.
        """
        try:
            if self._consumer is None:
                self._consumer = open_reader(self._config)
                numbers = _partitions(self._consumer, Deadline(_METADATA_S))
                self._consumer.assign([KafkaPartition(TOPIC, n, OFFSET_END) for n in numbers])
                return None
            commits: list[CommitRecord] = []
            messages = consume(self._consumer, _POLL_S)
            while messages:
                commits += _decoded(messages)
                messages = consume(self._consumer, 0)
        except KafkaException as error:
            self.close()
            raise read_error(TOPIC, error) from error
        except KafkaRequestError:
            self.close()
            raise
        return commits

    def close(self) -> None:
        """End the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _partitions(consumer: Consumer, deadline: Deadline) -> list[int]:
    topic = in_short_waits(partial(consumer.list_topics, TOPIC), deadline).topics[TOPIC]
    if topic.error is not None:
        raise KafkaException(topic.error)
    return list(topic.partitions)


def _decoded(messages: Iterable[Message]) -> Iterator[CommitRecord]:
    for message in messages:
        key, (_, record_ms) = message.key(), message.timestamp()
        commit = None if key is None else decode(key, message.value(), record_ms / 1_000)
        if commit is not None:
            yield commit
