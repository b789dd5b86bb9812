"""``python -m benchmarks.consumer``: consumers with marks and acks beside a bare confluent-kafka.

All read the same topic and commit once a second; the bare loops by hand.  The clock runs from the
first message to the last commit.  Fails, with exit status 1 and the figures, where a floor is
missed.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
import uuid
from contextlib import ExitStack
from statistics import median
from threading import Thread
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import TIMEOUT_S, at_least, at_most, end, parser, report
from offsetmgr.consumer import AckConsumer, GroupConsumer
from offsetmgr.consumer.tracker import AckTracker
from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from offsetmgr.consumer import AckMessage

PARTITIONS: Final = 4
BATCH: Final = 500
COMMIT_S: Final = 1.0
VALUE: Final = b"x" * 100
KEYS: Final = 1_000
WINDOW: Final = 1_000
"""Acks come in random order within so many messages, as a pool of workers makes them."""
WORKERS: Final = 64
_CHUNK: Final = 10_000

BATCHES_FLOOR: Final = 0.8
ACKS_FLOOR: Final = 0.5
TRACKER_FLOOR: Final = 300_000
PENDING_BYTES: Final = 300
WORKERS_FLOOR: Final = 40


def main() -> int:
    """Run all, print tables, and return the exit status."""
    arguments = parser("benchmarks.consumer", __doc__)
    arguments.add_argument("--messages", type=int, default=500_000, help="to read (500,000)")
    arguments.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = arguments.parse_args()
    missed = tracking(1_000_000, options.rounds)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        missed += reading(brokers, count=options.messages, rounds=options.rounds)
        return end(missed + workers(brokers, 40_000))


# Without a broker


def tracking(count: int, rounds: int) -> list[str]:
    """Acknowledge out of order; return the floors that were missed.

    Processor time is measured: nothing here waits.
    """
    took = []
    for _ in range(rounds):
        began = process_time()
        _track(count)
        took.append(process_time() - began)
    report("Acks out of order, processor time", {"deliver and acknowledge": took}, items=count,
           unit="acks")  # fmt: skip
    rate = count / median(took)
    _track(WINDOW)
    tracemalloc.start()
    _track(count // 10)
    peak = tracemalloc.get_traced_memory()[1] / WINDOW
    tracemalloc.stop()
    print(f"Memory for each of {WINDOW:,} pending offsets: {peak:.0f} bytes")
    missed = at_least("acks out of order", rate, TRACKER_FLOOR, "acks/s")
    return missed + at_most("memory of a pending offset", peak, PENDING_BYTES, "bytes")


def _track(count: int) -> None:
    tracker = AckTracker[None](0)
    order = list(range(WINDOW))
    random.Random(count).shuffle(order)  # noqa: S311
    for base in range(0, count, WINDOW):
        for offset in range(base, base + WINDOW):
            tracker.deliver(offset, None)
        for offset in order:
            tracker.acknowledge(base + offset)
    if tracker.offset != count or tracker.pending:
        raise RuntimeError(f"{tracker.offset} of {count} are acknowledged")


# Beside bare loops


def reading(brokers: str, *, count: int, rounds: int) -> list[str]:
    """Read ``count`` messages in batches and one by one; return the floors that were missed."""
    topic = filled(brokers, count)
    contestants: Mapping[str, Callable[[str, str, int], float]] = {
        "confluent-kafka, batches": _bare_batches,
        "batches() with marks": _marked_batches,
        "confluent-kafka, one by one": _bare_messages,
        "iteration with mark_offset": _marked_messages,
        "iteration with ack": _acked_messages,
    }
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, read in contestants.items():
            seconds = read(brokers, topic, count)
            if number:  # the first round warms up
                took[name].append(seconds)
    report(f"Read {count:,} messages", took, items=count, unit="messages")
    times = {name: median(seconds) for name, seconds in took.items()}
    batches = times["confluent-kafka, batches"] / times["batches() with marks"]
    acks = times["confluent-kafka, one by one"] / times["iteration with ack"]
    print(f"Rate of bare loops: batches with marks {batches:.2f}, messages with acks {acks:.2f}")
    missed = at_least("batches with marks beside bare ones", batches, BATCHES_FLOOR)
    return missed + at_least("messages with acks beside bare ones", acks, ACKS_FLOOR)


def filled(brokers: str, count: int) -> str:
    """Return a new topic with ``count`` messages of 100 bytes and of 1,000 keys."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, VALUE, f"key-{number % KEYS}", partition=number % PARTITIONS)
        if number % _CHUNK == 0:
            producer.flush(TIMEOUT_S)
    producer.flush(TIMEOUT_S)
    return topic


