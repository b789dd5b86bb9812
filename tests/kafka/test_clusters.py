"""Reader, writer and acks over two real clusters, while either is killed and brought back."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.clusters import (
    ClusterMessage,
    MultiClusterAckConsumer,
    MultiClusterReader,
    MultiClusterWriter,
    ProducerRecord,
    WriteErrors,
    WriterSettings,
)
from offsetmgr.codes import TIMED_OUT
from offsetmgr.consumer import AckConsumer, AckSettings, ConsumerSettings
from offsetmgr.devkafka.cluster import Broker
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetTimeoutError,
    error_info,
)
from tests.conftest import create_topic
from tests.kafka.messages import produce, running
from tests.kafka.mock_cluster import MockCluster
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka

EXAMPLE = Path(__file__).parents[2] / "examples" / "surviving_writer.py"
PARTITIONS = 3
ORDERS = 1_000
DEAD = "127.0.0.1:9"
"""Nobody listens on the port of the protocol "discard"."""

QUICK = WriterSettings(fail_over_s=3, fail_back_s=1)
PATIENT = WriterSettings(fail_over_s=20)
"""For tests in which a cluster that is merely slow must not be left."""


@pytest.fixture
def clusters(
    breakable_kafka: DevKafka, second_kafka: DevKafka, unique_name: str
) -> Iterator[dict[str, str]]:
    """Two clusters with a topic of the test's name each; both at work before and after."""
    kafkas = {"west": breakable_kafka, "east": second_kafka}
    for kafka in kafkas.values():
        create_topic(kafka, unique_name, PARTITIONS)
    yield {name: kafka.bootstrap_servers for name, kafka in kafkas.items()}
    for kafka in kafkas.values():
        if not kafka.broker(1).running:
            kafka.broker(1).start()


def records(values: range, keys: int = 5) -> list[ProducerRecord]:
    return [ProducerRecord(str(each), f"key-{each % keys}") for each in values]


def written(clusters: dict[str, str], name: str, topic: str, values: range) -> None:
    with MultiClusterWriter({name: clusters[name]}, topic) as writer:
        writer.write_messages(records(values))


def number(message: ClusterMessage) -> int:
    return int(message.message.value() or b"-1")


def next_message(reader: MultiClusterReader) -> ClusterMessage:
    message = reader.fetch_message(timeout=WAIT_S)
    assert message is not None
    return message


def fetched(reader: MultiClusterReader, count: int) -> list[ClusterMessage]:
    return [next_message(reader) for _ in range(count)]


def assert_nothing_comes(reader: MultiClusterReader) -> None:
    with pytest.raises(OffsetTimeoutError):
        reader.read_message(timeout=0.5)


class Traffic:
    """A writer and a reader in threads of their own, and what each of them has seen."""

    def __init__(self, clusters: dict[str, str], topic: str) -> None:
        self.acknowledged: set[int] = set()
        self.read: list[ClusterMessage] = []
        self.writer = MultiClusterWriter(clusters, topic, settings=QUICK)
        self.reader = MultiClusterReader(clusters, topic)
        self._next = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._ended.is_set():
            numbers = range(self._next, self._next + 10)
            self._next += 10
            batch = records(numbers)
            try:
                self.writer.write_messages(batch)
                self.acknowledged.update(numbers)
            except WriteErrors as failed:
                good = [n for n, error in zip(numbers, failed.errors, strict=True) if not error]
                self.acknowledged.update(good)
            self._ended.wait(0.1)

    def _read(self) -> None:
        while (message := self.reader.read_message()) is not None:
            self.read.append(message)

    def numbers(self) -> list[int]:
        return [number(each) for each in self.read]

    def more_acknowledged(self) -> None:
        """Wait until writes are acknowledged that began after the call."""
        after = self._next + 20
        until(lambda: max(list(self.acknowledged), default=0) >= after)

    def stop(self) -> None:
        """End both once all that was acknowledged is read."""
        self._ended.set()
        self._threads[0].join()
        try:
            until(lambda: self.acknowledged <= set(self.numbers()))
        finally:
            self.reader.close()
            self._threads[1].join()
            self.writer.close()

    def check(self) -> None:
        """Nothing acknowledged was lost, nothing more than at-least-once, order in partitions."""
        stats = self.writer.stats()
        places = Counter((c, m.topic(), m.partition(), m.offset()) for c, m in self.read)
        assert max(places.values()) == 1, "a place in a log was read twice"
        twice = sum(count - 1 for count in Counter(self.numbers()).values())
        assert twice <= sum(each.failed for each in stats.values())
        for cluster in stats:
            for partition in range(PARTITIONS):
                mine = [m for c, m in self.read if c == cluster and m.partition() == partition]
                assert mine == sorted(mine, key=lambda each: each.offset() or 0)
                for key in {each.key() for each in mine}:
                    values = [int(each.value() or b"") for each in mine if each.key() == key]
                    assert values == sorted(values), f"{key!r} out of order in {cluster}"


