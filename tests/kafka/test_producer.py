"""The producer of all rooms, against a real broker and one with scripted errors."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from offsetmgr.answers import Written
from offsetmgr.errors import KafkaRequestError, ManagerStoppedError
from offsetmgr.kafka.clients import NoThreadsError
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.kafka.topics import create_topics
from tests.kafka.leaders import give_back_to_preferred
from tests.kafka.mock_cluster import MockCluster
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from types import FrameType

    from confluent_kafka import KafkaError

    from offsetmgr.devkafka import DevKafka

Answers = Queue[Written | KafkaRequestError]

PRODUCE = 0
"""Kafka's API key of the Produce request."""

OUT_OF_ORDER_SEQUENCE = 45


@pytest.fixture
def answers() -> Answers:
    return Queue()


def create(kafka: DevKafka, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    create_topics(admin, [NewTopic(topic, 1, config=settings)], WAIT_S)


def test_many_messages_fit_a_topic_with_a_small_limit(
    kafka: DevKafka, unique_name: str, answers: Answers
) -> None:
    """No batch is larger than the topic takes: a refused one would take all its messages along.

    Each is reported, also where the application's setting leaves out what is written.
    """
    for _ in range(2):  # one that exists is left as it is
        create(kafka, unique_name, {"max.message.bytes": "20000"})
    slow = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "linger.ms": 200,
        "delivery.report.only.error": True,
    }
    with MessageProducer(slow, max_message_bytes=20_000) as producer:
        for _ in range(100):
            producer.send(unique_name, b"x" * 1_000, None, answers.put)
        found = {answers.get(timeout=WAIT_S) for _ in range(100)}
        # Messages of a refused batch would be sent by a second producer, each alone.
        assert "kafka-producer-single" not in {thread.name for thread in threading.enumerate()}
    assert found == {Written(0, offset) for offset in range(100)}


def test_a_refused_message_takes_no_other_of_its_batch_along(
    kafka: DevKafka, unique_name: str, answers: Answers
) -> None:
    """A compacted topic refuses a message without a key, and all others of its batch."""
    create(kafka, unique_name, {"cleanup.policy": "compact"})
    slow = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 200}
    with MessageProducer(slow) as producer:
        for key in ("1", None, "2", "3"):
            producer.send(unique_name, "value", key, answers.put, headers=[("a", b"1")])
    found = [answers.get(timeout=WAIT_S) for _ in range(4)]
    assert {each.offset for each in found if isinstance(each, Written)} == {0, 1, 2}
    (refused,) = [each for each in found if isinstance(each, KafkaRequestError)]
    assert refused.code == "INVALID_RECORD"


def test_an_added_partition_takes_messages_at_once(
    kafka: DevKafka, unique_name: str, answers: Answers
) -> None:
    """The kind: a client that takes the partitions of its first look for all, for 5 minutes."""
    create(kafka, unique_name, {})
    with MessageProducer(kafka.bootstrap_servers) as producer:
        producer.send(unique_name, "1", None, answers.put, partition=0)
        assert answers.get(timeout=WAIT_S) == Written(0, 0)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_partitions([NewPartitions(unique_name, 3)])[unique_name].result(WAIT_S)

        def is_written() -> bool:
            producer.send(unique_name, "1", None, answers.put, partition=2)
            return isinstance(answers.get(timeout=WAIT_S), Written)

        until(is_written)


