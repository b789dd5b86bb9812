"""``python -m benchmarks.consumer``: the group consumer beside a bare loop of confluent-kafka.

Both read the same topic and commit once a second; the bare loop by hand.  The clock runs from the
first message to the last commit.  Fails where batches with marks are slower than 80 % of bare ones.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import TIMEOUT_S, at_least, end, parser, report
from offsetmgr.consumer import GroupConsumer
from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PARTITIONS: Final = 4
BATCH: Final = 500
COMMIT_S: Final = 1.0
VALUE: Final = b"x" * 100
FLOOR: Final = 0.8
_CHUNK: Final = 50_000


def main() -> int:
    """Run both, print a table, and return the exit status."""
    arguments = parser("benchmarks.consumer", __doc__)
    arguments.add_argument("--messages", type=int, default=500_000, help="to read (500,000)")
    arguments.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = arguments.parse_args()
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        return end(reading(brokers, count=options.messages, rounds=options.rounds))


def reading(brokers: str, *, count: int, rounds: int) -> list[str]:
    """Read ``count`` messages in batches and one by one; return the floors that were missed."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    _fill(brokers, topic, count)
    contestants: Mapping[str, Callable[[str, str, int], float]] = {
        "confluent-kafka, batches": _bare_batches,
        "batches() with marks": _marked_batches,
        "confluent-kafka, one by one": _bare_messages,
        "iteration with mark_offset": _marked_messages,
    }
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, read in contestants.items():
            seconds = read(brokers, topic, count)
            if number:  # the first round warms up
                took[name].append(seconds)
    report(f"Read {count:,} messages", took, items=count, unit="messages")
    bare, marked = median(took["confluent-kafka, batches"]), median(took["batches() with marks"])
    return at_least("batches with marks beside bare ones", bare / marked, FLOOR)


def _fill(brokers: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
        if number % _CHUNK == 0:
            producer.flush(TIMEOUT_S)
    producer.flush(TIMEOUT_S)


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
        if message is None or message.error() is not None:
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
            consumer.mark_offset(message)
        consumer.commit_offsets()
        return perf_counter() - began


def _first(consumer: GroupConsumer, count: int) -> Iterator[Message]:
    for number, message in enumerate(consumer, 1):
        yield message
        if number == count:
            return


if __name__ == "__main__":
    sys.exit(main())
