"""Kafka's own log of commits is read whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from offsetmgr.kafka.commit_log import read_commits
from offsetmgr.types import ManagerKey
from tests.chaos.offsets_topic import read_committed

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


def test_commits_are_read_in_order(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """Written by a consumer of another make: rising, falling, with metadata, of two partitions."""
    topic, before_s = new_topic(2), time.time()
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    written = [(0, 5, "a"), (1, 7, ""), (0, 9, "ü" * 200), (0, 3, "back")]
    for partition, offset, metadata in written:
        position = TopicPartition(topic, partition, offset, metadata)
        consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()
    found = list(read_commits(kafka.bootstrap_servers, {group}))
    for number in (0, 1):
        commits = [each for each in found if each.key == ManagerKey(group, topic, number)]
        seen = [(number, each.offset, each.metadata.rstrip("\0")) for each in commits]
        assert seen == [each for each in written if each[0] == number]
        assert all(before_s - 1 < each.at_s <= time.time() for each in commits)
    standing = read_committed(kafka.bootstrap_servers, group, topic, range(2))
    assert standing == {0: 3, 1: 7}