def test_nothing_acknowledged_is_lost_while_clusters_die_and_come_back(
    clusters: dict[str, str], breakable_kafka: DevKafka, second_kafka: DevKafka, unique_name: str
) -> None:
    """The primary dies, then the other; writes and reads go on where one is alive.

    So does the example: every order is in one of the two clusters.
    """
    west, east = breakable_kafka.broker(1), second_kafka.broker(1)
    orders = f"orders-{unique_name}"
    for kafka in (breakable_kafka, second_kafka):
        create_topic(kafka, orders, PARTITIONS)
    options = ["--bootstrap-servers", clusters["west"], "--backup", clusters["east"]]
    options += ["--topic", orders, "--orders", str(ORDERS)]
    command = [sys.executable, str(EXAMPLE), *options]
    traffic = Traffic(clusters, unique_name)
    with ExitStack() as stack:
        stack.callback(traffic.stop)
        example = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        assert example.stdout is not None
        assert "written up to order 9\n" in example.stdout
        example.send_signal(signal.SIGSTOP)  # or it might be done before the cluster is down
        until(lambda: traffic.writer.stats()["west"].current)
        traffic.more_acknowledged()

        west.kill()
        example.send_signal(signal.SIGCONT)
        until(lambda: traffic.writer.stats()["east"].current)
        traffic.more_acknowledged()
        until(lambda: any(each.cluster == "east" for each in traffic.read))
        lines = list(example.stdout)
        assert example.wait(WAIT_S) == 0, lines
        assert any("writes go to cluster east" in line for line in lines)

        east.kill()
        until(lambda: not any(each.up for each in traffic.writer.stats().values()))
        with ThreadPoolExecutor() as pool:
            list(pool.map(Broker.start, [west, east]))
        until(lambda: traffic.writer.stats()["west"].current)
        traffic.more_acknowledged()
    traffic.check()
    told = {str(each).split(":")[0] for each in traffic.reader.errors()}
    assert {"cluster west", "cluster east"} <= told
    with MultiClusterReader(clusters, orders) as reader:
        seen: set[int] = set()
        while len(seen) < ORDERS:
            seen.add(json.loads(next_message(reader).message.value() or b"")["order_id"])


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_random_kills_lose_nothing(
    clusters: dict[str, str], breakable_kafka: DevKafka, second_kafka: DevKafka, unique_name: str
) -> None:
    """Thirty kills and freezes of either cluster, at times of both."""
    chance = random.Random(20)  # noqa: S311 -- the same kills in every run
    brokers = [breakable_kafka.broker(1), second_kafka.broker(1)]
    traffic = Traffic(clusters, unique_name)
    with ExitStack() as stack:
        stack.callback(traffic.stop)
        for _ in range(30):
            broker = chance.choice(brokers)
            if chance.random() < 0.3 and broker.running:
                broker.pause()
                time.sleep(chance.uniform(0.1, 4))
                broker.resume()
            elif broker.running:
                broker.kill()
            else:
                broker.start()
            time.sleep(chance.uniform(0, 2))
        for broker in brokers:
            if not broker.running:
                broker.start()
        traffic.more_acknowledged()
    traffic.check()


