"""The watch of groups: a round of 10,000 partitions, without Kafka."""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks.harness import TOPIC, at_most, in_turn, report
from offsetmgr.lag.watcher import Watcher
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster

SIZE: Final = 10_000
ROUND_S: Final = 1.0
"""A round takes at most this long."""

_WINDOW: Final = 10
_INTERVAL_S: Final = 30.0


def run(_brokers: str, rounds: int) -> list[str]:
    """Lag, seconds, rates and Burrow's status of all partitions, window full."""
    kafka, partitions = FakeCluster(), [TopicPartition(TOPIC, number) for number in range(SIZE)]
    now_s = 0.0
    watcher = Watcher(kafka, lambda: now_s)

    def look(number: int) -> None:
        """Let the group fall behind."""
        nonlocal now_s
        now_s = number * _INTERVAL_S
        kafka.ends = dict.fromkeys(partitions, 200 * number)
        kafka.offsets = {"bench": dict.fromkeys(partitions, OffsetAndMetadata(100 * number))}
        watcher.poll(["bench"])

    results = in_turn({"a round of the watch": look}, rounds=rounds, warmup=_WINDOW)
    report(f"Watch {SIZE:,} partitions of one group", results, items=SIZE, unit="partitions")
    took_s = median(results["a round of the watch"])
    return at_most(f"a round of {SIZE:,} watched partitions", took_s, ROUND_S, "s")
