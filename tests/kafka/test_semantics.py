"""The managers' promises on a real Kafka: external commits, ends of logs, deleted topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.config import CommitSettings
from offsetmgr.types import OffsetAndMetadata
from tests.faults.support import WAIT_S, committing
from tests.kafka.messages import produce

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

LOOKING: Final = CommitSettings(commit_interval_s=0.05, verify_interval_s=0.5)


@pytest.fixture
def admin(kafka: DevKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def reset(admin: AdminClient, group: str, topic: str, offset: int) -> None:
    """Commit as ``kafka-consumer-groups --reset-offsets`` does."""
    wanted = ConsumerGroupTopicPartitions(group, [KafkaPartition(topic, 0, offset)])
    admin.alter_consumer_group_offsets([wanted])[group].result(WAIT_S)


@pytest.mark.fault(7)
def test_a_reset_by_a_tool_is_noticed_and_followed(
    kafka: DevKafka, admin: AdminClient, group: str, topic: str
) -> None:
    """It counts as committed; the next submit goes over a lower one."""
    with committing(kafka.bootstrap_servers, LOOKING) as here:
        produce(kafka, topic, range(20), partitions=1)
        handle = here.spawn(group, topic=topic)
        handle.submit(13)
        assert here.flush(handle) is None
        reset(admin, group, topic, 7)
        assert "it is 7 now" in here.error(handle, "OFFSET_CHANGED_EXTERNALLY")
        assert handle.status().committed == OffsetAndMetadata(7)
        handle.submit(9)
        assert here.flush(handle) is None
        assert here.in_kafka(group, topic=topic) == 9


@pytest.mark.fault(7)
def test_each_of_two_services_without_a_fence_reports_the_others_commit(
    kafka: DevKafka, group: str, topic: str
) -> None:
    """Both commit; whoever finds what is not its own says so, with both offsets."""
    servers = kafka.bootstrap_servers
    with committing(servers, LOOKING) as first, committing(servers, LOOKING) as second:
        produce(kafka, topic, range(40), partitions=1)
        one = first.spawn(group, topic=topic)
        one.submit(10)
        assert first.flush(one) is None
        other = second.spawn(group, topic=topic)
        assert other.initial_offset(timeout=WAIT_S) == OffsetAndMetadata(10)
        other.submit(20)
        assert second.flush(other) is None
        told = first.error(one, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 10: somebody else changed it: it is 20 now" in told
        one.submit(30)
        assert first.flush(one) is None
        told = second.error(other, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 20: somebody else changed it: it is 30 now" in told
        assert second.in_kafka(group, topic=topic) == 30


@pytest.mark.fault(24)
def test_an_offset_outside_the_log_is_reported(kafka: DevKafka, group: str, topic: str) -> None:
    """A log of three records: Kafka itself would take any offset."""
    with committing(kafka.bootstrap_servers, LOOKING) as here:
        produce(kafka, topic, range(3), partitions=1)
        handle = here.spawn(group, topic=topic)
        handle.submit(1000)
        assert here.flush(handle) is None
        assert "which holds 0 to 3" in here.error(handle, "OFFSET_OUTSIDE_LOG")
        assert here.in_kafka(group, topic=topic) == 1000
