"""The watch of groups: a round of 10,000 partitions, without Kafka."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.harness import TOPIC, at_most, in_turn, report
from offsetmgr.kafka.cluster import GroupDescription
from offsetmgr.kafka.log_reader import NextRecord
from offsetmgr.lag.watcher import Watcher
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

SIZE: Final = 10_000
ROUND_S: Final = 1.0
"""A round takes at most this long."""

_WINDOW: Final = 10
_INTERVAL_S: Final = 30.0


class _Cluster:
    """A group that falls behind, told at no cost."""

    def __init__(self) -> None:
        self.partitions = [TopicPartition(TOPIC, number) for number in range(SIZE)]
        self.rounds = 0

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return dict.fromkeys(groups, GroupDescription("Empty", "classic", "", "", ()))

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        offset = OffsetAndMetadata(100 * self.rounds)
        return {group: dict.fromkeys(self.partitions, offset) for group in groups}

    def log_ranges(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionRange]:
        return dict.fromkeys(partitions, PartitionRange(0, 200 * self.rounds))

    def next_records(
        self, offsets: Mapping[TopicPartition, Collection[int]]
    ) -> dict[tuple[TopicPartition, int], NextRecord]:
        places = ((where, offset) for where, asked in offsets.items() for offset in asked)
        return {place: NextRecord(place[1], 0.0) for place in places}


def run(_brokers: str, rounds: int) -> list[str]:
    """Lag, seconds, rates and Burrow's status of all partitions, window full."""
    kafka = _Cluster()
    watcher = Watcher(kafka, lambda: kafka.rounds * _INTERVAL_S)  # type: ignore[arg-type]

    def look(_number: int) -> None:
        kafka.rounds += 1
        watcher.poll(["bench"])

    results = in_turn({"a round of the watch": look}, rounds=rounds, warmup=_WINDOW)
    report(f"Watch {SIZE:,} partitions of one group", results, items=SIZE, unit="partitions")
    took_s = median(results["a round of the watch"])
    return at_most(f"a round of {SIZE:,} watched partitions", took_s, ROUND_S, "s")
