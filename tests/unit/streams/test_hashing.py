"""Partitions of keys are those of goka and of librdkafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from offsetmgr.streams.messages import partition_of

if TYPE_CHECKING:
    from confluent_kafka import Message

PARTITIONS = 4
"""The partition count of a topic that librdkafka's mock cluster creates."""


def test_librdkafka_has_the_same() -> None:
    """2,000 keys, the empty one included, go where ``partitioner=fnv1a`` sends them."""
    settings: dict[str, Any] = {"test.mock.num.brokers": 1, "partitioner": "fnv1a"}
    producer = Producer(settings)
    sent: dict[bytes, int] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        sent[key] = partition

    keys = [b"", *(f"key-{number}-{number * 7919}".encode() for number in range(1999))]
    for key in keys:
        producer.produce("partitions", b"", key, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert sent == {key: partition_of(key, PARTITIONS) for key in keys}
    assert set(sent.values()) == set(range(PARTITIONS))
