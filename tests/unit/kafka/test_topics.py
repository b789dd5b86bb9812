"""Answers about topics and logs that Kafka leaves incomplete."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.coordinator.base import PartitionLog
from offsetmgr.deadlines import Deadline
from offsetmgr.kafka.topics import LATEST, id_of, list_offsets, partition_log


def offset(value: int) -> Future[Any]:
    """An answer to the question where something lies in a log."""
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(offset=value))
    return answer


def test_a_topic_without_an_id() -> None:
    """An old broker gives none, which is not another one than what a new broker gives later."""
    assert id_of(Uuid(0, 0)) == ""
    assert id_of(Uuid(1, 2)) != id_of(Uuid(1, 3))


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("log_start_offset", -1),
        ("high_watermark", -1),
        ("last_stable_offset", -1),
        ("offset_at", -1001),  # without an error, where the leader's connection has ended
    ],
)
def test_a_log_without_an_end(field: str, answer: int) -> None:
    """Kafka may leave an offset open without an error: that is a failure."""
    ends = {"log_start_offset": 1, "high_watermark": 9, "last_stable_offset": 7, "offset_at": -1}
    answered = {each: offset(end) for each, end in ends.items()}
    assert partition_log(answered, Deadline(0)) == PartitionLog(1, 9, last_stable_offset=7)
    failure = partition_log({**answered, field: offset(answer)}, Deadline(0)).failure
    assert failure is not None
    assert failure.detail == "Kafka's answer lacks offsets of the log"


def test_partitions_without_leaders_are_called_so() -> None:
    """Librdkafka answers _NOENT, "No such entity", if none of the partitions has a leader."""
    pending: Future[Any] = Future()
    pending.set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
    failure = partition_log({"high_watermark": pending}, Deadline(0)).failure
    assert failure is not None
    assert (failure.info.name, failure.info.retriable) == ("LEADER_NOT_AVAILABLE", True)


def test_the_ends_of_many_logs_are_asked_for_in_parts() -> None:
    """The kind: a request whose answer librdkafka searches for longer than anybody waits."""
    sizes: list[int] = []

    def answers(asked: dict[KafkaPartition, Any], **_: Any) -> dict[KafkaPartition, Future[Any]]:
        sizes.append(len(asked))
        return {where: offset(where.partition) for where in asked}

    client: Any = SimpleNamespace(list_offsets=answers)
    logs = {KafkaPartition("t", number): LATEST for number in range(2_500)}
    found = list_offsets(client, logs, 1.0)
    assert [found["t", number].result().offset for number in range(2_500)] == list(range(2_500))
    assert max(sizes) <= 1_000
