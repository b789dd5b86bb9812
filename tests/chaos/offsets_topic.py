"""The whole history of what Kafka has committed, read from ``__consumer_offsets`` itself.

The records are decoded by hand (``OffsetCommitKey`` and ``OffsetCommitValue`` of Kafka), so that
neither our own code nor a group coordinator stands between the log and the checker.
"""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TOPIC: Final = "__consumer_offsets"

_KEY_VERSIONS: Final = (0, 1)
"""Of offsets; 2 and more are the groups' own records."""
_FLEXIBLE: Final = 4
"""From this version of the value on, lengths are varints."""
_EPOCH: Final = 3
"""From this version of the value on, a leader epoch follows the offset."""
_POLL_S: Final = 0.5
_ANSWER_S: Final = 2.0
_PAUSE_S: Final = 0.1
_READ_S: Final = 90.0


class Position(NamedTuple):
    """Whose offset a record speaks of."""

    group: str
    topic: str
    partition: int


class Committed(NamedTuple):
    """One commit as it stands in the log; ``offset`` is None where it was forgotten."""

    position: Position
    offset: int | None
    metadata: str = ""
    at_s: float = 0.0
    """When the coordinator took it, by the broker's wall clock."""


class _Bytes:
    """Reads the fields of a record one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        """A big-endian number of ``struct``'s format ``code``."""
        (value,) = struct.unpack_from(f">{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def text(self) -> str:
        """A string with a length of two bytes before it."""
        return self._take(self.number("h"))

    def compact_text(self) -> str:
        """A string with its length plus one before it, as an unsigned varint."""
        length = shift = 0
        while True:
            byte = self.number("B")
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._take(length - 1)

    def _take(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length : self._at].decode()


def decode(key: bytes, value: bytes | None) -> Committed | None:
    """The commit that a record of the topic stands for; None where it stands for none."""
    fields = _Bytes(key)
    if fields.number("h") not in _KEY_VERSIONS:
        return None
    position = Position(fields.text(), fields.text(), fields.number("i"))
    if value is None:
        return Committed(position, None)
    fields = _Bytes(value)
    version = fields.number("h")
    offset = fields.number("q")
    if version >= _EPOCH:
        fields.number("i")
    metadata = fields.compact_text() if version >= _FLEXIBLE else fields.text()
    return Committed(position, offset, metadata, fields.number("q") / 1_000)


def _consumer(bootstrap_servers: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def read_commits(bootstrap_servers: str, groups: Collection[str]) -> list[Committed]:
    """Every commit of ``groups``, those of one partition in the order of the log.

    Raises TimeoutError where the log cannot be read to its end in 90 s.
    """
    consumer = _consumer(bootstrap_servers, "chaos-reader")
    try:
        return [each for each in _read(consumer) if each.position.group in groups]
    finally:
        consumer.close()


def _read(consumer: Consumer) -> list[Committed]:
    deadline = time.monotonic() + _READ_S
    numbers = consumer.list_topics(TOPIC, timeout=_READ_S).topics[TOPIC].partitions
    unread: dict[int, int] = {}
    """Where each partition ends."""
    for number in numbers:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), _READ_S)
        if end:
            unread[number] = end
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in unread])
    found: list[Committed] = []
    while unread:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{TOPIC} was not read to its end within {_READ_S} s: {unread}")
        for message in consumer.consume(1_000, _POLL_S):
            key = message.key()
            if message.error() is None and key is not None:
                commit = decode(key, message.value())
                found += [] if commit is None else [commit]
        for position in consumer.position([TopicPartition(TOPIC, each) for each in unread]):
            if position.offset >= unread[position.partition]:
                del unread[position.partition]
    return found


def read_committed(
    bootstrap_servers: str, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, int]:
    """The offset of each partition as the group's coordinator answers it now.

    A partition with nothing committed is absent.  Raises TimeoutError.  The metadata is left
    alone: librdkafka reads on behind its end where no NUL stands there.
    """
    wanted = [TopicPartition(topic, number) for number in partitions]
    deadline = time.monotonic() + _READ_S
    consumer = _consumer(bootstrap_servers, group)
    try:
        while time.monotonic() < deadline:
            # It fails while the coordinator is being looked for.
            with contextlib.suppress(KafkaException):
                answers = consumer.committed(wanted, timeout=_ANSWER_S)
                if all(each.error is None for each in answers):
                    return {each.partition: each.offset for each in answers if each.offset >= 0}
            time.sleep(_PAUSE_S)
    finally:
        consumer.close()
    raise TimeoutError(f"the coordinator of group {group} did not answer within {_READ_S} s")
