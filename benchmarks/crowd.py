"""``python -m benchmarks.crowd``: very many managers in one process, on a real broker.

Each run is a process of its own, whose memory and threads are this crowd's alone.  It fails, with
exit status 1 and the figure, where it takes more than ``MOST``, and where not everything is
committed.
"""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from benchmarks.harness import TIMEOUT_S, at_most, create_topic, end, parser, show
from benchmarks.managers import spawn
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka import DevKafka
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle

IDLE_S = 300.0
"""Each group is verified once meanwhile, as often as by default.  No more often in a shorter run
either: it would measure the verification."""
ROUNDS = 10

_NOTHING = OffsetAndMetadata(0)


class Figures(NamedTuple):
    """Figures of a crowd that have a bound."""

    started_s: float
    stopped_s: float
    memory_mb: float
    """Resident, once all have started or once all have committed, whichever is more."""
    threads: int
    idle_percent: float
    """Of one core."""


MOST: Final = Figures(15, 15, 700, 64, 5)
"""Bounds for 100,000 managers."""

_NAMES: Final = (
    ("started", "s"),
    ("stopped", "s"),
    ("resident memory", "MB"),
    ("threads, with all clients at work", ""),
    ("idle", "% of a core"),
)


def missed(figures: Figures) -> list[str]:
    """Return a line for each bound that is missed, with figure and bound."""
    rows = zip(_NAMES, figures, MOST, strict=True)
    return [
        line for (what, unit), figure, most in rows for line in at_most(what, figure, most, unit)
    ]


def measure(bootstrap_servers: str, groups: int, size: int, idle_s: float) -> Figures:
    """Start ``groups`` times ``size`` managers, let them idle, commit some, stop all."""
    process = psutil.Process()
    coordinator = KafkaCoordinator({"bootstrap.servers": bootstrap_servers})
    verify_s = max(idle_s, IDLE_S)
    factory = Factory(coordinator, CommitSettings(verify_interval_s=verify_s))
    began = perf_counter()
    handles = spawn(factory, [f"crowd-{number}" for number in range(groups)], size)
    started_s = perf_counter() - began
    started_mb = _resident_mb(process)
    # All have something to verify.
    for handle in handles:
        handle.submit(0)
    factory.flush([handle.key for handle in handles], timeout=TIMEOUT_S).get()
    before_s = _cpu_s(process)
    sleep(idle_s)
    idle = (_cpu_s(process) - before_s) / idle_s
    commits = [
        (f"{count:,}", _commit_cpu_s(process, factory, handles[:count]))
        for count in (1, size, 10 * size)
    ]
    commits.append(("one in each group", _commit_cpu_s(process, factory, handles[::size])))
    threads, worked_mb = process.num_threads(), _resident_mb(process)
    began = perf_counter()
    left = factory.stop(timeout=TIMEOUT_S)
    stopped_s = perf_counter() - began
    coordinator.close(timeout=TIMEOUT_S)
    if len(left) != groups * size or any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed and stopped")
    rows = [
        ("started, all initial offsets known", f"{started_s:.1f} s"),
        ("resident memory", f"{started_mb:,.0f} MB"),
        (f"of a core, when idle, each group verified every {verify_s:.0f} s", f"{idle:.1%}"),
        *((f"a commit of {what}, processor time", f"{s * 1000:,.1f} ms") for what, s in commits),
        ("threads, with all clients at work", str(threads)),
        ("resident memory, all having committed", f"{worked_mb:,.0f} MB"),
        ("stopped", f"{stopped_s:.1f} s"),
    ]
    title = f"{groups * size:,} managers in one process: {groups:,} groups x {size:,} partitions"
    show(title, ("what", "figure"), rows)
    return Figures(started_s, stopped_s, max(started_mb, worked_mb), threads, idle * 100)


def _resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _commit_cpu_s(process: psutil.Process, factory: Factory, handles: list[ManagerHandle]) -> float:
    """Return the processor time that a commit of ``handles`` takes, librdkafka's included."""
    before_s = _cpu_s(process)
    highest = max((handle.status().committed or _NOTHING).offset for handle in handles)
    for number in range(ROUNDS):
        for handle in handles:
            handle.submit(highest + number + 1)
        factory.flush([handle.key for handle in handles], timeout=TIMEOUT_S).get()
    return (_cpu_s(process) - before_s) / ROUNDS


def in_own_process(bootstrap_servers: str, groups: int, size: int, idle_s: float = IDLE_S) -> int:
    """Measure in a process that does nothing else; return its exit status."""
    command = [sys.executable, "-m", "benchmarks.crowd", "--brokers", bootstrap_servers]
    command += ["--groups", str(groups), "--size", str(size), "--idle", str(idle_s)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Run on a broker of its own, or on ``--brokers``; return the exit status."""
    arguments = parser("benchmarks.crowd", __doc__)
    arguments.add_argument("--groups", type=int, default=1_000, help="groups (1,000)")
    arguments.add_argument("--size", type=int, default=100, help="partitions of each (100)")
    arguments.add_argument("--idle", type=float, default=IDLE_S, help="seconds to idle (300)")
    options = arguments.parse_args()
    if options.brokers:
        return end(missed(measure(options.brokers, options.groups, options.size, options.idle)))
    with DevKafka() as kafka:
        create_topic(kafka.bootstrap_servers, options.size)
        return in_own_process(kafka.bootstrap_servers, options.groups, options.size, options.idle)


if __name__ == "__main__":
    sys.exit(main())
