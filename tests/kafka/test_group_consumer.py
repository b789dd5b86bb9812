"""Group consumers on a real broker: what is marked is committed, and nothing else."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr import LocalOffsets
from offsetmgr.consumer import (
    AckConsumer,
    ConsumerSettings,
    GroupConsumer,
    Notification,
    OffsetStash,
    PartitionedConsumer,
)
from offsetmgr.consumer.group import BUFFERED
from offsetmgr.devkafka import DevKafkaError
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
from offsetmgr.stores import MemoryOffsetStore
from tests.conftest import create_topic
from tests.interrupted import interrupted
from tests.kafka.messages import (
    PARTITIONS,
    committed,
    filled,
    number_of,
    polled,
    produce,
    reading_streams,
    send,
)
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from offsetmgr.consumer.settings import Strategy
    from offsetmgr.devkafka import DevKafka


def member(
    kafka: DevKafka, group: str, settings: ConsumerSettings | None = None, **options: Any
) -> GroupConsumer:
    """Join ``group``, which reads the topic of its name."""
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    return GroupConsumer(config, group, [group], settings=settings, **options)


def kinds(steps: list[Notification]) -> set[str]:
    return {each.kind for each in steps}


def rebalance_begun(consumer: GroupConsumer) -> list[Notification]:
    """Wait until the consumer is to release partitions; return the steps up to there."""
    steps: list[Notification] = []

    def begun() -> bool:
        steps.extend(consumer.notifications())
        return "start" in kinds(steps)

    until(begun)
    return steps


def numbers(consumer: GroupConsumer, count: int) -> list[int]:
    """Read and mark ``count`` messages."""
    found = []
    for message in consumer:
        found.append(number_of(message))
        consumer.mark_offset(message)
        if len(found) == count:
            return found
    raise AssertionError("the consumer was closed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_poll_that_a_signal_handler_interrupts_anywhere(kafka: DevKafka, group: str) -> None:
    """After Ctrl-C in a poll the close ends, and commits just the marks: no lock is left held."""
    filled(kafka, group, 40)
    places = [(group, partition) for partition in range(PARTITIONS)]
    for at in range(9, 600, 73):
        store = MemoryOffsetStore()
        consumer = GroupConsumer(kafka.bootstrap_servers, group, partitions=places, store=store)
        read: list[int] = []

        def read_some(consumer: GroupConsumer = consumer, read: list[int] = read) -> None:
            while len(read) < 5 and (message := consumer.poll(WAIT_S)) is not None:
                consumer.mark_offset(message)
                read.append(number_of(message))

        interrupted(read_some, at)
        consumer.close()
        found = store.fetch(group, None).values()
        offsets = [each.offset for each in found if each is not None]
        assert len(read) <= sum(offsets) <= len(read) + 1


@pytest.mark.parametrize("caller", ["signal handler", "callback"])
def test_a_consumer_may_be_closed_in_its_poll(kafka: DevKafka, group: str, caller: str) -> None:
    """Librdkafka would wait for the end of the poll that calls the handler or callback."""
    filled(kafka, group, 4, partitions=1)
    config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
    if caller == "callback":
        config["on_commit"] = lambda *_: consumer.close()
    consumer: GroupConsumer = GroupConsumer(config, group, [group])
    count = 0
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.close())
    try:
        for count, message in enumerate(consumer, start=1):
            consumer.mark_offset(message)
            if caller == "signal handler" and count == 4:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
    consumer.close()
    ((offset, _),) = committed(kafka, group, group, 1).values()
    assert 1 <= offset <= count


def test_ctrl_c_where_a_rebalance_begins_is_a_keyboard_interrupt(
    kafka: DevKafka, group: str
) -> None:
    """Before Python 3.12 it was the SystemError that confluent-kafka makes of it."""
    filled(kafka, group, 4, partitions=1)

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "run":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    with member(kafka, group) as consumer:
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_S)


def test_a_close_that_a_signal_handler_interrupts_leaves_the_group(
    kafka: DevKafka, group: str
) -> None:
    """A member that stays keeps its partitions as long as the process lives."""
    filled(kafka, group, 40, partitions=1)
    with ClusterReader(kafka.bootstrap_servers) as reader:
        for at in range(30, 48, 2):  # where it notes down what is left to be done
            consumer = member(kafka, group)
            consumer.mark_offset(next(iter(consumer)))
            assert interrupted(consumer.close, at, within="contextlib")
            consumer.close()
            described = reader.describe([group])[group]
            assert isinstance(described, GroupDescription)
            assert described.members == (), at


@pytest.mark.parametrize("kind", ["mark", "ack", "stream"])
def test_a_consumer_may_be_closed_by_a_signal_handler_in_any_call(
    kafka: DevKafka, group: str, kind: str
) -> None:
    """The interrupted call holds a lock that the close in another thread waits for."""
    filled(kafka, group, 4, partitions=1)
    makes: dict[str, type[Any]] = {"mark": GroupConsumer, "ack": AckConsumer}
    for at in itertools.count(1, 4):
        consumer = makes.get(kind, PartitionedConsumer)(kafka.bootstrap_servers, group, [group])
        if kind == "stream":
            messages = iter(next(consumer.partitions()))
            next(messages)
            call: Callable[[], object] = partial(next, messages, None)
        else:
            message = next(iter(consumer))
            call = message.ack if kind == "ack" else partial(consumer.mark_offset, message)
        was_interrupted = interrupted(call, at, consumer.close)
        consumer.close()
        assert consumer.closed
        if not was_interrupted:
            return


def test_a_message_without_a_value_is_one_like_all_others(kafka: DevKafka, group: str) -> None:
    """confluent-kafka's messages are false where their value is empty."""
    create_topic(kafka, group, 1)
    send(kafka, group, *({"value": value, "key": b"key"} for value in (None, b"", b"1") * 3))
    readers: dict[str, Callable[[Any], list[Any]]] = {
        "iterated": lambda consumer: [next(iter(consumer))],
        "polled": lambda consumer: [consumer.poll(timeout=WAIT_S)],
        "batched": lambda consumer: next(consumer.batches(10**9)),
        "acknowledged": lambda consumer: [next(iter(consumer))],
    }
    for name, read in readers.items():
        make: type[Any] = AckConsumer if name == "acknowledged" else GroupConsumer
        offsets: list[int] = []
        with make(kafka.bootstrap_servers, f"{group}-{name}", [group]) as consumer:
            while len(offsets) < 9:
                offsets += [each.offset() for each in read(consumer)]
        assert offsets == list(range(9)), name