def test_a_message_that_no_cluster_can_take_has_its_error_alone(
    clusters: dict[str, str], unique_name: str
) -> None:
    """The others are acknowledged, and the cluster is not given up for it."""
    with MultiClusterWriter(clusters, unique_name, settings=PATIENT) as writer:
        batch = [
            ProducerRecord("good", partition=0),
            ProducerRecord(b"x" * 2_000_000),
            ProducerRecord("good", topic="nowhere-" + unique_name),
            ProducerRecord("of the year 5138", partition=0, timestamp_ms=10**14),
        ]
        with pytest.raises(WriteErrors, match="3 of 4 messages") as caught:
            writer.write_messages(batch)
        first, large, nowhere, future = caught.value.errors
        assert first is None  # Kafka has refused its whole batch for the last record
        assert caught.value.count == 3
        assert "INVALID_TIMESTAMP" in str(future)
        assert "MSG_SIZE_TOO_LARGE" in str(large)
        assert "UNKNOWN_TOPIC" in str(nowhere)
        assert writer.stats()["west"].current
        assert writer.stats()["east"].failed == 0
        assert writer.errors() == []
        assert writer.stats()["west"][2:] == (1, 3, 4, 0, 0, 0)
    with pytest.raises(ManagerStoppedError):
        writer.write_messages([ProducerRecord("late")])


def test_a_close_waits_for_the_writes_of_other_threads(
    clusters: dict[str, str], unique_name: str
) -> None:
    """Each of them reports what is in the log."""
    where = KafkaPartition(unique_name, 0)
    settings = {"bootstrap.servers": clusters["west"], "group.id": unique_name}
    watcher = Consumer(settings)
    batch = [ProducerRecord(str(each), partition=0) for each in range(5_000)]
    writer = MultiClusterWriter({"west": clusters["west"]}, unique_name)
    with ThreadPoolExecutor() as pool:
        write = pool.submit(writer.write_messages, batch)
        until(lambda: watcher.get_watermark_offsets(where, WAIT_S)[1] > 0)
        writer.close()
        write.result(WAIT_S)
    assert watcher.get_watermark_offsets(where, WAIT_S)[1] == len(batch)
    stats = writer.stats()["west"]
    assert (stats.written, stats.bytes) == (len(batch), sum(each.size for each in batch))
    watcher.close()


def test_round_robin_writes_to_each_cluster_in_turn(
    clusters: dict[str, str], unique_name: str
) -> None:
    settings = WriterSettings(mode="round-robin", fail_over_s=WAIT_S)
    with MultiClusterWriter(clusters, unique_name, settings=settings) as writer:
        for each in range(6):
            writer.write_messages(records(range(each, each + 1)))
        assert [each.written for each in writer.stats().values()] == [3, 3]


def test_a_reader_goes_on_beside_a_cluster_that_is_dead_from_the_start(
    clusters: dict[str, str], unique_name: str
) -> None:
    """It is reported once, and does not hold up the end; nor does a callback that raises."""

    def end(_: str) -> None:
        raise SystemExit(1)

    written(clusters, "east", unique_name, range(100))
    east = {"bootstrap.servers": clusters["east"], "statistics.interval.ms": 10, "stats_cb": end}
    with MultiClusterReader({"dead": DEAD, "east": east}, unique_name) as reader:
        found = fetched(reader, 100)
        assert {each.cluster for each in found} == {"east"}
        assert sorted(map(number, found)) == list(range(100))
        until(lambda: not reader.stats()["dead"].up)
        (error,) = reader.errors()
        assert "cluster dead" in str(error)
        reader.set_offset("dead", "first")
        with pytest.raises(OffsetTimeoutError, match=r"within 0\.5 s"):
            reader.fetch_message(timeout=0.5)
        assert reader.errors() == []
        stats = reader.stats()
        assert (stats["dead"].errors, stats["dead"].bytes, stats["east"].errors) == (1, 0, 0)
        assert stats["east"].bytes == sum(len(each.message) for each in found)
    assert reader.read_message() is None
    with pytest.raises(ManagerStoppedError):
        reader.offset("east")


def test_a_partition_without_a_leader_hides_no_other_once_its_cluster_is_back() -> None:
    """Such as one of a broker that stays away; a reader that began in the outage reads the rest."""
    with MockCluster() as mock:
        mock.create_topic("orders", 2)
        produce(mock, "orders", range(10), partitions=2)
        mock.set_leader("orders", -1)
        mock.set_down(1)
        with MultiClusterReader({"west": mock.bootstrap_servers}, "orders") as reader:
            until(lambda: not reader.stats()["west"].up)
            mock.set_up(1)
            assert list(map(number, fetched(reader, 5))) == [1, 3, 5, 7, 9]


