"""Messages as processors read and write them: keys, values and headers are bytes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple, Protocol

from offsetmgr.errors import InvalidValueError

Headers = Mapping[str, "bytes | None"]
HeaderList = Sequence["tuple[str, bytes | None]"]
"""Headers as Kafka keeps them: in order, a name more than once."""

_NONE: Final[Headers] = {}

NO_TIME: Final = datetime.min.replace(tzinfo=timezone.utc)
"""Timestamp of a message that has none."""

MAX_BYTES: Final = 1_048_576
"""Largest record by the defaults of Kafka's producers and brokers."""

PARTITIONER: Final = "fnv1a"
"""librdkafka's name of the hash of ``partition_of``."""

VISIT_HEADER: Final = "offsetmgr-visit"
"""Header of a message in the loop topic that asks for a visit of all rows: the visitor's name."""

_OFFSET_BASIS: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_SIGN: Final = 0x80000000
_MASK: Final = 0xFFFFFFFF

_BATCH_BYTES: Final = 61 + 21
"""Of a batch around its records, and most of a record around its parts."""


class Message(NamedTuple):
    """A message to process."""

    topic: str
    key: bytes
    """Empty where Kafka's is null."""
    value: bytes | None
    partition: int = 0
    offset: int = 0
    timestamp_ms: int = -1
    """Milliseconds since 1970; -1 where there is none."""
    headers: HeaderList | None = None


class Record(NamedTuple):
    """A message to write, in the partition that ``partition_of`` finds for its key."""

    topic: str
    key: bytes
    value: bytes | None
    """None is a tombstone."""
    headers: HeaderList = ()


class Rows(Protocol):
    """Rows of a table to read, such as a dictionary."""

    def get(self, key: bytes, /) -> bytes | None: ...


def update_rows(rows: MutableMapping[bytes, bytes], key: bytes, value: bytes | None) -> None:
    """Apply a record of a table's topic, where None is a tombstone."""
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


def encode_key(key: str) -> bytes:
    """Return a key as Kafka has it.  Raises InvalidValueError."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError):
        fix = "give a str, of bytes by decode_key()"
        raise InvalidValueError("key", key, "is not text", fix) from None


def header_list(headers: Headers | None, defaults: Headers = _NONE) -> HeaderList:
    """Return headers, and those of ``defaults`` that they lack.  Raises InvalidValueError."""
    headers = headers or _NONE
    if not isinstance(headers, Mapping):
        raise InvalidValueError("headers", headers, "is not a mapping", "give names and bytes")
    for name, value in headers.items():
        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InvalidValueError("header", name, "is not text", "give a str of UTF-8") from None
        if not (value is None or isinstance(value, bytes)):
            raise InvalidValueError(f"header {name}", value, "is not bytes", "encode it")
    return tuple({**defaults, **headers}.items())


def kafka_bytes(record: Record) -> int:
    """Return the size of a record as Kafka's limits count it: alone in a batch, uncompressed."""
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode(), value]
    size = _BATCH_BYTES + _length_bytes(len(record.headers))
    return size + sum(_length_bytes(len(part or b"")) + len(part or b"") for part in parts)


def _length_bytes(length: int) -> int:
    """Return the bytes of a length, of which each has 7 bits of twice the number."""
    return max(1, ((2 * length).bit_length() + 6) // 7)


def decode_key(key: bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become surrogates, as in file names."""
    return key.decode("utf-8", "surrogateescape")


def shown_key(key: str) -> str:
    """Return a key as JSON and Arrow can have it; bytes that are not UTF-8 are replaced."""
    return key if key.isascii() else encode_key(key).decode("utf-8", "replace")


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of ``key``, as goka does, and librdkafka by ``partitioner=fnv1a``."""
    value = _OFFSET_BASIS
    for byte in key:
        value = (value ^ byte) * _PRIME & _MASK
    # The absolute value of the hash as a signed number comes before the modulo, as in goka.
    return (value if value < _SIGN else (_MASK + 1) - value) % partitions
