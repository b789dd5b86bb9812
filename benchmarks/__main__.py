"""``python -m benchmarks [NAME...]``: each in a process of its own, all on one broker.

Without a name it runs those of ``make bench``.  The exit status is 1, with the figures, if a floor
of docs/benchmarks.md is missed.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from importlib import import_module
from typing import Final

from benchmarks.harness import MISSED, TOPIC
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.command import create_topic
from offsetmgr.service.run import tune_gc

NAMES: Final = (
    *("managers", "watch", "stores", "service", "consumer", "crowd", "overhead", "paths"),
    *("page", "follow"),
)
FURTHER: Final = ("consumer_peers", "streams", "views", "view_peers", "keys")
"""Longer ones, to be named; those of peers install them."""
MODULES: Final = {
    **dict.fromkeys(("overhead", "paths"), "spark"),
    **dict.fromkeys(("consumer_peers", "streams", "view_peers", "keys"), "peers"),
}
"""Modules of benchmarks that are a function of their name; the others are their ``run``."""


def main() -> int:
    """Run the benchmarks, print their tables, and return the exit status."""
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES + FURTHER))
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per contestant (5)")
    options = parser.parse_args()
    names = options.names or NAMES
    if options.brokers and len(names) == 1:
        return _run(names[0], options.brokers, options.rounds)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        command = [sys.executable, "-m", "benchmarks", "--brokers", brokers]
        command += ["--rounds", str(options.rounds)]
        done = [subprocess.run([*command, name], check=False).returncode for name in names]
    return int(any(done))


def _run(name: str, brokers: str, rounds: int) -> int:
    # Services are stopped on purpose: lines about them would bury the tables.
    logging.getLogger("offsetmgr").setLevel(logging.CRITICAL)
    create_topic(brokers, TOPIC, 1_000)
    # As the service does; the bare clients are measured under the same.
    tune_gc()
    module = import_module(f"benchmarks.{MODULES.get(name, name)}")
    missed = getattr(module, name if name in MODULES else "run")(brokers, rounds)
    for line in missed:
        print(f"{MISSED}{line}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