@pytest.mark.parametrize("room", [True, False], ids=["at once", "once there is room for it"])
def test_a_producer_is_replaced_after_a_fatal_error(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    """Librdkafka sends nothing any more then; whatever is sent until then is reported.

    The kind: a thread that ends where there is no room for the next client.
    """
    errors: Queue[KafkaError] = Queue()
    with MockCluster() as mock:
        mock.create_topic("orders")
        settings = {"bootstrap.servers": mock.bootstrap_servers, "enable.gapless.guarantee": True}
        producer = MessageProducer(settings, on_error=errors.put_nowait)

        def is_sent() -> bool:
            producer.send("orders", "1", None, answers.put)
            return isinstance(answers.get(timeout=WAIT_S), Written)

        assert is_sent()
        if not room:
            leave_no_room(monkeypatch)
        mock.push_errors(PRODUCE, OUT_OF_ORDER_SEQUENCE)
        assert not is_sent()
        until(lambda: errors.get(timeout=WAIT_S).fatal())
        if not room:
            assert not is_sent()
            monkeypatch.undo()
        until(is_sent)
        producer.close()


def leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no room for the threads of another producer."""
    full = Mock(side_effect=NoThreadsError("no room"))
    monkeypatch.setattr("offsetmgr.kafka.producer.check_thread_room", full)


@pytest.mark.chaos  # as all that need three brokers
def test_a_recreated_topic_is_written_after_a_message_timed_out(
    kafka3: DevKafka,
    unique_name: str,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kind: librdkafka asks a topic's former leader forever after its epochs begin again.

    Messages of another topic that wait at that time are written.  A topic of a broker that was
    away is none: another producer would overtake the messages that wait.
    """
    monkeypatch.setattr("offsetmgr.kafka.producer._FIRST_IDS_S", 0.0)
    monkeypatch.setattr("offsetmgr.kafka.producer._IDS_S", 0.0)
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})

    def write(topic: str = unique_name) -> Written | KafkaRequestError:
        producer.send(topic, "value", None, answers.put)
        return answers.get(timeout=WAIT_S)

    def created_at(*brokers: int) -> bool:
        topic = NewTopic(unique_name, 1, replica_assignment=[[*brokers]])
        with suppress(KafkaException):
            admin.create_topics([topic])[unique_name].result(WAIT_S)
            return True
        return False

    settings = {
        "bootstrap.servers": kafka3.bootstrap_servers,
        "message.timeout.ms": 5_000,
        "linger.ms": 500,
    }
    assert created_at(3, 1)
    other = f"{unique_name}-other"
    create_topics(admin, [NewTopic(other, 1, replica_assignment=[[3]])], WAIT_S)
    others: list[Written | KafkaRequestError] = []
    with MessageProducer(settings) as producer:
        until(lambda: isinstance(write(), Written))
        until(lambda: isinstance(write(other), Written))
        assert isinstance(write(other), Written)  # its id is known now
        kafka3.broker(3).kill()
        assert isinstance(write(other), KafkaRequestError)
        kafka3.broker(3).start()
        until(lambda: isinstance(write(other), Written))
        until(lambda: isinstance(write(), Written))
        assert "another producer" not in caplog.text
        admin.delete_topics([unique_name])[unique_name].result(WAIT_S)
        until(lambda: created_at(2))
        given: list[Written | KafkaRequestError] = []
        sent = 0
        producer.send(unique_name, "value", None, answers.put)
        while not given or not isinstance(given[-1], Written):
            producer.send(other, "value", None, others.append)
            sent += 1
            with suppress(Empty):
                given.append(answers.get(timeout=0.01))
                producer.send(unique_name, "value", None, answers.put)
        assert isinstance(given[0], KafkaRequestError)
        eventually(lambda: len(others), sent)
        assert {type(each) for each in others} == {Written}
        assert f"messages to {unique_name} timed out; another producer" in caplog.text
    give_back_to_preferred(kafka3)


def test_a_message_that_cannot_be_sent_alone_is_reported(
    kafka: DevKafka, unique_name: str, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: a message whose report fails is never answered, nor are the others behind it."""
    create(kafka, unique_name, {"cleanup.policy": "compact"})
    slow = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 200}
    with MessageProducer(slow) as producer:
        leave_no_room(monkeypatch)
        for key in ("1", None, "2"):
            producer.send(unique_name, "value", key, answers.put)
        refused = [answers.get(timeout=WAIT_S) for _ in range(3)]
    assert [getattr(each, "code", "") for each in refused] == ["INVALID_RECORD"] * 3


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_leaves_other_reports_alone(
    kafka: DevKafka, topic: str, answers: Answers, error: BaseException
) -> None:
    """The kind: an exception in the producer's thread, which waited for no further report then."""
    with MessageProducer(kafka.bootstrap_servers) as producer:
        producer.send(topic, "1", None, Mock(side_effect=error))
        producer.send(topic, "2", None, answers.put)
        assert isinstance(answers.get(timeout=WAIT_S), Written)


def test_a_closed_producer_leaves_no_thread(kafka: DevKafka, topic: str, answers: Answers) -> None:
    """The kind: connections that stay until a garbage collection, which may be long in coming."""
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir()))
    gc.disable()
    try:
        with MessageProducer(kafka.bootstrap_servers) as producer:
            producer.send(topic, "1", None, answers.put)
        until(lambda: len(list(tasks.iterdir())) <= before)
    finally:
        gc.enable()
    with pytest.raises(ManagerStoppedError):
        producer.send(topic, "2", None, answers.put)


def test_a_signal_handler_may_send_wherever_it_interrupts_a_send(answers: Answers) -> None:
    """It runs in the thread that holds the producer's locks."""
    away = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = MessageProducer(away)
    left = at = 0

    def interrupt(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sys.setprofile(None)
            producer.send("orders", "inner", None, answers.put)

    while left <= 0:
        left = at = at + 1
        sys.setprofile(interrupt)
        producer.send("orders", "outer", None, answers.put)
        sys.setprofile(None)
    assert at > 5
    producer.close(0)


def test_a_full_queue_refuses_or_waits(answers: Answers) -> None:
    """As the caller wants: one that holds a lock must not wait."""
    away = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 1_000}
    with MessageProducer({**away, "queue.buffering.max.messages": 1}) as producer:
        producer.send("orders", "1", None, answers.put)
        producer.send("orders", "2", None, answers.put)
        full = answers.get(timeout=WAIT_S)
        assert isinstance(full, KafkaRequestError)
        assert full.code == "_QUEUE_FULL"
        producer.send("orders", "3", None, answers.put, wait=True)
        timed_out = [answers.get(timeout=WAIT_S) for _ in range(2)]
    assert [getattr(each, "code", "") for each in timed_out] == ["_MSG_TIMED_OUT"] * 2
