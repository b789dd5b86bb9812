"""Codecs of a schema registry: confluent-kafka's serializers for Avro, Protobuf, JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[[Any, SerializationContext], Any]


class RegistryCodec:
    """The values of one topic, by a serializer and a deserializer.

    Those hold connections and cannot be sent to Spark's executors.  So ``make`` makes both, once in
    each process; it must be picklable.
    """

    def __init__(self, topic: str, make: Callable[[], tuple[Convert, Convert]]) -> None:
        """``topic`` is what the registry names its schema after, such as ``<group>-table``."""
        self.topic = topic
        self._make = make
        self._made: tuple[Convert, Convert] | None = None

    def encode(self, value: Any) -> bytes:
        encoded: bytes = self._pair()[0](value, self._context())
        return encoded

    def decode(self, data: bytes) -> Any:
        return self._pair()[1](data, self._context())

    def __reduce__(self) -> tuple[type, tuple[str, Callable[[], tuple[Convert, Convert]]]]:
        return type(self), (self.topic, self._make)

    def _pair(self) -> tuple[Convert, Convert]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _context(self) -> SerializationContext:
        return SerializationContext(self.topic, MessageField.VALUE)