class _Bare:
    """Bare loop with manual commits: positions, and a commit once a second."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": f"group-{uuid.uuid4().hex}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        self.consumer.subscribe([topic])
        self._positions: dict[tuple[str | None, int | None], int] = {}
        self._commit_at_s = perf_counter() + COMMIT_S

    def done(self, message: Message) -> None:
        self._positions[message.topic(), message.partition()] = (message.offset() or 0) + 1
        if perf_counter() >= self._commit_at_s:
            self.commit()

    def commit(self) -> None:
        offsets = [
            TopicPartition(topic or "", number or 0, offset)
            for (topic, number), offset in self._positions.items()
        ]
        self.consumer.commit(offsets=offsets, asynchronous=False)
        self._commit_at_s = perf_counter() + COMMIT_S


def _bare_batches(brokers: str, topic: str, count: int) -> float:
    bare = _Bare(brokers, topic)
    began, left = 0.0, count
    while left:
        batch = bare.consumer.consume(BATCH, 1.0)
        began = began or perf_counter()
        for each in {(m.topic(), m.partition()): m for m in batch if m.error() is None}.values():
            bare.done(each)
        left -= len(batch)
        if not batch:
            began = 0.0
    return _ended(bare, began)


def _bare_messages(brokers: str, topic: str, count: int) -> float:
    bare = _Bare(brokers, topic)
    began, left = 0.0, count
    while left:
        message = bare.consumer.poll(1.0)
        if message is None or message.error() is not None or not message.value():
            continue
        began = began or perf_counter()
        bare.done(message)
        left -= 1
    return _ended(bare, began)


def _ended(bare: _Bare, began: float) -> float:
    bare.commit()
    took = perf_counter() - began
    bare.consumer.close()
    return took


def _marked_batches(brokers: str, topic: str, count: int) -> float:
    with GroupConsumer(brokers, f"group-{uuid.uuid4().hex}", [topic]) as consumer:
        began, left = 0.0, count
        for batch in consumer.batches(BATCH):
            began = began or perf_counter()
            consumer.mark_messages(batch)
            left -= len(batch)
            if not left:
                break
        consumer.commit_offsets()
        return perf_counter() - began


def _marked_messages(brokers: str, topic: str, count: int) -> float:
    with GroupConsumer(brokers, f"group-{uuid.uuid4().hex}", [topic]) as consumer:
        began, messages = 0.0, _first(consumer, count)
        for message in messages:
            began = began or perf_counter()
            if message.value():
                consumer.mark_offset(message)
        consumer.commit_offsets()
        return perf_counter() - began


def _first(consumer: GroupConsumer, count: int) -> Iterator[Message]:
    for number, message in enumerate(consumer, 1):
        yield message
        if number == count:
            return


def _acked_messages(brokers: str, topic: str, count: int) -> float:
    with AckConsumer(brokers, f"group-{uuid.uuid4().hex}", [topic]) as consumer:
        began = 0.0
        for read, message in enumerate(consumer, 1):
            began = began or perf_counter()
            if message.value:
                message.ack()
            if read == count:
                break
        consumer.commit_offsets()
        return perf_counter() - began


# A pool of workers


def workers(brokers: str, count: int) -> list[str]:
    """Run handlers of 5 ms, ordered by key; return the floors that were missed."""
    topic = filled(brokers, count)
    one, many = _handled(brokers, topic, 400, 1), _handled(brokers, topic, count, WORKERS)
    print(f"Handlers of 5 ms: {one:,.0f}/s by one worker, {many:,.0f}/s by {WORKERS}")
    return at_least(f"{WORKERS} workers", many / one, WORKERS_FLOOR, "times one worker")


def _handled(brokers: str, topic: str, number: int, workers: int) -> float:
    """Return messages per second."""
    consumer = AckConsumer(brokers, f"workers-{uuid.uuid4().hex}", [topic])
    times: list[float] = []

    def handle(_: AckMessage) -> None:
        times.append(time.monotonic())
        time.sleep(0.005)

    thread = Thread(
        target=lambda: consumer.run(handle, workers=workers, ordered_by="key"), name="pool"
    )
    thread.start()
    while len(times) < number:
        time.sleep(0.01)
    rate = (number - 1) / (times[number - 1] - times[0])
    consumer.close()
    thread.join()
    return rate


if __name__ == "__main__":
    sys.exit(main())
