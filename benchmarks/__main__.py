"""``python -m benchmarks``: all of them, on a broker of their own (or ``--brokers host:port``)."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack

import structlog

from benchmarks import crowd, fence, kafka_commits, managers, service, spark
from offsetmgr.devkafka import DevKafka
from offsetmgr.service.collector import spare_the_collector

JVM_WARMUP = 100
"""Rounds of short requests before they count: until then the compiler of the broker's JVM takes a
core from whoever's turn it is, and whoever works most in Python beside it looks slowest."""


def main() -> None:
    """Run the benchmarks and print their tables; fails where the crowd or Spark misses a target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = parser.parse_args()
    # A line for each of thousands of groups would bury the tables.
    warnings = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=warnings)
    # As the service does; the bare clients are measured under the same.
    spare_the_collector()
    managers.submits(count=500_000, rounds=options.rounds)
    managers.groupwise(size=1_000, count=500, rounds=options.rounds)
    managers.life(groups=1_000, size=10, rounds=options.rounds)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        kafka_commits.create_topic(brokers, 1_000)
        kafka_commits.commits(
            brokers, groups=1, size=1_000, rounds=options.rounds * 10, warmup=JVM_WARMUP
        )
        kafka_commits.commits(brokers, groups=1_000, size=10, rounds=options.rounds)
        kafka_commits.initial_fetch(brokers, size=1_000, rounds=options.rounds * 2)
        statuses = [crowd.in_own_process(brokers, groups=1_000, size=100)]
        fence.fence(brokers, groups=1_000, commits=100, rounds=options.rounds)
        service.many_managers(brokers, groups=10, size=1_000, batches=300)
        statuses.append(spark.in_own_process(brokers))
    # Not before all have told theirs.
    sys.exit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
