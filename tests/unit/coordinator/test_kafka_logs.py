"""What Kafka says of topics and their logs, in the port's words."""

from __future__ import annotations

from confluent_kafka import Uuid

from offsetmgr.coordinator.kafka_logs import id_of


def test_a_topic_without_an_id() -> None:
    """An old broker gives none, which is not another one than what a new broker gives later."""
    assert id_of(Uuid(0, 0)) == ""
    assert id_of(Uuid(1, 2)) != id_of(Uuid(1, 3))
