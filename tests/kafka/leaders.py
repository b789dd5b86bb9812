"""Leaders and coordinators of a real cluster, and their return to the preferred brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka


def coordinator_of(cluster: DevKafka, group: str) -> int:
    """Ask clients that remember nothing which broker coordinates ``group``, until one is told."""

    def coordinator() -> int | None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        described = admin.describe_consumer_groups([group], request_timeout=WAIT_S)[group]
        try:
            return int(described.result(WAIT_S).coordinator.id)
        except KafkaException:  # it is on the move
            return None

    return int(until(coordinator))


def await_coordinator(cluster: DevKafka, group: str, expected: int) -> None:
    """Wait until clients are told that ``expected`` coordinates ``group``."""
    eventually(lambda: coordinator_of(cluster, group), expected)


def give_back_to_preferred(cluster: DevKafka) -> None:
    """Have every partition led by its preferred replica, as Kafka does sooner or later."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    # Only those that another replica led are answered.
    eventually(lambda: admin.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S), {})
