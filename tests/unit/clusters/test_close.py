"""Deadlines of questions to a cluster, and closes where nothing would end."""

from __future__ import annotations

import os
import threading
from datetime import datetime, timezone
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.clusters import (
    MultiClusterAckConsumer,
    MultiClusterReader,
    MultiClusterWriter,
    ProducerRecord,
    WriterSettings,
)
from offsetmgr.clusters import reader as reader_module
from offsetmgr.clusters.link import close_all
from offsetmgr.codes import TRANSPORT, UNKNOWN_TOPIC
from offsetmgr.consumer import AckConsumer, GroupConsumer
from offsetmgr.errors import KafkaRequestError, ManagerStoppedError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.stores import open_store
from tests.fork import in_child
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD = "127.0.0.1:9"
NOW = datetime.now(timezone.utc)


class SlowClient:
    """A client whose metadata come once they are wanted; it notes the timeouts of its calls."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()
        self.timeouts: list[float] = []

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        self.timeouts.append(timeout)
        self.asked.set()
        assert self.free.wait(WAIT_S)
        part = type("Partition", (), {"leader": 1})
        answer = type("Topic", (), {"error": None, "partitions": {0: part}})
        return type("Metadata", (), {"topics": {topic: answer}})

    def offsets_for_times(self, asked: list[Any], *, timeout: float) -> list[Any]:
        self.timeouts.append(timeout)
        return asked

    def close(self) -> None:
        """End; the client has nothing to end."""


def test_a_question_to_a_cluster_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither waits for one of another thread, nor has two calls with the whole time each."""
    client = SlowClient()
    monkeypatch.setattr("offsetmgr.clusters.link.open_consumer", lambda *_: client)
    with MultiClusterReader({"west": DEAD}, "orders") as reader:
        assert client.asked.wait(WAIT_S)  # by the reader's own thread
        with pytest.raises(KafkaRequestError, match="did not answer in time"):
            reader.set_offset_at("west", NOW, 0, timeout=0.01)
        client.free.set()
        until(lambda: reader._feeds["west"].numbers == [0])
        client.timeouts.clear()
        reader._feeds["west"].numbers = None
        reader.set_offset_at("west", NOW, timeout=WAIT_S)
        first, second = client.timeouts
        assert second < first <= WAIT_S


