"""Codecs: how values become bytes and bytes values.

Any object with ``encode`` and ``decode`` is a codec.  To run on Spark it has to be picklable.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

_INT64: Final = 2**63


class Codec(Protocol):
    """Encodes and decodes the values of a topic.  Both may raise any exception."""

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes; it is never None."""

    def decode(self, data: Any) -> Any:
        """Return the value of ``data``; None only where a processor decodes nil messages."""


class Bytes:
    """Bytes as they are."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise _wrong(value, "bytes")
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class String:
    """Text in UTF-8."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise _wrong(value, "a str")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class Int64:
    """Whole numbers of 64 bits, written as decimal text."""

    def encode(self, value: int) -> bytes:
        if type(value) is not int:
            raise _wrong(value, "an int")
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"{value} does not fit into 64 bits")
        return b"%d" % value

    def decode(self, data: bytes) -> int:
        value = int(data)
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"{value} does not fit into 64 bits")
        return value


class Json:
    """JSON of plain values, or of the dataclass or ``msgspec.Struct`` given as ``type``.

    JSON has no NaN and no infinity: they become null.
    """

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 -- msgspec's name
        self.type = type

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data, type=self.type)


class MsgPack:
    """MessagePack of plain values, or of the dataclass or ``msgspec.Struct`` given as ``type``."""

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 -- msgspec's name
        self.type = type

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data, type=self.type)


def _wrong(value: object, wanted: str) -> TypeError:
    return TypeError(f"a {type(value).__name__} cannot be encoded: give {wanted}")
