"""100,000 managers in one process: time, memory, threads, and what they cost when idle.

By default each group is verified every five minutes, and a first commit is repeated once.  Here
both come sooner, so that they fall into one minute; the figure spreads their cost over the five.
"""

from __future__ import annotations

from time import perf_counter, sleep
from typing import Final

import psutil

from benchmarks.harness import TIMEOUT_S, at_most, cpu_s, resident_mb, show
from benchmarks.managers import spawn
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka.command import create_topic
from offsetmgr.manager import Factory

TOPIC: Final = "crowd"
"""Has just the partitions of a group, as a verification reads the ends of whole topics."""
GROUPS: Final = 1_000
SIZE: Final = 100
SETTINGS: Final = CommitSettings(verify_interval_s=60, recommit_interval_s=50)
QUIET_S: Final = 10.0
"""Before the first commit: there is nothing to verify."""
BUSY_S: Final = 60.0
"""After it: each manager is verified once, and committed once more."""
SPREAD_S: Final = CommitSettings().verify_interval_s

START_S: Final = 15
STOP_S: Final = 15
MEMORY_MB: Final = 700
THREADS: Final = 64
IDLE_PERCENT: Final = 5


def run(brokers: str, _rounds: int) -> list[str]:
    """Start them, commit all, let them idle, stop all."""
    create_topic(brokers, TOPIC, SIZE)
    process = psutil.Process()
    coordinator = KafkaCoordinator({"bootstrap.servers": brokers})
    factory = Factory(coordinator, SETTINGS)
    began = perf_counter()
    handles = spawn(factory, [f"crowd-{number}" for number in range(GROUPS)], SIZE, TOPIC)
    started_s, started_mb = perf_counter() - began, resident_mb(process)
    base = _core_used(process, QUIET_S)
    for handle in handles:
        handle.submit(0)
    factory.flush([handle.key for handle in handles], timeout=TIMEOUT_S).get()
    work_s = (_core_used(process, BUSY_S) - base) * BUSY_S
    idle = (base + work_s / SPREAD_S) * 100
    threads, worked_mb = process.num_threads(), resident_mb(process)
    began = perf_counter()
    left = factory.stop(timeout=TIMEOUT_S)
    stopped_s = perf_counter() - began
    coordinator.close(timeout=TIMEOUT_S)
    if len(left) != GROUPS * SIZE or any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed and stopped")
    figures = [
        ("started, all initial offsets known", started_s, START_S, "s"),
        ("resident memory", started_mb, MEMORY_MB, "MB"),
        ("nothing due", base * 100, IDLE_PERCENT, "% of a core"),
        ("idle", idle, IDLE_PERCENT, "% of a core"),
        ("threads, with all clients at work", threads, THREADS, ""),
        ("resident memory, all having committed", worked_mb, MEMORY_MB, "MB"),
        ("stopped", stopped_s, STOP_S, "s"),
    ]
    title = f"{GROUPS * SIZE:,} managers in one process: {GROUPS:,} groups x {SIZE:,} partitions"
    rows = [(what, f"{round(figure, 1):,} {unit}") for what, figure, _, unit in figures]
    show(title, ("what", "figure"), rows)
    return [line for floor in figures for line in at_most(*floor)]


def _core_used(process: psutil.Process, seconds: float) -> float:
    """Return the part of a core that the process uses during so many seconds."""
    before_s = cpu_s(process)
    sleep(seconds)
    return (cpu_s(process) - before_s) / seconds