def test_a_member_waits_for_an_open_transaction(kafka: DevKafka, group: str) -> None:
    """Messages about to be committed are processed, and come to no other member."""
    filled(kafka, group, 40)
    brokers = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**brokers, "transactional.id": group})
    outsider = Consumer({**brokers, "group.id": group})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    offsets = [KafkaPartition(group, number, 5) for number in range(PARTITIONS)]
    producer.send_offsets_to_transaction(offsets, outsider.consumer_group_metadata(), WAIT_S)
    outsider.close()
    with member(kafka, group) as consumer:
        until(lambda: consumer._member.errors)
        assert {each.code for each in consumer.errors()} == {"UNSTABLE_OFFSET_COMMIT"}
        producer.commit_transaction(WAIT_S)
        assert sorted(numbers(consumer, 20)) == list(range(20, 40))


def test_unmarked_messages_are_not_committed(kafka: DevKafka, group: str) -> None:
    """Stashed marks are none yet; a reset goes back, with metadata as long as Kafka takes."""
    filled(kafka, group, 40)
    stash = OffsetStash()
    with member(kafka, group) as consumer:
        count = 0
        for messages in consumer.batches(max_records=8, max_wait_s=0.5):
            count += len(messages)
            stash.mark_messages(messages)
            if count == 40:
                break
        consumer.commit_offsets()
        assert committed(kafka, group, group) == {}
        (joined,) = consumer.notifications()
        everything = {group: [0, 1, 2, 3]}
        assert (joined.kind, joined.claimed) == ("ok", everything)
        assert consumer.subscriptions() == everything
        consumer.mark_offsets(stash)
        consumer.mark_partition_offset(group, 1, 4, "fifth")  # lower: changes nothing
        with pytest.raises(InvalidValueError, match="at most 4095"):
            consumer.reset_partition_offset(group, 2, 4, "x" * 4_096)
        consumer.reset_partition_offset(group, 2, 4, "x" * 4_095)
        consumer.mark_partition_offset(group, 99, 4)  # not claimed: dropped
        consumer.commit_offsets()
        assert committed(kafka, group, group) == {
            0: (10, ""),
            1: (10, ""),
            2: (5, "x" * 4_095),
            3: (10, ""),
        }
        assert consumer.high_water_marks() == {group: dict.fromkeys(range(PARTITIONS), 10)}
        assert consumer.errors() == []


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_hand_over_in_order_and_repeat_nothing(
    kafka: DevKafka, group: str, strategy: Strategy
) -> None:
    """One joins while the other has a message in work, reads its share and leaves."""
    filled(kafka, group, 40)
    settings = ConsumerSettings(strategy=strategy, dwell_s=WAIT_S, away_s=0.05)
    seen: list[int] = []
    with member(kafka, group, settings) as first:
        seen += numbers(first, 40)
        produce(kafka, group, range(40, 80))
        in_work = polled(first)
        done = threading.Event()

        def join_and_leave() -> None:
            with member(kafka, group, settings) as second:
                seen.extend(numbers(second, 10))
            done.set()

        other = threading.Thread(target=join_and_leave)
        other.start()
        # While the application is away the member hears of the rebalance, and waits for it.
        steps = rebalance_begun(first)
        seen.append(number_of(in_work))
        first.mark_offset(in_work)
        count = 80
        while not done.is_set() or len(seen) < count:
            message = first.poll(timeout=0.1)
            if message is not None:
                seen.append(number_of(message))
                first.mark_offset(message)
            elif not done.is_set():
                produce(kafka, group, range(count, count + 8))
                count += 8
        other.join(WAIT_S)
        assert kinds([*steps, *first.notifications()]) == {"start", "ok"}
    assert sorted(seen) == list(range(count))
    assert committed(kafka, group, group) == dict.fromkeys(range(PARTITIONS), (count // 4, ""))


def test_close_in_the_middle_of_a_rebalance(kafka: DevKafka, group: str) -> None:
    """It does not wait for the dwell time, and what is marked by then is committed."""
    filled(kafka, group, 40)
    settings = ConsumerSettings(dwell_s=10 * WAIT_S, away_s=0.05)
    with member(kafka, group, settings) as first:
        in_work = next(first.batches(max_records=40, max_wait_s=WAIT_S))
        assert len(in_work) == 40
        with member(kafka, group, settings) as second:
            rebalance_begun(first)
            first.mark_messages(in_work[:20])
            first.close()
            marked = {each.partition(): (each.offset() or 0) + 1 for each in in_work[:20]}
            left = 40 - sum(marked.values())
            assert sum(offset for offset, _ in committed(kafka, group, group).values()) == 40 - left
            assert len(set(numbers(second, left))) == left
            first.mark_messages(in_work)
            first.commit_offsets()


def test_a_dead_coordinator_delays_neither_poll_nor_close(
    breakable_kafka: DevKafka, group: str
) -> None:
    """Both return long before the session's time-out; the uncommitted partition is reported.

    The killed broker comes back on its port, with what was committed.
    """
    filled(breakable_kafka, group, 8)
    servers = breakable_kafka.bootstrap_servers
    config = {"bootstrap.servers": servers, "session.timeout.ms": 2 * int(WAIT_S) * 1_000}
    settings = ConsumerSettings(commit_interval_s=0.1, dwell_s=0.5)
    consumer = GroupConsumer(config, group, [group], settings=settings)
    numbers(consumer, 4)
    consumer.commit_offsets()
    message = polled(consumer)
    unknown = message.partition()  # its commit may land late

    def kept() -> dict[int, object]:
        found: dict[int, object] = {}
        with suppress(KafkaException):  # the broker that came back is not the coordinator yet
            found.update(committed(breakable_kafka, group, group))
        return {each: at for each, at in found.items() if each != unknown}

    before = kept()
    assert before
    broker, closed = breakable_kafka.broker(1), threading.Event()
    pid = broker.pid

    def use() -> None:
        for _ in range(10):
            consumer.poll(0.1)
        consumer.close()
        closed.set()

    broker.kill()
    assert not psutil.pid_exists(pid)
    with pytest.raises(DevKafkaError, match="broker 1 is not running"):
        _ = broker.pid
    try:
        consumer.mark_offset(message)
        threading.Thread(target=use, daemon=True).start()
        assert closed.wait(WAIT_S)
    finally:
        broker.start()
    with pytest.raises(DevKafkaError, match="runs already"):
        broker.start()
    assert breakable_kafka.bootstrap_servers == servers
    eventually(kept, before)
    (error,) = (each for each in consumer.errors() if each.code == "timeout")
    assert f"{group}-{message.partition()}" in str(error)


def test_a_mark_is_dropped_where_its_partition_was_released(kafka: DevKafka, group: str) -> None:
    """The application needs longer than the dwell time; another member goes on meanwhile."""
    filled(kafka, group, 40)
    settings = ConsumerSettings(strategy="range", dwell_s=0.0, away_s=0.05)
    with member(kafka, group, settings) as slow:
        (batch,) = [next(slow.batches(max_records=40, max_wait_s=WAIT_S))]
        with member(kafka, group, settings) as quick:
            half = numbers(quick, 20)
            quick.commit_offsets()
            theirs = quick.subscriptions()[group]
            assert {number % PARTITIONS for number in half} == set(theirs)
            mine = set(range(PARTITIONS)) - set(theirs)
            until(lambda: set(slow.subscriptions().get(group, ())) == mine)
            for number in theirs:
                slow.mark_partition_offset(group, number, 4)
            slow.mark_messages([each for each in batch if each.partition() in mine])
            slow.commit_offsets()
            assert committed(kafka, group, group) == dict.fromkeys(range(PARTITIONS), (10, ""))
            slow.reset_partition_offset(group, theirs[0], 4)
            slow.commit_offsets()
            assert committed(kafka, group, group)[theirs[0]] == (10, "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topics": []}, "topics"),
        ({"topics": ["a b"]}, "topic"),
        *(
            ({"include": each}, "include")
            for each in ("", "(", 5, b"orders", re.compile("orders"), "a{99999999999}")
        ),
        ({"include": "a", "exclude": "*"}, "exclude"),
        ({"exclude": "a"}, "exclude"),
        ({"kafka": {"bootstrap.servers": "b:1", "group.id": "other"}}, "ConsumerSettings"),
        ({"kafka": {"bootstrap.servers": "b:1", "group.protocol": "consumer"}}, "group.protocol"),
        ({"kafka": {"bootstrap.servers": "b:1", "no.such": "1"}}, "librdkafka"),
        ({"kafka": {}}, "bootstrap.servers None is missing"),
        ({"kafka": None}, "config 'NoneType' is neither"),
        ({"kafka": "b\ud800"}, "bootstrap.servers '<str>' is not a value"),
        ({"kafka": {"bootstrap.servers": "b:1", "error_cb": 5}}, "error_cb 5 cannot be called"),
    ],
)
def test_bad_input_names_field_and_fix(wrong: dict[str, Any], said: str) -> None:
    given = {"kafka": "localhost:1", "group": "orders-etl", **wrong}
    if "include" not in wrong:
        given.setdefault("topics", ["orders"])
    with pytest.raises(InvalidValueError, match=said):
        GroupConsumer(**given)
    with pytest.raises(InvalidValueError, match="dwell_s"):
        ConsumerSettings(dwell_s=-1)


