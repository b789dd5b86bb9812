"""Clients of confluent-kafka: what their callbacks raise, and questions that are asked again."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.kafka import cluster
from offsetmgr.kafka.clients import in_short_waits, open_admin, open_consumer
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.librdkafka import GroupClient
from tests.waiting import until


def test_a_client_that_got_no_answer_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a client that a garbage collection ends, maybe in a thread of librdkafka's own.

    There librdkafka aborts the process.
    """
    opened: list[weakref.ref[Any]] = []

    def noted(*arguments: Any) -> Any:
        client = open_admin(*arguments)
        opened.append(weakref.ref(client))
        return client

    monkeypatch.setattr(cluster, "open_admin", noted)
    gc.disable()
    try:
        with ClusterReader("127.0.0.1:1", timeout_s=0.5) as reader:
            reader.partitions_of(["orders"])
        assert opened
        assert not any(client() for client in opened)
    finally:
        gc.enable()


def test_a_question_in_the_middle_of_a_close_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: of two clients one is closed before the other, and raised an error of its own."""
    reader, close = ClusterReader("127.0.0.1:1", timeout_s=0.5), GroupClient.close

    def ask_behind(client: GroupClient, timeout_s: float) -> None:
        close(client, timeout_s)
        with pytest.raises(ManagerStoppedError, match="connections to Kafka are closed"):
            reader.committed(["g"])

    monkeypatch.setattr(GroupClient, "close", ask_behind)
    reader.close()


@pytest.mark.parametrize(
    "code",
    [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN],
)
def test_a_question_is_asked_again_while_no_broker_can_be_reached(code: int) -> None:
    """Whichever of librdkafka's codes says so; a refusal of Kafka's is raised at once."""
    answers: list[KafkaError | str] = [KafkaError(code), KafkaError(code), "yes"]

    def ask(_wait_s: float) -> str:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        return answer

    assert in_short_waits(ask, Deadline(60.0)) == "yes"
    answers = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "yes"]
    with pytest.raises(KafkaException):
        in_short_waits(ask, Deadline(60.0))


def test_a_callback_that_exits_raises_system_exit() -> None:
    """Not the SystemError that confluent-kafka makes of it, as of a signal's handler meanwhile."""
    statuses = [3]

    def exits(_: KafkaError) -> None:
        if statuses:
            sys.exit(statuses.pop())

    config = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0}
    consumer = open_consumer(config, {"error_cb": exits})
    consumer.subscribe(["orders"])
    try:
        with pytest.raises(SystemExit) as raised:
            until(lambda: consumer.poll(0.1))
    finally:
        consumer.close()
    assert raised.value.code == 3
