"""Bad input of readers and writers is refused at the door, before anything is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message

from offsetmgr.clusters import (
    ClusterMessage,
    MultiClusterAckConsumer,
    MultiClusterReader,
    MultiClusterWriter,
    ProducerRecord,
    WriterSettings,
)
from offsetmgr.consumer import AckSettings, ConsumerSettings, RetryPolicy
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD = {"west": "127.0.0.1:9"}


async def handle_later(message: object) -> None:
    """A handler that ``run`` would never await."""


def reader(clusters: Any = DEAD, topic: str = "orders", **options: Any) -> Callable[[], object]:
    return lambda: MultiClusterReader(clusters, topic, **options)


def acks(clusters: Any = DEAD, group: str = "etl", **settings: Any) -> Callable[[], object]:
    return lambda: MultiClusterAckConsumer(clusters, group, ["orders"], **settings)


def run(handler: Any) -> Callable[[], object]:
    def refused() -> None:
        with MultiClusterAckConsumer(DEAD, "etl", ["orders"]) as consumer:
            consumer.run(handler)

    return refused


def west(name: str, value: object) -> dict[str, dict[str, object]]:
    return {"west": {"bootstrap.servers": "west:1", name: value}}


WRONG: dict[str, Callable[[], object]] = {
    "clusters 'dict' is not a mapping with a cluster": reader({}),
    "clusters 'str' is not a mapping": reader("west:9092"),
    "clusters 'a\\\\nb' is not a name": lambda: MultiClusterWriter({"a\nb": "west:9092"}),
    "bootstrap.servers None is missing": lambda: MultiClusterWriter({"west": {}}),
    "no.such.setting": reader(west("no.such.setting", "1")),
    "enable.idempotence False is set by offsetmgr itself": lambda: MultiClusterWriter(
        west("enable.idempotence", value=False)
    ),
    "transactional.id 'x' cannot be set": lambda: MultiClusterWriter(west("transactional.id", "x")),
    "topic 'a b' is not a legal": reader(topic="a b"),
    "partitions .* cannot be chosen with a group": reader(group="etl", partitions=[0]),
    "group '' is empty": acks(group=""),
    "topics .* is empty": lambda: MultiClusterAckConsumer(DEAD, "etl", []),
    "group 'x+'… .300 characters. has": reader(group="x" * 300),
    "kafka 'auto.offset.reset' is set by the consumer": reader(west("auto.offset.reset", "latest")),
    "kafka 'enable.auto.commit' is set by the consumer": acks(west("enable.auto.commit", "true")),
    "error_cb .* is set by offsetmgr itself": reader(west("error_cb", print)),
    "partitions .* is empty": reader(partitions=[]),
    "settings 5 are those of another consumer": reader(settings=5),
    "settings .* are those of another consumer": acks(settings=ConsumerSettings()),
    "RetryPolicy.name 'a b.retry.1' is not a legal": acks(
        settings=AckSettings(retry=RetryPolicy(name="a b"))
    ),
    "RetryPolicy.name .* is not a legal": acks(
        settings=AckSettings(retry=RetryPolicy((), "x" * 249))
    ),
    "partitions 5 is not a list": reader(partitions=5),
    "stats_cb 5 cannot be called": reader(west("stats_cb", 5)),
    "delays_s 5 is not a list": lambda: RetryPolicy(delays_s=5),  # type: ignore[arg-type]
    "partitions 200000 is too large": lambda: RetryPolicy(partitions=200_000),
    "name 5 is not text": lambda: RetryPolicy(name=5),  # type: ignore[arg-type]
    "retry 'twice' is not a policy": lambda: AckSettings(retry="twice"),  # type: ignore[arg-type]
    "settings 5 has the wrong type; give WriterSettings": lambda: MultiClusterWriter(
        DEAD,
        settings=5,  # type: ignore[arg-type]
    ),
    "handler .* returns before its work is done": run(handle_later),
    "handler 3 cannot be called": run(3),
    "mode 'both' is unknown": lambda: WriterSettings(mode="both"),  # type: ignore[arg-type]
    "fail_over_s 2 is not possible; give seconds from 3": lambda: WriterSettings(fail_over_s=2),
    "fail_back_s -1 is not possible": lambda: WriterSettings(fail_back_s=-1),
}


@pytest.mark.parametrize("message", WRONG)
def test_the_message_names_the_value_and_the_fix(message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        WRONG[message]()


def test_headers_may_be_lists() -> None:
    """confluent-kafka takes tuples alone, and would raise in the middle of a write."""
    record = ProducerRecord("good", topic="orders", headers=[["a", b"1"]])  # type: ignore[list-item]
    assert record.checked(None).headers == [("a", b"1")]


BAD_FIELDS: dict[str, tuple[str, object]] = {
    "value 'int' cannot": ("value", 5),
    "value 'a.udcff' cannot be encoded": ("value", "a\udcff"),
    "key 'list' cannot": ("key", [b"k"]),
    "key '.ud800' cannot be encoded": ("key", "\ud800"),
    "topic '' is missing": ("topic", ""),
    "topic 'a b' is not a legal": ("topic", "a b"),
    "topic 7 is not text": ("topic", 7),
    "partition '0' is a str": ("partition", "0"),
    "partition -1 is negative": ("partition", -1),
    "partition 1.5 is a float": ("partition", 1.5),
    r"headers\[0\] 'a' is not a name with a value": ("headers", {"a": b"1"}),
    "headers None is not a list": ("headers", None),
    "headers 'ab' is not a list": ("headers", "ab"),
    r"headers\[1\] 'b' is not a name with a value": ("headers", [("a", b"1"), "b"]),
    r"headers\[0\] 'int' cannot": ("headers", [("a", 1)]),
    r"headers\[0\] b'a' is not a name": ("headers", [(b"a", b"1")]),
    r"headers\[0\] 'a\\x00b' is not a name": ("headers", [("a\0b", b"1")]),
    r"headers\[0\] 'a.ud800' cannot be encoded": ("headers", [("a\ud800", b"1")]),
    "timestamp_ms '0' is a str": ("timestamp_ms", "0"),
    "timestamp_ms -5 is negative": ("timestamp_ms", -5),
    "timestamp_ms None is a NoneType": ("timestamp_ms", None),
}


@pytest.mark.parametrize("problem", BAD_FIELDS)
def test_a_bad_record_is_refused_with_its_number_and_field(problem: str) -> None:
    """Nothing of its write is written."""
    field, value = BAD_FIELDS[problem]
    good = ProducerRecord("good", topic="orders")
    bad = good._replace(**{field: value})  # type: ignore[arg-type]
    with MultiClusterWriter(DEAD) as writer:
        with pytest.raises(InvalidValueError, match=rf"^records\[1\]\.{problem}"):
            writer.write_messages([good, bad, good])
        with pytest.raises(InvalidValueError, match=r"^records\[1\] 'text' is not a record"):
            writer.write_messages([good, "text"])  # type: ignore[list-item]
        stats = writer.stats()["west"]
        assert (stats.written, stats.failed, stats.retries) == (0, 0, 0)


@pytest.mark.parametrize("odd", [None, "text", ("west", None), ([], Message())])
def test_an_odd_message_to_commit_is_refused(odd: Any) -> None:
    """The error names it; it was an AttributeError of the parts that it lacks."""
    odd = ClusterMessage(*odd) if isinstance(odd, tuple) else odd
    with (
        MultiClusterReader(DEAD, "orders", group="etl") as reader,
        pytest.raises(InvalidValueError, match=r"messages .* is not a message|cluster \[\] is unk"),
    ):
        reader.commit_messages([odd])