def test_a_group_that_another_client_committed_with_metadata(kafka: DevKafka, group: str) -> None:
    """confluent-kafka reads metadata without a NUL at its end wrongly, and raises at times."""
    filled(kafka, group, 40)
    with LocalOffsets(kafka.bootstrap_servers) as client:
        for number in range(PARTITIONS):
            client.spawn(group, group, number).submit(5, metadata="\u00e4" * 2047)
        assert client.flush(timeout=WAIT_S).ok
    with member(kafka, group) as consumer:
        assert sorted(numbers(consumer, 20)) == list(range(20, 40))
    assert committed(kafka, group, group) == dict.fromkeys(range(PARTITIONS), (10, ""))


def test_a_stream_for_each_partition_with_a_bounded_buffer(kafka: DevKafka, group: str) -> None:
    """A stream that nobody reads pauses its partition, and the others go on."""
    create_topic(kafka, group, PARTITIONS)
    many = 5 * BUFFERED
    produce(kafka, group, range(0, many * PARTITIONS, PARTITIONS))
    with PartitionedConsumer(kafka.bootstrap_servers, group, [group]) as consumer:
        new = consumer.partitions()
        streams = {each.partition: each for each in (next(new) for _ in range(PARTITIONS))}
        unread = streams[0]
        until(lambda: unread.waiting >= BUFFERED)
        produce(kafka, group, [1, 2, 3])
        for partition in (1, 2, 3):
            message = next(iter(streams[partition]))
            assert number_of(message) == partition
            consumer.mark_offset(message)
        assert unread.waiting < 2 * BUFFERED
        for count, message in enumerate(unread):
            assert message.offset() == count
            consumer.mark_offset(message)
            if count + 1 == many:
                break
        assert unread.high_water_mark() == many
        assert (unread.topic, unread.partition) == (group, 0)
        unread.close()
        assert list(unread) == []
    assert list(new) == list(consumer.partitions()) == []
    assert committed(kafka, group, group) == {0: (many, ""), 1: (1, ""), 2: (1, ""), 3: (1, "")}


