"""``python -m benchmarks.crowd``: very many managers in one process, on a real broker.

Each run is a process of its own, whose memory and threads are this crowd's alone.  It fails, with
exit status 1 and the figure, where a target is missed, and where not everything is committed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from time import perf_counter, sleep
from typing import Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.kafka_commits import create_topic, spawn
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka import DevKafka
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import OffsetAndMetadata

TIMEOUT_S = 300.0
IDLE_S = 300.0
"""Each group looks once meanwhile at what stands, as often as by default.  No more often
in a shorter run either: it would measure the looks."""
TICKS = 10

MISSED: Final = "target missed: "
"""Begins each line that tells of one."""

_NOTHING = OffsetAndMetadata(0)


class Figures(NamedTuple):
    """What a crowd takes, as far as there is a target for it."""

    started_s: float
    stopped_s: float
    memory_mb: float
    """Resident, once all have started or once all have committed, whichever is more."""
    threads: int
    idle_percent: float
    """Of one core."""


TARGETS: Final = Figures(15, 15, 700, 64, 5)
"""What 100,000 managers may take at most."""

_TOLD: Final = (
    ("started", "s"),
    ("stopped", "s"),
    ("resident memory", "MB"),
    ("threads, with all clients at work", ""),
    ("idle", "% of a core"),
)


def missed(figures: Figures) -> list[str]:
    """Which targets ``figures`` miss: a line for each, with both."""
    return [
        f"{what}: {round(figure, 2):,} {unit}".rstrip() + f", more than {most:,}"
        for (what, unit), figure, most in zip(_TOLD, figures, TARGETS, strict=True)
        if figure > most
    ]


def measure(bootstrap_servers: str, groups: int, size: int, idle_s: float) -> Figures:
    """Start ``groups`` times ``size`` managers, let them idle, commit some, stop all."""
    process = psutil.Process()
    table = Table(
        title=f"{groups * size:,} managers in one process: {groups:,} groups x {size:,} partitions",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("what")
    table.add_column("figure", justify="right")
    coordinator = KafkaCoordinator({"bootstrap.servers": bootstrap_servers})
    look_s = max(idle_s, IDLE_S)
    factory = Factory(coordinator, CommitSettings(verify_interval_s=look_s))
    began = perf_counter()
    handles = spawn(factory, [f"crowd-{number}" for number in range(groups)], size)
    started_s = perf_counter() - began
    table.add_row("started, all initial offsets known", f"{started_s:.1f} s")
    started_mb = _resident_mb(process)
    table.add_row("resident memory", f"{started_mb:,.0f} MB")
    # All have something to look at.
    for handle in handles:
        handle.submit(0)
    factory.flush([handle.key for handle in handles], TIMEOUT_S).get()
    name = f"of a core, when idle, with a look of each group every {look_s:.0f} s"
    idle = _idle(process, idle_s)
    table.add_row(name, f"{idle:.1%}")
    for count in (1, size, 10 * size):
        spent_s = _ticks(process, factory, handles[:count])
        table.add_row(f"a commit of {count:,}, processor time", f"{spent_s * 1000:,.1f} ms")
    spent_s = _ticks(process, factory, handles[::size])
    table.add_row("a commit of one in each group, processor time", f"{spent_s * 1000:,.1f} ms")
    threads = process.num_threads()
    table.add_row("threads, with all clients at work", str(threads))
    worked_mb = _resident_mb(process)
    table.add_row("resident memory, all having committed", f"{worked_mb:,.0f} MB")
    began = perf_counter()
    left = factory.stop(TIMEOUT_S)
    stopped_s = perf_counter() - began
    table.add_row("stopped", f"{stopped_s:.1f} s")
    coordinator.close(TIMEOUT_S)
    if len(left) != groups * size or any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed and stopped")
    Console(width=110).print(table)
    return Figures(started_s, stopped_s, max(started_mb, worked_mb), threads, idle * 100)


def _resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def _idle(process: psutil.Process, idle_s: float) -> float:
    """The share of one core that the process takes while nothing is submitted."""
    before = sum(process.cpu_times()[:2])
    sleep(idle_s)
    return float(sum(process.cpu_times()[:2]) - before) / idle_s


def _ticks(process: psutil.Process, factory: Factory, handles: list[ManagerHandle]) -> float:
    """Seconds of processor time that a commit of ``handles`` takes, librdkafka's included."""
    before = sum(process.cpu_times()[:2])
    held = max((status.committed or _NOTHING).offset for status in (h.status() for h in handles))
    for number in range(TICKS):
        for handle in handles:
            handle.submit(held + number + 1)
        factory.flush([handle.key for handle in handles], TIMEOUT_S).get()
    return float(sum(process.cpu_times()[:2]) - before) / TICKS


def in_own_process(bootstrap_servers: str, groups: int, size: int, idle_s: float = IDLE_S) -> int:
    """Measure in a process that does nothing else; its exit status."""
    command = [sys.executable, "-m", "benchmarks.crowd", "--brokers", bootstrap_servers]
    command += ["--groups", str(groups), "--size", str(size), "--idle", str(idle_s)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Run on a broker of its own, or on ``--brokers``; the exit status says how it went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--groups", type=int, default=1_000, help="groups (1,000)")
    parser.add_argument("--size", type=int, default=100, help="partitions of each (100)")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds to idle (60)")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.brokers:
            figures = measure(options.brokers, options.groups, options.size, options.idle)
            misses = missed(figures)
            for line in misses:
                print(f"{MISSED}{line}", file=sys.stderr)
            return int(bool(misses))
        brokers = stack.enter_context(DevKafka()).bootstrap_servers
        create_topic(brokers, options.size)
        return in_own_process(brokers, options.groups, options.size, options.idle)


if __name__ == "__main__":
    sys.exit(main())
