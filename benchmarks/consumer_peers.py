"""Our consumers beside other Python ones, in one run, each in a process of its own.

The others (aiokafka, faust-streaming, pyrallel-consumer) are installed into virtual environments
under ``.peers``.  pyrallel-consumer needs Python 3.12; it is left out where there is none.  A peer
that is faster than ours is a floor that is missed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import beside_peers, filled, peer_python, seconds_of

PROGRAM: Final = str(Path(__file__).with_name("peer_programs.py"))


class Peer(NamedTuple):
    """A consumer to compare with."""

    name: str
    requirement: str
    python: str
    counts: dict[str, int]
    """Messages of each work; fewer for a slow one, as it is rates that are compared."""


OURS: Final = {"single": 300_000, "batch": 1_000_000, "handlers": 40_000}
PEERS: Final = (
    Peer("aiokafka", "aiokafka==0.14.0", "python3", OURS),
    Peer("faust", "faust-streaming==0.15.3", "python3", dict.fromkeys(OURS, 40_000)),
    Peer("pyrallel", "pyrallel-consumer==1.0.0", "python3.12",
         {"single": 10_000, "handlers": 10_000}),
)  # fmt: skip
FLOORS: Final = {"single": 1.0, "batch": 1.0, "handlers": 0.9}
"""Of our rate against each peer's.  64 handlers of 5 ms make 12,800/s at most, by any of them; only
ours and pyrallel's keep the order of a key."""


def run(brokers: str, rounds: int) -> list[str]:
    commands = {"offsetmgr": [sys.executable, "-m", "benchmarks.consumer"]}
    for peer in PEERS:
        base = sys.executable if peer.python == "python3" else shutil.which(peer.python)
        if base is None or subprocess.run([base, "-c", ""], check=False).returncode != 0:
            print(f"{peer.name} is left out: there is no {peer.python}")
            continue
        python = peer_python(peer.name, peer.requirement, base)
        commands[peer.name] = [python, PROGRAM, peer.name]
    topic = filled(brokers, max(OURS.values()), 1_000)
    counts = {"offsetmgr": OURS} | {peer.name: peer.counts for peer in PEERS}
    missed = []
    for work, floor in FLOORS.items():
        rates: dict[str, list[float]] = {name: [] for name in commands if work in counts[name]}
        for _ in range(rounds):
            for name, found in rates.items():
                count = counts[name][work]
                command = [*commands[name], work, brokers, topic, str(count)]
                found.append(count / seconds_of(command))
        missed += beside_peers(f"{work}: messages", rates, floor)
    return missed
