"""``python -m benchmarks.spark``: what Spark notices of offsetmgr, on a real Spark and broker.

A process of its own, whose Spark does nothing else.  It fails, with exit status 1, where a query
with a listener is slower than its bound, where a query fails, and where an offset is not committed.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from contextlib import ExitStack

from benchmarks.spark_lab import lab
from benchmarks.spark_overhead import overhead
from benchmarks.spark_paths import paths
from offsetmgr.devkafka import DevKafka


def in_own_process(bootstrap_servers: str) -> int:
    """Measure in a process that does nothing else; its exit status."""
    command = [sys.executable, "-m", "benchmarks.spark", "--brokers", bootstrap_servers]
    return subprocess.run(command, check=False).returncode


def main() -> None:
    """Run on a broker of its own, or on ``--brokers``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--only", choices=("overhead", "paths"), help="one of the two")
    parser.add_argument("--rounds", type=int, help="rounds (6 of the overhead, 2 of the paths)")
    parser.add_argument("--records", type=int, default=1_000_000, help="through each path (1 mio)")
    options = parser.parse_args()
    # Services that do not commit are what is measured: nobody needs to be told.
    logging.getLogger("offsetmgr").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        spark = stack.enter_context(lab(brokers))
        if options.only != "overhead":
            paths(spark, records=options.records, rounds=options.rounds or 2)
        if options.only != "paths" and not overhead(spark, rounds=options.rounds or 6):
            sys.exit("a listener costs more than its bound")


if __name__ == "__main__":
    main()
