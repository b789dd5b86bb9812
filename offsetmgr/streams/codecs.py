"""Codecs: how values become bytes and bytes values.

Any object with ``encode`` and ``decode`` is a codec.  To run on Spark it has to be picklable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from offsetmgr.errors import InvalidValueError

Convert = Callable[[Any, Any], Any]
"""A serializer or deserializer of confluent-kafka: takes a value and a SerializationContext."""

_INT64: Final = 2**63
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that have no parts."""


class Codec(Protocol):
    """Encodes and decodes the values of a topic.  Both may raise any exception."""

    def encode(self, value: Any) -> bytes:
        """Return ``value`` as bytes; it is never None."""

    def decode(self, data: Any) -> Any:
        """Return the value of ``data``; None only where a processor decodes nil messages."""


def check_codec(codec: object, field: str, *methods: str) -> None:
    """Refuse what lacks one of ``methods``, and the class of a codec instead of an object."""
    if isinstance(codec, type) or not all(callable(getattr(codec, name, None)) for name in methods):
        hint = "give an object with encode() and decode(), such as codecs.String()"
        raise InvalidValueError(field, codec, "is not a codec", hint)


def encoded(codec: Codec, value: Any) -> bytes:
    """Return ``value`` as bytes.  Raises what the codec raises, TypeError if it returns others."""
    data = codec.encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"{type(codec).__name__} returned {type(data).__name__}, not bytes")
    return data


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
        return b"%d" % _fitting(value)

    def decode(self, data: bytes) -> int:
        return _fitting(int(data))


class Json:
    """JSON of plain values, or of the dataclass or ``msgspec.Struct`` given as ``type``.

    JSON has no NaN and no infinity: they become null.
    """

    _format: Any = msgspec.json

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 -- msgspec's name
        self.type = type

    def encode(self, value: Any) -> bytes:
        data: bytes = self._format.encode(whole(value))
        return data

    def decode(self, data: bytes) -> Any:
        value = self._format.decode(data, type=self.type)
        return value if self.type is Any else whole(value)


class MsgPack(Json):
    """MessagePack of plain values, or of the dataclass or ``msgspec.Struct`` given as ``type``."""

    _format = msgspec.msgpack


class RegistryCodec:
    """The values of one topic, by confluent-kafka's serializer and deserializer of a registry.

    Those hold connections and cannot be sent to Spark's executors.  So ``make`` makes both, once in
    each process; it must be picklable.
    """

    def __init__(self, topic: str, make: Callable[[], tuple[Convert, Convert]]) -> None:
        """``topic`` is what the registry names its schema after, such as ``<group>-table``."""
        self.topic = topic
        self._make = make
        self._made: tuple[Convert, Convert] | None = None

    def encode(self, value: Any) -> bytes:
        encoded: bytes = self._convert(0, value)
        return encoded

    def decode(self, data: bytes) -> Any:
        return self._convert(1, data)

    def _convert(self, way: int, value: Any) -> Any:
        from confluent_kafka.serialization import (  # noqa: PLC0415 -- the extra kafka
            MessageField,
            SerializationContext,
        )

        if self._made is None:
            self._made = self._make()
        return self._made[way](value, SerializationContext(self.topic, MessageField.VALUE))

    def __reduce__(self) -> tuple[type, tuple[str, Callable[[], tuple[Convert, Convert]]]]:
        return type(self), (self.topic, self._make)


def whole(value: Any) -> Any:
    """Return a value that msgspec may have made, with all defaults of its dataclasses in it.

    msgspec writes what is in an instance alone, and of what it has made itself leaves a plain
    default with the class.
    """
    for part in value.values() if type(value) is dict else _parts(value):
        if type(part) not in _PLAIN:
            whole(part)
    return value


def _parts(value: Any) -> Iterable[Any]:
    if dataclasses.is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if hasattr(value, "__dict__"):
            vars(value).update(parts)
        return parts.values()
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple, set, frozenset)) else ()


def _fitting(value: int) -> int:
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{value} does not fit into 64 bits")
    return value


def _wrong(value: object, wanted: str) -> TypeError:
    return TypeError(f"a {type(value).__name__} cannot be encoded: give {wanted}")
