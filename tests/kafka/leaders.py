"""Leaders and coordinators of a real cluster, and their return to the preferred brokers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

WAIT_S = 60.0
"""Far beyond what anything here takes: a guard, not a measure."""


def coordinator_of(cluster: DevKafka, group: str) -> int:
    """Ask clients that remember nothing which broker coordinates ``group``, until one is told."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        described = admin.describe_consumer_groups([group], request_timeout=WAIT_S)[group]
        with contextlib.suppress(KafkaException):  # it is on the move
            number: int = described.result(WAIT_S).coordinator.id
            return number
    pytest.fail(f"no broker coordinates {group} after {WAIT_S} s")


def await_coordinator(cluster: DevKafka, group: str, expected: int) -> None:
    """Wait until clients are told that ``expected`` coordinates ``group``."""
    deadline_s = time.monotonic() + WAIT_S
    while (found := coordinator_of(cluster, group)) != expected:
        if time.monotonic() > deadline_s:
            pytest.fail(f"{group} is coordinated by {found}, not by broker {expected}")


def give_back_to_preferred(cluster: DevKafka) -> None:
    """Have every partition led by its preferred replica, as Kafka does sooner or later."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        elsewhere = admin.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S)
        if not elsewhere:  # only those that another replica led are answered
            return
    pytest.fail(f"still not led by their preferred replicas: {elsewhere}")
