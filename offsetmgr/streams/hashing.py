"""Partitions of keys: FNV-1a with 32 bits, as goka and librdkafka's ``partitioner=fnv1a``.

Java's clients and librdkafka's defaults use other hashes.  Whatever writes a topic that a processor
or view reads should use this one: messages of a key in two partitions have no order.
"""

from __future__ import annotations

from typing import Final

_OFFSET_BASIS: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_SIGN: Final = 0x80000000
_MASK: Final = 0xFFFFFFFF


def fnv1a(data: bytes) -> int:
    """Return the hash of ``data``, 0 to 2^32-1."""
    value = _OFFSET_BASIS
    for byte in data:
        value = (value ^ byte) * _PRIME & _MASK
    return value


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of ``key`` in a topic of that many partitions."""
    value = fnv1a(key)
    # The absolute value of the hash as a signed number comes before the modulo, as in goka.
    return (value if value < _SIGN else (_MASK + 1) - value) % partitions
