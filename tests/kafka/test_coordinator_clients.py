"""Which client of the pool a group commits over, told by the clients that there are."""

from __future__ import annotations

import threading

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.kafka.mock_cluster import MockCluster

WAIT_S = 30.0


def test_a_released_group_makes_room_for_another() -> None:
    """The next one commits over the client that is free; a further one gets its own."""
    before = set(threading.enumerate())

    def clients() -> int:
        made = set(threading.enumerate()) - before
        return sum(thread.name == "kafka-commits" for thread in made)

    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
    with MockCluster() as mock:
        kafka = KafkaCoordinator({"bootstrap.servers": mock.bootstrap_servers}, clients=2)
        try:
            mock.create_topic("t")
            made = []
            for group in ("a", "b", "c"):
                assert not kafka.commit(group, offsets, WAIT_S).get(timeout=WAIT_S).failures
                made.append(clients())
                if group == "a":
                    kafka.release(group)
        finally:
            kafka.close(timeout_s=WAIT_S)
    assert made == [1, 1, 2]
