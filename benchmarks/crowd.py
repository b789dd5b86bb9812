"""``python -m benchmarks.crowd``: very many managers in one process, on a real broker.

Each run is a process of its own, whose memory and threads are this crowd's alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from time import perf_counter, sleep

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
IDLE_S = 60.0
"""Each group looks once meanwhile at what stands: five times as often as by default."""
TICKS = 10

_NOTHING = OffsetAndMetadata(0)


def measure(bootstrap_servers: str, groups: int, size: int, idle_s: float) -> None:
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
    factory = Factory(coordinator, CommitSettings(verify_interval_s=idle_s))
    began = perf_counter()
    handles = spawn(factory, [f"crowd-{number}" for number in range(groups)], size)
    table.add_row("started, all initial offsets known", f"{perf_counter() - began:.1f} s")
    table.add_row("resident memory", f"{process.memory_info().rss / 2**20:,.0f} MB")
    # All have something to look at.
    for handle in handles:
        handle.submit(0)
    factory.flush([handle.key for handle in handles], TIMEOUT_S).get()
    name = f"of a core, when idle, with a look of each group every {idle_s:.0f} s"
    table.add_row(name, f"{_idle(process, idle_s):.1%}")
    for count in (1, size, 10 * size):
        spent_s = _ticks(process, factory, handles[:count])
        table.add_row(f"a commit of {count:,}, processor time", f"{spent_s * 1000:,.1f} ms")
    spent_s = _ticks(process, factory, handles[::size])
    table.add_row("a commit of one in each group, processor time", f"{spent_s * 1000:,.1f} ms")
    table.add_row("threads, with all clients at work", str(process.num_threads()))
    began = perf_counter()
    left = factory.stop(TIMEOUT_S)
    table.add_row("stopped", f"{perf_counter() - began:.1f} s")
    coordinator.close(TIMEOUT_S)
    if len(left) != groups * size or any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed and stopped")
    Console(width=110).print(table)


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


def in_own_process(bootstrap_servers: str, groups: int, size: int, idle_s: float = IDLE_S) -> None:
    """Measure in a process that does nothing else."""
    command = [sys.executable, "-m", "benchmarks.crowd", "--brokers", bootstrap_servers]
    command += ["--groups", str(groups), "--size", str(size), "--idle", str(idle_s)]
    subprocess.run(command, check=True)


def main() -> None:
    """Run on a broker of its own, or on ``--brokers``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    parser.add_argument("--groups", type=int, default=1_000, help="groups (1,000)")
    parser.add_argument("--size", type=int, default=100, help="partitions of each (100)")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds to idle (60)")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.brokers:
            measure(options.brokers, options.groups, options.size, options.idle)
            return
        brokers = stack.enter_context(DevKafka()).bootstrap_servers
        create_topic(brokers, options.size)
        in_own_process(brokers, options.groups, options.size, options.idle)


if __name__ == "__main__":
    main()
