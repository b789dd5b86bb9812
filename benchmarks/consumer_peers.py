"""``python -m benchmarks.consumer_peers``: our consumers beside other Python ones, in one run.

The others (aiokafka, faust-streaming, pyrallel-consumer) are installed into virtual environments
under ``.peers``.  pyrallel-consumer needs Python 3.12; it is left out where there is none.  Fails,
with exit status 1 and the figures, where one of them is faster than ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.consumer import filled
from benchmarks.harness import at_least, end, parser, show
from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
HOME: Final = ROOT / ".peers"
PROGRAM: Final = Path(__file__).with_name("peer_programs.py")
TIMEOUT_S: Final = 600.0


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
    Peer("faust", "faust-streaming==0.15.3", "python3",
         {"single": 40_000, "batch": 40_000, "handlers": 40_000}),
    Peer("pyrallel", "pyrallel-consumer==1.0.0", "python3.12",
         {"single": 10_000, "handlers": 10_000}),
)  # fmt: skip
FLOORS: Final = {"single": 1.0, "batch": 1.0, "handlers": 0.9}
"""Of our rate against each peer's.  64 handlers of 5 ms make 12,800/s at most, by any of them; only
ours and pyrallel's keep the order of a key."""


def main() -> int:
    """Run all, print tables, and return the exit status."""
    arguments = parser("benchmarks.consumer_peers", __doc__)
    arguments.add_argument("--rounds", type=int, default=3, help="rounds per contestant (3)")
    options = arguments.parse_args()
    pythons = {"offsetmgr": sys.executable, **dict(_installed())}
    missed: list[str] = []
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        topic = filled(brokers, max(OURS.values()))
        for work in OURS:
            found = [each for each in PEERS if work in each.counts and each.name in pythons]
            counts = {"offsetmgr": OURS[work]} | {each.name: each.counts[work] for each in found}
            missed += _compared(work, counts, pythons, brokers, topic, options.rounds)
    return end(missed)


def _installed() -> Iterator[tuple[str, str]]:
    """Yield the peers that could be installed, each with its Python."""
    for peer in PEERS:
        home = HOME / peer.name
        python = home / "bin" / "python"
        if not python.exists():
            base = sys.executable if peer.python == "python3" else _newer_python(peer.python)
            if base is None:
                print(f"{peer.name} is left out: there is no {peer.python}")
                continue
            subprocess.run([base, "-m", "venv", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", peer.requirement], check=True)
        yield peer.name, str(python)


def _newer_python(name: str) -> str | None:
    """Return a Python of that version, also one that pyenv has and does not offer here."""
    versions = Path.home() / ".pyenv" / "versions"
    for found in (shutil.which(name), *map(str, sorted(versions.glob(f"*/bin/{name}")))):
        if found is not None:
            tried = subprocess.run([found, "-c", ""], capture_output=True, check=False)
            if tried.returncode == 0:
                return found
    return None


def _compared(
    work: str,
    counts: dict[str, int],
    pythons: dict[str, str],
    brokers: str,
    topic: str,
    rounds: int,
) -> list[str]:
    rates: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(rounds):
        for name, count in counts.items():
            rates[name].append(count / _seconds(name, work, pythons[name], brokers, topic, count))
    # What else runs on the machine makes a round slower, never faster.
    best = {name: max(found) for name, found in rates.items()}
    ours = best["offsetmgr"]
    rows = [
        (name, f"{rate:,.0f}", f"{median(rates[name]):,.0f}", f"{ours / rate:.2f}")
        for name, rate in best.items()
    ]
    show(f"{work}: messages/s", ("consumer", "best round", "median", "ours, times it"), rows)
    missed = []
    for name in list(best)[1:]:
        what = f"{work}, our rate beside {name}"
        missed += at_least(what, ours / best[name], FLOORS[work], "times")
    return missed


def _seconds(name: str, work: str, python: str, brokers: str, topic: str, count: int) -> float:
    done = subprocess.run(
        [python, str(PROGRAM), name, work, brokers, topic, str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT) if name == "offsetmgr" else ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if "took_s=" not in done.stdout:
        raise RuntimeError(f"{name} has failed: {done.stderr[-2_000:]}")
    return float(done.stdout.rpartition("took_s=")[2].split()[0])


if __name__ == "__main__":
    sys.exit(main())