def test_a_missing_topic_hides_no_other_once_its_cluster_is_back(
    kafka: DevKafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: a cluster that is asked for one topic to learn whether it answers again."""
    clusters = {"west": kafka.bootstrap_servers}
    create_topic(kafka, unique_name, 1)
    written(clusters, "west", unique_name, range(1))
    away = iter([KafkaRequestError("start", error_info(TIMED_OUT))])
    opened = MultiClusterAckConsumer._open

    def open_once_back(*arguments: Any) -> AckConsumer:
        for error in away:
            raise error
        return opened(*arguments)

    monkeypatch.setattr(MultiClusterAckConsumer, "_open", open_once_back)
    topics = [f"missing-{unique_name}", unique_name]
    with MultiClusterAckConsumer(clusters, unique_name, topics) as consumer:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.value() == b"0"


def test_a_reader_raises_once_no_cluster_can_answer_again(
    kafka: DevKafka, unique_name: str
) -> None:
    """A fenced member is reported once, and ends no other cluster; the last one ends the read."""
    create_topic(kafka, unique_name, 2)
    member = {"bootstrap.servers": kafka.bootstrap_servers, "group.instance.id": "one"}
    clusters = {"west": member, "same": {**member, "group.instance.id": "two"}}
    first = MultiClusterReader(clusters, unique_name, group=unique_name)
    errors: list[OffsetManagerError] = []
    with first:
        until(lambda: all(each.rebalances for each in first.stats().values()))
        with MultiClusterReader({"west": member}, unique_name, group=unique_name):

            def fenced() -> bool:
                errors.extend(first.errors())
                return bool(errors)

            until(fenced)
        assert_nothing_comes(first)
        assert len(errors) == 1
        with (
            MultiClusterReader({"same": clusters["same"]}, unique_name, group=unique_name),
            pytest.raises(KafkaRequestError, match="fenced by other consumer"),
        ):
            first.read_message(timeout=WAIT_S)


def test_a_reader_is_put_anywhere_and_says_where_it_is(
    clusters: dict[str, str], unique_name: str
) -> None:
    hour_ago_s = int(time.time()) - 3_600
    with MultiClusterWriter({"west": clusters["west"]}, unique_name) as writer:
        writer.write_messages(
            ProducerRecord(str(n), partition=1, timestamp_ms=(hour_ago_s + n) * 1_000)
            for n in range(50)
        )
    with MultiClusterReader(clusters, unique_name, partitions=[1]) as reader:
        assert reader.offset("west", 1) is None
        assert list(map(number, fetched(reader, 20))) == list(range(20))
        assert reader.offset("west", 1) == 20
        assert reader.read_lag("west", 1, timeout=WAIT_S) == 30
        until(lambda: reader.lag("west", 1) == 30)

        reader.set_offset("west", 45, 1)
        assert reader.offset("west", 1) == 45
        assert list(map(number, fetched(reader, 5))) == list(range(45, 50))
        reader.set_offset("west", "first")
        assert number(*fetched(reader, 1)) == 0
        later = datetime.fromtimestamp(hour_ago_s + 30, tz=timezone.utc)
        reader.set_offset_at("west", later, timeout=WAIT_S)
        assert number(*fetched(reader, 1)) == 30
        reader.set_offset_at("west", datetime.now(timezone.utc), 1, timeout=WAIT_S)
        assert_nothing_comes(reader)
        reader.set_offset("west", "last")
        assert_nothing_comes(reader)
        reader.set_offset("west", 60, 1)  # beyond the end: it waits for the log to grow
        assert_nothing_comes(reader)
        with MultiClusterWriter({"west": clusters["west"]}, unique_name) as writer:
            writer.write_messages(ProducerRecord(str(n), partition=1) for n in range(50, 65))
        assert list(map(number, fetched(reader, 5))) == list(range(60, 65))
        assert reader.errors() == []
        for wrong in (-1, 1.5, "middle"):
            with pytest.raises(InvalidValueError):
                reader.set_offset("west", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="give one of west, east"):
            reader.lag("north")
        with pytest.raises(InvalidValueError, match="give one of 1"):
            reader.set_offset("west", 0, 2)


def test_prefetched_messages_are_dropped_by_a_move(
    clusters: dict[str, str], unique_name: str
) -> None:
    """In the middle of a long log, again and again; the other partition goes on where it was."""
    count = 2_000
    with MultiClusterWriter({"west": clusters["west"]}, unique_name) as writer:
        writer.write_messages(
            ProducerRecord(str(each), partition=partition)
            for each in range(count)
            for partition in (0, 1)
        )
    chance = random.Random(7)  # noqa: S311
    west = {"west": clusters["west"]}
    with MultiClusterReader(west, unique_name, partitions=[0, 1]) as reader:
        expected = {0: 0, 1: 0}
        for _ in range(8):
            for message in fetched(reader, chance.randrange(1, 300)):
                partition = message.message.partition() or 0
                assert number(message) == expected[partition]
                expected[partition] += 1
            moved = chance.randrange(2)
            expected[moved] = chance.randrange(count // 2)
            reader.set_offset("west", expected[moved], moved)


def test_a_move_leaves_the_other_partitions_where_they_are() -> None:
    """The kind: records skipped as a partition at its log's end began again at a later end."""
    latest = ConsumerSettings(missing="latest")
    with MockCluster() as mock:
        mock.create_topic("orders", 2)
        clusters = {"west": mock.bootstrap_servers}
        with MultiClusterReader(clusters, "orders", settings=latest) as reader:
            until(lambda: reader.lag("west") == 0)
            produce(mock, "orders", range(10), partitions=2)
            consumer = reader._feeds["west"].consumer
            until(lambda: consumer is not None and consumer._work.count() == 10)
            reader.set_offset("west", "first", 0)
            assert sorted(map(number, fetched(reader, 10))) == list(range(10))


def test_a_group_goes_on_in_each_cluster_where_it_was(
    clusters: dict[str, str], unique_name: str
) -> None:
    """Committed messages are not read again, fetched ones are; read_message commits."""
    for name, values in (("west", range(30)), ("east", range(30, 60))):
        written(clusters, name, unique_name, values)
    group = f"group-{unique_name}"
    settings = ConsumerSettings(commit_interval_s=0.1)
    with MultiClusterReader(clusters, unique_name, group=group, settings=settings) as reader:
        first = fetched(reader, 20)
        reader.commit_messages(first, timeout=WAIT_S)
        rest = fetched(reader, 40)
        assert sorted(map(number, first + rest)) == list(range(60))
        with pytest.raises(InvalidValueError, match="offsetmgr reset"):
            reader.set_offset("west", "first")
    assert [each.read for each in reader.stats().values()] == [30, 30]
    with MultiClusterReader(clusters, unique_name, group=group, settings=settings) as reader:
        again = [reader.read_message(timeout=WAIT_S) for _ in range(40)]
        assert sorted(number(each) for each in again if each) == sorted(map(number, rest))
        assert_nothing_comes(reader)
    with MultiClusterReader(clusters, unique_name, group=group) as reader:
        assert_nothing_comes(reader)


def test_acks_come_from_all_clusters_and_go_back_to_their_own(
    clusters: dict[str, str], unique_name: str
) -> None:
    """A rejected message comes again; a restart repeats only what was not acknowledged."""
    for name, values in (("west", range(30)), ("east", range(30, 60))):
        written(clusters, name, unique_name, values)
    settings = AckSettings(commit_interval_s=0.1, nack_delay_s=0.1)
    group = f"group-{unique_name}"
    every = {**clusters, "dead": DEAD}
    rejected: set[bytes | None] = set()
    with MultiClusterAckConsumer(every, group, [unique_name], settings=settings) as consumer:
        found: Counter[tuple[str, bytes | None]] = Counter()
        while sum(found.values()) < 60:
            message = consumer.poll(timeout=WAIT_S)
            assert message is not None
            if message.value() in {b"7", b"37"} and message.tries == 1:
                rejected.add(message.value())
                message.nack()
                continue
            found[message.cluster, message.value()] += 1
            if message.value() not in {b"3", b"33"}:
                message.ack()
        assert rejected == {b"7", b"37"}
        assert found == Counter(
            [("west", str(n).encode()) for n in range(30)]
            + [("east", str(n).encode()) for n in range(30, 60)]
        )
        until(lambda: consumer.pending == 2)
    handled: list[tuple[str, bytes | None]] = []
    consumer = MultiClusterAckConsumer(clusters, group, [unique_name], settings=settings)
    assert consumer.poll(timeout=0) is None
    with running(consumer, lambda each: handled.append((each.cluster, each.value()))):
        until(lambda: len(handled) == 2)
    assert sorted(handled) == [("east", b"33"), ("west", b"3")]
