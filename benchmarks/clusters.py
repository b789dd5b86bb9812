"""``python -m benchmarks.clusters``: the reader of several clusters beside a bare consumer.

Both read the same topic of one cluster, message by message, from its beginning.  The clock runs
from the first message to the last.  Fails if the reader has less than 85 % of the bare loop's rate.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks.consumer import PARTITIONS, filled
from benchmarks.harness import at_least, end, parser, report
from offsetmgr.clusters import MultiClusterReader
from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FLOOR: Final = 0.85


def main() -> int:
    """Run both, print a table, and return the exit status."""
    arguments = parser("benchmarks.clusters", __doc__)
    arguments.add_argument("--messages", type=int, default=300_000, help="to read (300,000)")
    arguments.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = arguments.parse_args()
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        return end(reading(brokers, count=options.messages, rounds=options.rounds))


def reading(brokers: str, *, count: int, rounds: int) -> list[str]:
    """Read ``count`` messages one by one; return the floors that were missed."""
    topic = filled(brokers, count)
    contestants: Mapping[str, Callable[[str, str, int], float]] = {
        "confluent-kafka, poll": _bare,
        "MultiClusterReader, one cluster": _reader,
    }
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, read in contestants.items():
            seconds = read(brokers, topic, count)
            if number:  # the first round warms up
                took[name].append(seconds)
    report(f"Read {count:,} messages one by one", took, items=count, unit="messages")
    bare, ours = (median(each) for each in took.values())
    return at_least("reader of one cluster beside a bare loop", bare / ours, FLOOR)


def _bare(brokers: str, topic: str, count: int) -> float:
    config = {
        "bootstrap.servers": brokers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
    began, left, size = 0.0, count, 0
    while left:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            began = began or perf_counter()
            size += len(message.value() or b"")
            left -= 1
    took = perf_counter() - began
    consumer.close()
    return took


def _reader(brokers: str, topic: str, count: int) -> float:
    with MultiClusterReader({"here": brokers}, topic) as reader:
        began, left, size = 0.0, count, 0
        while left:
            found = reader.read_message(timeout=1.0)
            if found is not None:
                began = began or perf_counter()
                size += len(found.message.value() or b"")
                left -= 1
        return perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
