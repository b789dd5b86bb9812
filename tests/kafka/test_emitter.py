"""Emitters on a real Kafka."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from confluent_kafka import Consumer

from offsetmgr import errors
from offsetmgr.clusters import MultiClusterWriter, ProducerRecord, WriteErrors
from offsetmgr.errors import InvalidValueError, KafkaRequestError, ManagerStoppedError
from offsetmgr.streams import EmitterClosedError, ProcessorError, codecs
from offsetmgr.streams.kafka import kafka_emitter
from offsetmgr.streams.messages import partition_of
from offsetmgr.streams.topics import TopicManager
from tests.fork import in_child
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from concurrent.futures import Future

    from offsetmgr.answers import Written
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

AWAY: dict[str, Any] = {
    "bootstrap.servers": "127.0.0.1:1",
    "message.timeout.ms": 100,
    "log_level": 0,
}


def test_messages_arrive_where_views_look_for_them(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """With key, value, headers and tombstones, in the partition of the key's hash."""
    topic = new_topic(5)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    headers = {"app": b"test", "more": None}
    emitter = kafka_emitter(settings, topic, codecs.Json(), default_headers=headers)
    with emitter:
        promises = {f"key-{n}": emitter.emit(f"key-{n}", [n]) for n in range(1_000)}
        last = emitter.emit_sync("", None, headers={"app": b"mine"}, timeout=WAIT_S)
    written = {key: promise.result(0) for key, promise in promises.items()}
    assert all(each.partition == partition_of(key.encode(), 5) for key, each in written.items())
    written[""] = last

    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: dict[bytes, object] = {}
    while len(read) < len(written):
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        key, value = message.key() or b"", message.value()
        assert (message.partition(), message.offset()) == written[key.decode()]
        read[key] = (value, dict(message.headers() or ()))
    consumer.close()
    assert read[b"key-7"] == (b"[7]", headers)
    assert read[b""] == (None, {"app": b"mine", "more": None})
    with pytest.raises(EmitterClosedError):
        emitter.emit("late", 1)


def test_records_as_large_as_their_topic_takes_are_written(
    kafka: DevKafka, unique_name: str
) -> None:
    """The topic's limit counts, not librdkafka's of 1,000,000 bytes; a limit of the user's does."""
    servers = kafka.bootstrap_servers
    with TopicManager(servers) as manager:
        manager.ensure_topic(unique_name, 1, {"max.message.bytes": "3000000"})
    large, too_large = "x" * 2_000_000, "x" * 3_100_000
    with kafka_emitter(servers, unique_name, codecs.String()) as emitter:
        emitter.emit_sync("key", large, timeout=WAIT_S)
    with MultiClusterWriter({"here": servers}, unique_name) as writer:
        writer.write_messages([ProducerRecord(large)])
        with pytest.raises(WriteErrors, match=r"1 of 2 messages .*MSG_SIZE_TOO_LARGE"):
            writer.write_messages([ProducerRecord("small"), ProducerRecord(too_large)])
    limited = kafka_emitter(
        {"bootstrap.servers": servers, "message.max.bytes": 5_000}, unique_name, codecs.String()
    )
    with pytest.raises(KafkaRequestError, match="too large"):
        limited.emit_sync("key", large, timeout=WAIT_S)


def test_a_callback_of_a_message_may_emit_exit_and_cancel() -> None:
    """It runs in the producer's thread, which has to go on and make room in a full queue.

    So does a callback of the application's settings.
    """
    left = threading.Event()

    def leave(_statistics: str) -> None:
        left.set()
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit

    away = AWAY | {"stats_cb": leave, "statistics.interval.ms": 1}
    emitter = kafka_emitter({**away, "queue.buffering.max.messages": 3}, "topic", codecs.String())
    again: list[Future[Written]] = []

    def retry(promise: Future[Written]) -> NoReturn:
        assert not promise.cancel()
        if len(again) < 6:
            again.append(emitter.emit("key", "again"))
        raise SystemExit

    assert left.wait(WAIT_S)
    for _ in range(6):
        emitter.emit("key", "value").add_done_callback(retry)
    with pytest.raises(KafkaRequestError, match="write to topic: "):
        emitter.finish()
    assert all(promise.exception(0) for promise in again)
    with pytest.raises(EmitterClosedError, match="topic is finished, so key 'late'"):
        emitter.emit("late", "value")


def test_a_wait_in_a_callback_of_a_message_is_refused() -> None:
    """It would hold up the report for which it waits; ``finish`` calls some itself."""
    emitter = kafka_emitter(AWAY, "topic", codecs.String())
    errors: list[str] = []

    def wait(_promise: Future[Written]) -> None:
        for call in (emitter.finish, lambda: emitter.emit_sync("key", "value")):
            with pytest.raises(ProcessorError) as raised:
                call()
            errors.append(str(raised.value))

    for _ in range(100):
        emitter.emit("key", "value").add_done_callback(wait)
    with pytest.raises(KafkaRequestError, match="write to topic: "):
        emitter.finish()
    refused = "an emitter cannot wait in a callback of a message"
    assert {error[: len(refused)] for error in errors} == {refused}
    assert len(errors) == 200


def test_an_unwritten_message_is_reported() -> None:
    """The promise has the error, emit_sync raises it at once, and finish raises the first one.

    One that is late is named; it was an error without a text, on Python 3.10 no TimeoutError.
    """
    emitter = kafka_emitter(AWAY, "topic", codecs.String())
    with pytest.raises(
        errors.OffsetTimeoutError, match=r"key 'late' was not written .* within 0\.01 s"
    ):
        emitter.emit_sync("late", "value", timeout=0.01)
    promise = emitter.emit("key", "value")
    with pytest.raises(KafkaRequestError, match="write to topic: "):
        promise.result(WAIT_S)
    with pytest.raises(KafkaRequestError, match="write to topic: "):
        emitter.emit_sync("key", "value", timeout=WAIT_S)
    with pytest.raises(KafkaRequestError, match="write to topic: "):
        emitter.finish()
    emitter.finish()
    with pytest.raises(InvalidValueError, match="partitioner 'murmur2' cannot be set; remove it"):
        kafka_emitter({**AWAY, "partitioner": "murmur2"}, "topic", codecs.String())
    with pytest.raises(InvalidValueError, match="refused by librdkafka"):
        kafka_emitter({**AWAY, "linger.msec": 5}, "topic", codecs.String())


def test_an_emitter_of_another_process_is_refused() -> None:
    """A fork takes no threads along: its messages were lost, and ``finish`` never returned."""
    emitter = kafka_emitter(AWAY, "topic", codecs.String())

    def use() -> None:
        with pytest.raises(ManagerStoppedError, match="was made by another process"):
            emitter.emit("key", "value")
        emitter.finish()

    in_child(use)
    emitter.finish()
