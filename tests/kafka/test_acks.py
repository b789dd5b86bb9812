"""Acks and nacks on a real broker."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from offsetmgr.clusters import MultiClusterAckConsumer
from offsetmgr.consumer import (
    AckConsumer,
    AckSettings,
    GroupConsumer,
    RetryPolicy,
)
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.messages import headers_of
from offsetmgr.types import TopicPartition
from tests.commands import run
from tests.kafka.messages import PARTITIONS, committed, filled, number_of, polled, running
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from types import FrameType

    from confluent_kafka import Message

    from offsetmgr.consumer import AckMessage
    from offsetmgr.consumer.ack_work import OrderedBy
    from offsetmgr.devkafka import DevKafka


@pytest.fixture(params=[AckConsumer, GroupConsumer])
def kind(request: pytest.FixtureRequest) -> type[Any]:
    found: type[Any] = request.param
    return found


def processed(consumer: Any) -> None:
    """Read a message, and mark or acknowledge it."""
    message = consumer.poll(WAIT_S)
    consumer.mark_offset(message) if isinstance(consumer, GroupConsumer) else message.ack()


def offsets(kafka: DevKafka, group: str) -> list[int]:
    return [offset for _, (offset, _) in sorted(committed(kafka, group, group).items())]


def all_of(kafka: DevKafka, topic: str, count: int) -> list[Message]:
    """The first ``count`` messages of a topic."""
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": f"reader-of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        read = consumer.consume(count - len(found), 1.0)
        found += [each for each in read if each.error() is None]  # the topic may come later
    consumer.close()
    return found


def taken(consumer: AckConsumer, count: int) -> list[AckMessage]:
    found = []
    for message in consumer:
        found.append(message)
        if len(found) == count:
            return found
    raise AssertionError("the consumer was closed")


def test_a_restart_repeats_only_unacknowledged_messages(kafka: DevKafka, group: str) -> None:
    """Acks come from four threads, in random order; every tenth message gets none."""
    count = 400
    filled(kafka, group, count)
    settings = AckSettings(dwell_s=0.2)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as first:
        messages = taken(first, count)
        left = {number_of(each) for each in messages if number_of(each) % 10 == 3}
        to_ack = [each for each in messages if number_of(each) not in left]
        random.Random(1).shuffle(to_ack)  # noqa: S311
        threads = [
            threading.Thread(target=lambda part: [each.ack() for each in part], args=[to_ack[n::4]])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert first.pending == len(left)
        assert (first.name, first.topics, first.closed) == (group, [group], False)
        assert {each.cluster for each in messages} == {kafka.bootstrap_servers}
    assert first.closed
    assert first.poll() is None
    messages[0].ack()  # of a former claim: does nothing
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as second:
        again = taken(second, len(left))
        assert {number_of(each) for each in again} == left
        assert second.poll(timeout=0.5) is None
        for batch in ([each for each in again if each.partition() == n] for n in range(PARTITIONS)):
            if batch:
                second.commit_up_to(batch[-1])
        assert second.errors() == []
    assert offsets(kafka, group) == [count // PARTITIONS] * PARTITIONS


def test_a_partition_that_waits_for_an_ack_holds_up_no_other(kafka: DevKafka, group: str) -> None:
    """Every second ack of partition 0 is missing, until its metadata is full."""
    count = 40_000
    filled(kafka, group, count)
    held: list[AckMessage] = []
    seen: Counter[int] = Counter()
    settings = AckSettings(max_pending=20_000)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        while seen[0] < 1_000 or seen[1] + seen[2] + seen[3] < count * 3 // 4:
            message = polled(consumer)
            seen[message.partition()] += 1
            if message.partition() == 0 and message.offset() % 2 == 0:
                held.append(message)
            else:
                message.ack()
        assert seen[0] < count // 4
        for message in held:
            message.ack()
        while seen[0] < count // 4:
            message = polled(consumer)
            message.ack()
            seen[message.partition()] += 1
    assert offsets(kafka, group) == [count // PARTITIONS] * PARTITIONS


def test_pending_acks_of_a_live_group_are_described(kafka: DevKafka, group: str) -> None:
    """The command describes any group; the consumer reports the same in its own process."""
    filled(kafka, group, 40)
    settings = AckSettings(dwell_s=0)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        for message in taken(consumer, 40):
            if message.partition() != 2 or message.offset() not in {3, 4, 7}:
                message.ack()
        consumer.commit_offsets()
        assert "  pending acks  " in run(kafka, "describe", group).out
        (found,) = run(kafka, "describe", group, "--json").json()["groups"]
        assert [each["pending_acks"] for each in found["partitions"]] == [0, 0, 3, 0]
        assert consumer.pending == 3
        progress = consumer.progress()[TopicPartition(group, 2)]
        assert (progress.offset, progress.pending) == (3, 3)


def test_an_event_loop_acknowledges_as_its_tasks_end(kafka: DevKafka, group: str) -> None:
    count = 200
    filled(kafka, group, count)
    seen: Counter[int] = Counter()

    async def work(message: AckMessage) -> None:
        await asyncio.sleep(message.offset() % 7 / 1000)
        seen[number_of(message)] += 1
        if number_of(message) % 50 == 0 and message.tries == 1:
            message.nack(0)
        else:
            message.ack()

    async def read() -> None:
        async with AckConsumer(kafka.bootstrap_servers, group, [group]) as consumer:
            tasks = set()
            async for message in consumer:
                tasks.add(asyncio.create_task(work(message)))
                if len(tasks) == count + count // 50:
                    break
            await asyncio.gather(*tasks)

    asyncio.run(read())
    assert set(seen) == set(range(count))
    assert seen.total() == count + count // 50
    assert offsets(kafka, group) == [count // PARTITIONS] * PARTITIONS


def test_a_batch_that_is_not_full_delays_no_rebalance(
    kafka: DevKafka, group: str, kind: type[Any]
) -> None:
    """The application does not have its messages yet: nobody would finish them in ``dwell_s``."""
    filled(kafka, group, 1, partitions=1)
    servers, settings = kafka.bootstrap_servers, AckSettings(strategy="range", dwell_s=9 * WAIT_S)
    with kind(servers, group, [group], settings=settings) as consumer:

        def read() -> None:
            for batch in consumer.batches(2, 9 * WAIT_S):
                for message in batch if kind is AckConsumer else ():
                    message.ack()

        threading.Thread(target=read, daemon=True).start()
        until(lambda: consumer.stats().messages)
        settings = AckSettings(strategy="range", dwell_s=0)
        with AckConsumer(servers, group, [group], settings=settings) as successor:
            until(lambda: (successor.poll(0.1), consumer.stats().rebalances)[1] > 1)


def test_no_more_than_max_pending_are_handed_out(kafka: DevKafka, group: str) -> None:
    """A message without an ack comes back after its time-out."""
    filled(kafka, group, 100)
    settings = AckSettings(max_pending=10, ack_timeout_s=1.0, nack_delay_s=0, dwell_s=0)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        first, tries = set(map(number_of, taken(consumer, 10))), Counter[int]()
        assert len(first) == 10
        while len(tries) < 10 or min(tries.values()) < 2:
            for message in next(consumer.batches(5, 0.1)):
                tries[number_of(message)] += 1
                assert message.tries == tries[number_of(message)] + 1
        assert set(tries) == first


def test_rejected_messages_go_through_the_retries_to_the_dead_letters(
    kafka: DevKafka, group: str
) -> None:
    """Message 1 succeeds in its second try, message 2 never; each waits at least its delay."""
    filled(kafka, group, 4)
    policy = RetryPolicy(delays_s=(0.5, 1.0), partitions=1)
    settings = AckSettings(retry=policy)
    tries: dict[int, list[tuple[float, str, int]]] = {}

    def handle(message: AckMessage) -> None:
        number = number_of(message)
        tries.setdefault(number, []).append((time.time(), message.topic(), message.tries))
        assert message.origin == (group, number, 0)
        if number == 2 or (number == 1 and message.tries < 2):
            raise ValueError(f"{number} is bad")

    consumer = AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings)
    with running(consumer, handle):
        (letter,) = all_of(kafka, f"{group}.dlq", 1)
    topics = [group, f"{group}.retry.1", f"{group}.retry.2"]
    assert {number: [each[1] for each in found] for number, found in tries.items()} == {
        0: topics[:1],
        1: topics[:2],
        2: topics,
        3: topics[:1],
    }
    for found in tries.values():
        for (before_s, *_), (after_s, *_), delay_s in zip(
            found, found[1:], policy.delays_s, strict=False
        ):
            assert after_s - before_s > delay_s - 0.01
    headers = {name: (value or b"").decode() for name, value in headers_of(letter)}
    assert letter.value() == b"2"
    stack = headers.pop("offsetmgr-stack")
    assert "ValueError: 2 is bad" in stack
    assert "in handle" in stack
    first_ms, last_ms = (int(headers.pop(f"offsetmgr-{e}-failed-ms")) for e in ("first", "last"))
    assert last_ms - first_ms > 1490
    assert int(headers.pop("offsetmgr-timestamp-ms")) < first_ms
    assert headers == {
        "offsetmgr-origin-topic": group,
        "offsetmgr-origin-partition": "2",
        "offsetmgr-origin-offset": "0",
        "offsetmgr-group": group,
        "offsetmgr-tries": "3",
        "offsetmgr-error": "ValueError: 2 is bad",
    }
    assert offsets(kafka, group) == [1] * PARTITIONS


@pytest.mark.parametrize("ordered_by", ["key", "partition"])
def test_handlers_are_called_in_order(kafka: DevKafka, group: str, ordered_by: OrderedBy) -> None:
    """No two of 64 workers have the same key (or partition) at once."""
    count, keys = 400, 40
    filled(kafka, group, count, keys=keys)
    seen: dict[object, list[int]] = {}
    in_work: Counter[object] = Counter()
    most = [0]
    lock = threading.Lock()

    def handle(message: AckMessage) -> None:
        place = message.key() if ordered_by == "key" else message.partition()
        with lock:
            in_work[place] += 1
            assert in_work[place] == 1
            most[0] = max(most[0], in_work.total())
            seen.setdefault(place, []).append(message.offset())
        time.sleep(0.001)
        with lock:
            in_work[place] -= 1

    consumer = AckConsumer(kafka.bootstrap_servers, group, [group])
    with running(consumer, handle, workers=64, ordered_by=ordered_by):
        until(lambda: seen)
        with pytest.raises(InvalidValueError, match="another one runs"):
            consumer.run(handle)  # whose order would be another one
        until(lambda: sum(map(len, list(seen.values()))) == count)
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert most[0] > 1
    assert sum(offsets(kafka, group)) == count


def test_closing_a_pool_finishes_only_running_handlers(kafka: DevKafka, group: str) -> None:
    """A member that joins later handles the rest: each message is handled once."""
    count = 200
    filled(kafka, group, count)
    handled: list[int] = []

    def handle(message: AckMessage) -> None:
        time.sleep(0.002)
        handled.append(number_of(message))

    for wanted in (50, count):
        consumer = AckConsumer(kafka.bootstrap_servers, group, [group])
        with running(consumer, handle):
            until(lambda: len(handled) >= wanted)  # noqa: B023 -- called here
    assert sorted(handled) == list(range(count))


@pytest.mark.parametrize("kind", ["one cluster", "several"])
def test_a_handler_may_close_its_consumer(kafka: DevKafka, group: str, kind: str) -> None:
    """Code of the application that ends the consumer from inside counts like any other.

    No other message begins, and the running ones are committed: none is delivered again.
    """
    filled(kafka, group, 40, partitions=1)
    servers, handled = kafka.bootstrap_servers, list[int]()
    consumer: Any = AckConsumer(servers, group, [group])
    if kind == "several":
        consumer.close()
        consumer = MultiClusterAckConsumer({"west": servers}, group, [group])

    def handle(message: AckMessage) -> None:
        handled.append(number_of(message))
        if len(handled) == 3:
            consumer.close()

    consumer.run(handle, workers=1)
    assert (consumer.closed, handled, consumer.errors()) == (True, [0, 1, 2], [])
    assert offsets(kafka, group)[0] == 3


def test_a_callback_that_exits_leaves_no_consumer_half_closed(
    kafka: DevKafka, group: str, kind: type[Any]
) -> None:
    """An exception in the main thread while a consumer closes is raised after its last step."""
    filled(kafka, group, 1, partitions=1)

    def answered(*_: object) -> None:
        sys.exit(3)

    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "on_commit": answered,
        "session.timeout.ms": 2 * int(WAIT_S) * 1_000,
    }
    settings = AckSettings(commit_interval_s=WAIT_S)
    consumer = kind(config, group, [group], settings=settings)
    processed(consumer)
    with pytest.raises(SystemExit):
        consumer.close()
    with AckConsumer(kafka.bootstrap_servers, group, [group]) as successor:
        until(lambda: successor.poll(0.1) or successor.subscriptions())  # the first has left
        assert successor.progress()[TopicPartition(group, 0)].offset == 1


def test_a_close_does_not_wait_for_an_answer_that_a_signal_handler_has_lost(
    kafka: DevKafka, group: str, kind: type[Any]
) -> None:
    """It raises in the poll, where the answer of a commit has just come; SIGTERM often does."""
    filled(kafka, group, 2, partitions=1)
    settings = AckSettings(away_s=WAIT_S)
    consumer = kind(kafka.bootstrap_servers, group, [group], settings=settings)
    processed(consumer)

    def answered(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "_commit_answered":
            sys.setprofile(None)
            raise SystemExit

    sys.setprofile(answered)
    with pytest.raises(SystemExit):  # noqa: PT012
        while True:
            consumer.poll(0.1)
    consumer.close()
    assert offsets(kafka, group)[0] >= 1


def test_a_signal_handler_that_raises_in_a_rebalance_releases_the_partitions(
    kafka: DevKafka, group: str
) -> None:
    """It interrupts the wait for a message in work; the acks are committed before the release."""
    filled(kafka, group, 2, partitions=1)
    settings = AckSettings(strategy="range", dwell_s=WAIT_S, commit_interval_s=WAIT_S)
    main = threading.get_ident()
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        messages = iter(consumer)
        next(messages).ack()
        assert next(messages).is_pending

        def interrupt() -> None:
            until(lambda: "start" in {each.kind for each in consumer.notifications()})
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings):
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(WAIT_S)
            assert (consumer.subscriptions(), consumer.errors()) == ({}, [])
            assert offsets(kafka, group)[0] == 1
    thread.join()
