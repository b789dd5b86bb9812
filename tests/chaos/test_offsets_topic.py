"""Kafka's own log of commits is read rightly."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.chaos.offsets_topic import Committed, Position, decode, read_commits, read_committed

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

POSITION = Position("etl", "orders", 3)
KEY = b"\0\1\0\3etl\0\6orders\0\0\0\3"
OFFSET = struct.pack(">q", 42)
TIME = struct.pack(">q", 1_500)


@pytest.mark.parametrize(
    ("version", "value"),
    [
        (1, OFFSET + b"\0\2hi" + TIME + TIME),
        (2, OFFSET + b"\0\2hi" + TIME),
        (3, OFFSET + b"\0\0\0\7" + b"\0\2hi" + TIME),
        (4, OFFSET + b"\0\0\0\7" + b"\3hi" + TIME + b"\0"),
    ],
)
def test_every_version_of_a_commit_is_decoded(version: int, value: bytes) -> None:
    """Brokers of Kafka 2 to 4 write 1 to 4."""
    found = decode(KEY, struct.pack(">h", version) + value)
    assert found == Committed(POSITION, 42, "hi", 1.5)


def test_a_tombstone_is_a_commit_of_nothing() -> None:
    """So that an offset that expired or was deleted is seen."""
    assert decode(KEY, None) == Committed(POSITION, None)


def test_records_of_groups_are_passed_over() -> None:
    """The same topic also holds the members of groups."""
    assert decode(b"\0\2\0\3etl", b"whatever") is None


def test_each_commit_is_read_in_order_and_the_last_one_stands(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Written by a consumer of another make: rising, falling, with metadata, of two partitions."""
    topic, before_s = new_topic(2), time.time()
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    written = [(0, 5, "a"), (1, 7, ""), (0, 9, "ü" * 200), (0, 3, "back")]
    for partition, offset, metadata in written:
        position = TopicPartition(topic, partition, offset, metadata)
        consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()
    found = read_commits(kafka.bootstrap_servers, {group})
    for number in (0, 1):
        commits = [each for each in found if each.position == Position(group, topic, number)]
        seen = [(number, each.offset, each.metadata.rstrip("\0")) for each in commits]
        assert seen == [each for each in written if each[0] == number]
        assert all(before_s - 1 < each.at_s <= time.time() for each in commits)
    standing = read_committed(kafka.bootstrap_servers, group, topic, range(2))
    assert standing == {0: 3, 1: 7}