def test_streams_end_where_their_partitions_are_released(kafka: DevKafka, group: str) -> None:
    filled(kafka, group, 400)
    settings = ConsumerSettings(strategy="range", dwell_s=WAIT_S)
    seen: list[int] = []
    first = PartitionedConsumer(kafka.bootstrap_servers, group, [group], settings=settings)
    with reading_streams(first, seen) as ended:
        until(lambda: len(seen) == 400)
        with member(kafka, group, settings) as second:
            until(lambda: second.poll(timeout=0.0) or second.subscriptions())
            until(lambda: len(first.subscriptions().get(group, ())) == 2)
            produce(kafka, group, range(400, 480))
            theirs = numbers(second, 40)
        until(lambda: len(seen) == 440)
    assert sorted(seen + theirs) == list(range(480))
    until(lambda: len(ended) >= 6)
    assert committed(kafka, group, group) == dict.fromkeys(range(PARTITIONS), (120, ""))


def test_a_closed_stream_returns_with_its_next_claim(kafka: DevKafka, group: str) -> None:
    """A partition stays paused inside librdkafka while it belongs to another member."""
    filled(kafka, group, 40)
    settings = ConsumerSettings(strategy="range")
    with PartitionedConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as first:
        new = first.partitions()
        for stream in [next(new) for _ in range(PARTITIONS)]:
            assert next(iter(stream)).offset() == 0
            stream.close()
        with member(kafka, group, settings) as second:
            until(lambda: second.poll(timeout=0.0) or second.subscriptions())
        read: set[int] = set()
        while len(read) < PARTITIONS:
            stream = next(new)
            read.update(stream.partition for _ in itertools.islice(stream, 1))


def test_the_example_marks_only_written_messages(
    kafka: DevKafka, group: str, tmp_path: Path
) -> None:
    """Stopped and started again, it goes on where it was; no message is missing or there twice."""
    filled(kafka, group, 40)
    example = Path(__file__).parents[2] / "examples" / "batch_writer.py"
    command = [sys.executable, str(example), "--bootstrap-servers", kafka.bootstrap_servers]
    command += ["--topic", group, "--group", group, "--folder", str(tmp_path), "--records", "40"]
    for count in (40, 80):
        subprocess.run(command, check=True, timeout=WAIT_S)
        texts = [path.read_text() for path in tmp_path.glob("*.txt")]
        assert sorted(map(int, "".join(texts).split())) == list(range(count))
        assert committed(kafka, group, group) == dict.fromkeys(range(PARTITIONS), (count // 4, ""))
        produce(kafka, group, range(40, 80))