def test_a_cluster_that_does_not_answer_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: one cause that the link to the cluster and the member of its group both report."""
    monkeypatch.setattr("offsetmgr.clusters.link._PAUSE_S", 0.0)
    with MultiClusterReader({"west": DEAD}, "orders", group="etl") as reader:
        until(lambda: reader.stats()["west"].retries >= 2)
        assert len(reader.errors()) == 1
        assert reader.stats()["west"].errors == 1


def test_a_cluster_that_comes_back_without_its_topic_is_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kind: a reason that lasts, hidden behind the one that came before it."""
    codes = chain([TRANSPORT, TRANSPORT, KafkaError.LEADER_NOT_AVAILABLE], repeat(UNKNOWN_TOPIC))

    def list_topics(*_: object, timeout: float) -> NoReturn:
        assert timeout
        raise KafkaException(KafkaError(next(codes)))

    client = SlowClient()
    monkeypatch.setattr(client, "list_topics", list_topics)
    monkeypatch.setattr("offsetmgr.clusters.link._PAUSE_S", 0.0)
    monkeypatch.setattr("offsetmgr.clusters.link.open_consumer", lambda *_: client)
    with MultiClusterReader({"west": DEAD}, "orders") as reader:
        until(lambda: reader.stats()["west"].retries >= 5)
        expected = ["_TRANSPORT", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert [each.code for each in reader.errors()] == expected
        assert reader.stats()["west"].errors == 1


def test_a_reader_ends_where_a_read_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a message that an exception of a signal handler loses, and the next mark passes."""

    def interrupted() -> NoReturn:
        raise TimeoutError

    with MultiClusterReader({"west": DEAD}, "orders") as reader:
        monkeypatch.setattr(reader._feeds["west"], "next", interrupted)
        with pytest.raises(TimeoutError):
            reader.fetch_message(timeout=WAIT_S)
        assert reader.closed
        assert reader.fetch_message(timeout=WAIT_S) is None


def test_a_run_sleeps_once_a_cluster_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a loop that takes a whole processor, as nobody takes the news it waits for."""
    consumer = MultiClusterAckConsumer({"west": DEAD}, "etl", ["orders"])
    news, had_news = consumer._news, list[bool]()

    def wait(_: float) -> bool:
        had_news.append(news.is_set())
        if len(had_news) == 2:
            consumer.close()
        return True

    monkeypatch.setattr(consumer, "_start", news.set)  # as the thread of an ended cluster does
    monkeypatch.setattr(news, "wait", wait)
    consumer.run(print)
    assert had_news == [True, False]


def no_use(_: object) -> NoReturn:
    raise ManagerStoppedError("made by another process")


CLIENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "writer": (
        lambda: MultiClusterWriter({"west": DEAD}, "orders"),
        lambda writer: writer.write_messages([ProducerRecord("x")]),
    ),
    "reader": (
        lambda: MultiClusterReader({"west": DEAD}, "orders"),
        lambda reader: reader.fetch_message(timeout=1),
    ),
    "acks of clusters": (
        lambda: MultiClusterAckConsumer({"west": DEAD}, "etl", ["orders"]),
        lambda consumer: consumer.poll(timeout=1),
    ),
    "store": (lambda: open_store(f"kafka://{DEAD}"), lambda store: store.fetch_offsets("etl")),
    "questions": (lambda: ClusterReader(DEAD), lambda reader: reader.topic_ids(["orders"])),
    "group": (lambda: GroupConsumer(DEAD, "etl", ["orders"]), no_use),
    "acks": (lambda: AckConsumer(DEAD, "etl", ["orders"]), no_use),
}
ENDS = [
    "clusters.writer.close_all",
    "clusters.reader.close_all",
    "consumer.member.Member.close",
    "kafka.connections.ConnectionQueue.close",
    "kafka.librdkafka.GroupClient.close",
]


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_child_of_a_fork_uses_and_closes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none of the threads that would answer, or that a close would wait for."""

    def end(*_: object) -> NoReturn:
        os._exit(1)

    make, use = CLIENTS[kind]
    client = make()

    def use_and_close() -> None:
        for name in ENDS:
            monkeypatch.setattr(f"offsetmgr.{name}", end)
        with pytest.raises(Exception, match="made by another process"):
            use(client)
        client.close()

    in_child(use_and_close)
    client.close()


def test_a_close_ends_each_cluster_also_without_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind: an end that fails, or cannot have a thread, and nobody hears of it."""
    ended: list[str] = []
    ends = {"west": lambda: ended.append("west"), "east": lambda: ended.append("east")}

    def no_thread(_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        close_all(ends, WAIT_S)
    assert ended == ["west", "east"]

    def fail() -> NoReturn:
        raise OSError("the disk is full")

    close_all({"north": fail, **ends}, WAIT_S)
    assert len(ended) == 4
    assert "cluster north could not be left: OSError: the disk is full" in caplog.text


def test_a_write_goes_on_behind_a_close_of_a_signal_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kind: a close that waits for the call below it, and takes the connections from it."""
    ended, during = threading.Event(), []
    monkeypatch.setattr("offsetmgr.clusters.writer.close_all", lambda *_: ended.set())
    writer = MultiClusterWriter({"west": DEAD}, "orders", settings=WriterSettings(fail_over_s=3))

    def write(_: object) -> list[None]:
        writer.close()
        during.append(ended.is_set())
        return [None]

    monkeypatch.setattr(writer, "_write", write)
    writer.write_messages([ProducerRecord("x")])
    assert during == [False]
    assert ended.wait(WAIT_S)
    with pytest.raises(ManagerStoppedError, match="is closed"):
        writer.write_messages([ProducerRecord("late")])
    monkeypatch.undo()
    writer.close()


def test_a_close_of_a_signal_handler_does_not_wait_for_the_call_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ack or a mark that it interrupts holds a lock that the close needs."""
    closing: list[threading.Thread] = []

    def close_all(ends: dict[str, Callable[[], None]], _: float) -> None:
        closing.append(threading.current_thread())
        for end in ends.values():
            end()

    monkeypatch.setattr(reader_module, "close_all", close_all)
    consumer = MultiClusterAckConsumer({"west": DEAD}, "etl", ["orders"])
    assert consumer.poll(timeout=0) is None
    feed = consumer._feeds["west"]
    until(lambda: feed.consumer is not None)
    assert feed.consumer is not None
    with feed.consumer._work.lock:  # as an ack does
        consumer.close()
        assert closing[:1] != [threading.current_thread()]
    until(lambda: bool(closing))
    assert closing != [threading.current_thread()]
    consumer.close()
    assert consumer.closed
