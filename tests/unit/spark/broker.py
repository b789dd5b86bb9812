"""The broker in memory, as tests of this folder change and read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.answers import Failure
from offsetmgr.errors import error_info
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from offsetmgr.coordinator.memory import BrokerState
    from tests.service.support import Running

ORDERS: Final = TopicPartition("orders", 0)
CLICKS: Final = TopicPartition("clicks", 0)
_TOPIC_AUTHORIZATION_FAILED: Final = 29


def offset_of(broker: BrokerState, group: str, partition: TopicPartition = ORDERS) -> int | None:
    """Return the committed offset of a partition."""
    found = broker.committed(group).get(partition)
    return None if found is None else found.offset


def recreate(broker: BrokerState, topic: str, end: int, partitions: int = 1) -> None:
    """Delete a topic and create it again, with records in partition 0 alone."""
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions)
    broker.set_log(TopicPartition(topic, 0), 0, end)


def forbid(broker: BrokerState, topic: str) -> None:
    """Refuse the log of partition 0 for a missing right, until the next ``set_log``."""
    failure = Failure(error_info(_TOPIC_AUTHORIZATION_FAILED))
    broker._logs[topic][0] = broker._logs[topic][0]._replace(failure=failure)


def managers(service: Running) -> int:
    """Return the number of managers that the service keeps."""
    with service.http() as http:
        return len(http.get("/v1/managers").json()["managers"])
