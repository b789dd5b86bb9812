"""``python -m benchmarks.coordinator_pool``: commits of many groups, by the size of the pool.

Shows what a further client brings and what it costs in threads; ``CLIENTS`` was chosen by it.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import active_count
from typing import TYPE_CHECKING

from benchmarks.harness import Contestant, in_turn, report
from benchmarks.kafka_commits import create_topic
from offsetmgr.coordinator.kafka import CLIENTS, KafkaCoordinator
from offsetmgr.devkafka import DevKafka
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 60.0
GROUPS = 600
SIZES = (1, 4, 8, CLIENTS, 16)


def commit_all(coordinator: KafkaCoordinator, number: int) -> None:
    """One commit of each group, all at once; wait for all."""
    offsets = {TopicPartition("bench", 0): OffsetAndMetadata(number + 1)}
    answers = [coordinator.commit(f"pool-{n}", offsets, TIMEOUT_S) for n in range(GROUPS)]
    for answer in answers:
        failures = answer.get(timeout=TIMEOUT_S).failures
        if failures:
            raise RuntimeError(f"not committed: {failures}")


def fetch_all(coordinator: KafkaCoordinator, _number: int) -> None:
    """One fetch of each group, all at once; wait for all."""
    answers = [coordinator.fetch(f"pool-{n}", None, TIMEOUT_S) for n in range(GROUPS)]
    for answer in answers:
        result = answer.get(timeout=TIMEOUT_S)
        if result.group_failure is not None or not result.offsets:
            raise RuntimeError(f"not fetched: {result}")


def threads() -> int:
    """All threads of this process, librdkafka's included where the system tells."""
    tasks = Path("/proc/self/task")
    return sum(1 for _ in tasks.iterdir()) if tasks.is_dir() else active_count()


def measure(bootstrap_servers: str, rounds: int, sizes: Sequence[int] = SIZES) -> None:
    """Let pools of each size take turns, and print the tables."""
    contestants, pools = [], []
    for size in sizes:
        before = threads()
        pool = KafkaCoordinator({"bootstrap.servers": bootstrap_servers}, clients=size)
        commit_all(pool, 0)
        name = f"{size} clients, {threads() - before} threads"
        contestants.append(Contestant(name, partial(commit_all, pool)))
        pools.append(pool)
    fetches = [Contestant("one fetcher", partial(fetch_all, pools[0]))]
    try:
        results = in_turn(contestants, rounds=rounds)
        report(f"Commits of {GROUPS} groups, all at once", results, items=GROUPS, unit="groups")
        results = in_turn(fetches, rounds=rounds)
        report(f"Fetches of {GROUPS} groups, all at once", results, items=GROUPS, unit="groups")
    finally:
        for pool in pools:
            pool.close(TIMEOUT_S)


def main() -> None:
    """Run on a broker of its own, or on ``--brokers``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator_pool")
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = parser.parse_args()
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        create_topic(brokers, 1)
        measure(brokers, options.rounds)


if __name__ == "__main__":
    main()
