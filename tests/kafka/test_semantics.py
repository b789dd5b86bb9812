"""The managers' promises on a real Kafka: external commits, ends of logs, deleted topics."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.conftest import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import StopResult
    from tests.conftest import TopicFactory

WAIT_S = 60.0
"""Far beyond what anything here takes: a guard, not a measure."""


class Node:
    """One factory on a real Kafka, and somebody else beside it."""

    def __init__(self, kafka: DevKafka, group: str, **settings: Any) -> None:
        config: dict[str, str | int | float | bool] = {"bootstrap.servers": kafka.bootstrap_servers}
        self.kafka = kafka
        self.group = group
        self.admin = AdminClient(config)
        self.producer = Producer(config)
        self.coordinator = KafkaCoordinator(config, clients=1)
        self.factory = Factory(
            self.coordinator,
            CommitSettings(commit_interval_s=0.05, verify_interval_s=0.5, **settings),
        )

    def holds(self, topic: str) -> OffsetAndMetadata | None:
        """The committed offset in Kafka."""
        where = TopicPartition(topic, 0)
        return (
            self.coordinator.fetch(self.group, [where], WAIT_S).get(timeout=WAIT_S).offsets[where]
        )

    def reset(self, topic: str, offset: int) -> None:
        """Commit as ``kafka-consumer-groups --reset-offsets`` does."""
        wanted = ConsumerGroupTopicPartitions(self.group, [KafkaPartition(topic, 0, offset)])
        self.admin.alter_consumer_group_offsets([wanted])[self.group].result(WAIT_S)

    def produce(self, topic: str, count: int) -> None:
        """Make the log hold ``count`` records more."""
        for _ in range(count):
            self.producer.produce(topic, b"x", partition=0)
        assert self.producer.flush(WAIT_S) == 0

    def flush(self, handle: ManagerHandle) -> StopResult:
        """Commit now."""
        return self.factory.flush([handle.key], WAIT_S).get(timeout=WAIT_S)[handle.key]

    def told(self, handle: ManagerHandle, code: str) -> str:
        """Wait until an error of that code is told; its text."""
        while True:
            error = handle.errors().get(timeout=WAIT_S)
            if error.code == code:
                return str(error)


@contextmanager
def node(kafka: DevKafka, group: str, **settings: Any) -> Iterator[Node]:
    """Start one, and end it."""
    made = Node(kafka, group, **settings)
    try:
        yield made
    finally:
        made.factory.stop(0.0)
        made.coordinator.close(WAIT_S)


@pytest.mark.fault(7)
def test_a_reset_by_a_tool_is_noticed_and_followed(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """It counts as committed; the next submit goes over a lower one."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 20)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(13)
        assert here.flush(handle).uncommitted is None
        here.reset(topic, 7)
        assert "it is 7 now" in here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
        assert handle.status().committed == OffsetAndMetadata(7)
        handle.submit(9)
        assert here.flush(handle).uncommitted is None
        assert here.holds(topic) == OffsetAndMetadata(9)


@pytest.mark.fault(7)
def test_each_of_two_services_without_a_fence_is_told_of_the_others_commit(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """Both commit; whoever finds what is not its own says so, with both offsets."""
    topic = new_topic()
    with node(kafka, group) as first, node(kafka, group) as second:
        first.produce(topic, 40)
        one = first.factory.spawn(group, topic, 0)
        one.submit(10)
        assert first.flush(one).uncommitted is None
        other = second.factory.spawn(group, topic, 0)
        assert other.initial_offset(timeout=WAIT_S) == OffsetAndMetadata(10)
        other.submit(20)
        assert second.flush(other).uncommitted is None
        told = first.told(one, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 10: somebody else changed it: it is 20 now" in told
        one.submit(30)
        assert first.flush(one).uncommitted is None
        told = second.told(other, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 20: somebody else changed it: it is 30 now" in told
        assert second.holds(topic) == OffsetAndMetadata(30)


@pytest.mark.fault(24)
def test_an_offset_outside_the_log_is_reported(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """A log of three records: Kafka itself would take any offset."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 3)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(1000)
        assert here.flush(handle).uncommitted is None
        assert "which holds 0 to 3" in here.told(handle, "OFFSET_OUTSIDE_LOG")
        assert here.holds(topic) == OffsetAndMetadata(1000)


@pytest.mark.fault(23)
def test_a_topic_made_anew_with_as_many_records_is_told_by_its_id(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """The committed offset lies within the new log, but counts records of the old one."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 20)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(10)
        assert here.flush(handle).uncommitted is None
        here.reset(topic, 30)
        assert "holds 0 to 20" in here.told(handle, "OFFSET_OUTSIDE_LOG")
        here.admin.delete_topics([topic])[topic].result(WAIT_S)
        here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
        create_topic(kafka, topic, 1)
        here.produce(topic, 20)
        handle.rewind(11)
        assert here.flush(handle).uncommitted is None
        assert "the topic was made anew, as " in here.told(handle, "TOPIC_RECREATED")
        assert here.holds(topic) == OffsetAndMetadata(11)
