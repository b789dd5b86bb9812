"""A view's recovery beside goka's view and the state of quixstreams.

Each recovers in a process of its own.  All three read the same topic, which is named and marked as
quixstreams' changelogs.  Run as a program, it is our view, and prints the seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.harness import PARTITIONS, beside_peers, filled, seconds_of
from benchmarks.streams import goka, quix
from benchmarks.views import ROWS, recovery
from offsetmgr.devkafka.command import create_topic
from offsetmgr.streams.topics import TopicManager

GROUP: Final = "bench"
EVENTS: Final = "events"
"""quixstreams' input; it recovers its state before the first message."""
TABLE: Final = f"changelog__{GROUP}--{EVENTS}--default"
HEADERS: Final = {"__column_family__": b"default"}


def run(brokers: str, rounds: int) -> list[str]:
    with TopicManager(brokers) as topics:
        topics.ensure_table(TABLE, PARTITIONS)
    filled(brokers, ROWS, ROWS, topic=TABLE, headers=HEADERS)
    create_topic(brokers, EVENTS, PARTITIONS)
    filled(brokers, 1_000, 1_000, topic=EVENTS)
    commands = {
        "offsetmgr": [sys.executable, "-m", "benchmarks.view_peers", brokers],
        "goka": [goka(), "view", brokers, TABLE],
        "quixstreams": [*quix("quix_view.py"), brokers, GROUP, EVENTS],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            with TemporaryDirectory(prefix="offsetmgr-views-") as folder:
                rates[name].append(ROWS / seconds_of([*command, f"{folder}/store"]))
    return beside_peers(f"Recovery of {ROWS:,} rows", rates)


if __name__ == "__main__":
    print(recovery(sys.argv[1], TABLE, Path(sys.argv[2]))[0])
