"""``python -m benchmarks``: all of them, on a broker of their own (or ``--brokers host:port``).

Fails, with exit status 1 and the figures, where a floor is missed.
"""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack

import structlog

from benchmarks import clusters, consumer, crowd, managers, service, spark, stores, watch
from benchmarks.harness import create_topic, end, parser
from offsetmgr.devkafka import DevKafka
from offsetmgr.service.run import tune_gc


def main() -> int:
    """Run the benchmarks, print their tables, and return the exit status."""
    arguments = parser("benchmarks", __doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = arguments.parse_args()
    rounds = options.rounds
    # A line for each of thousands of groups would bury the tables.
    warnings = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=warnings)
    # As the service does; the bare clients are measured under the same.
    tune_gc()
    missed = managers.submits(count=500_000, rounds=rounds)
    missed += managers.groupwise(size=1_000, count=500, rounds=rounds)
    missed += watch.evaluation(size=10_000, rounds=rounds)
    missed += consumer.tracking(1_000_000, rounds)
    missed += stores.transactions(batches=10, rounds=rounds * 10)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        create_topic(brokers, 1_000)
        missed += managers.commits(brokers, groups=1, size=1_000, rounds=rounds * 10)
        missed += managers.commits(brokers, groups=1_000, size=10, rounds=rounds)
        managers.initial_offsets(brokers, size=1_000, rounds=rounds * 2)
        missed += service.many_managers(brokers, groups=10, size=1_000, batches=300)
        service.fence(brokers, commits=100, rounds=rounds)
        missed += consumer.reading(brokers, count=200_000, rounds=rounds)
        missed += consumer.workers(brokers, 40_000)
        missed += clusters.reading(brokers, count=200_000, rounds=rounds)
        if crowd.in_own_process(brokers, groups=1_000, size=100) != 0:
            missed.append("100,000 managers: see above")
        if spark.in_own_process(brokers) != 0:
            missed.append("Spark: see above")
    return end(missed)


if __name__ == "__main__":
    sys.exit(main())
