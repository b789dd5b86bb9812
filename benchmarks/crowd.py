"""100,000 managers in one process: time, memory, threads, and what they cost when idle."""

from __future__ import annotations

from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.harness import TIMEOUT_S, at_most, cpu_s, resident_mb, show
from benchmarks.managers import spawn
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka.command import create_topic
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle

TOPIC: Final = "crowd"
"""Has just the partitions of a group, as a verification reads the ends of whole topics."""
GROUPS: Final = 1_000
SIZE: Final = 100
IDLE_S: Final = 60.0
"""For each round.  In five of them each group is verified once."""
COMMITS: Final = 10

START_S: Final = 15
STOP_S: Final = 15
MEMORY_MB: Final = 700
THREADS: Final = 64
IDLE_PERCENT: Final = 5

_NOTHING: Final = OffsetAndMetadata(0)


def run(brokers: str, rounds: int) -> list[str]:
    """Start them, let them idle, commit some, stop all."""
    create_topic(brokers, TOPIC, SIZE)
    process = psutil.Process()
    coordinator = KafkaCoordinator({"bootstrap.servers": brokers})
    factory = Factory(coordinator)
    began = perf_counter()
    handles = spawn(factory, [f"crowd-{number}" for number in range(GROUPS)], SIZE, TOPIC)
    started_s, started_mb = perf_counter() - began, resident_mb(process)
    # All have something to verify.
    for handle in handles:
        handle.submit(0)
    factory.flush([handle.key for handle in handles], timeout=TIMEOUT_S).get()
    before_s = cpu_s(process)
    sleep(IDLE_S * rounds)
    idle = (cpu_s(process) - before_s) / (IDLE_S * rounds) * 100
    some = {f"{count:,}": handles[:count] for count in (1, SIZE, 10 * SIZE)}
    some["one in each group"] = handles[::SIZE]
    commits = [(what, _commit_cpu_s(process, factory, each)) for what, each in some.items()]
    threads, worked_mb = process.num_threads(), resident_mb(process)
    began = perf_counter()
    left = factory.stop(timeout=TIMEOUT_S)
    stopped_s = perf_counter() - began
    coordinator.close(timeout=TIMEOUT_S)
    if len(left) != GROUPS * SIZE or any(result.uncommitted for result in left.values()):
        raise RuntimeError("not everything was committed and stopped")
    rows = [
        ("started, all initial offsets known", f"{started_s:.1f} s"),
        ("resident memory", f"{started_mb:,.0f} MB"),
        ("of a core, when idle", f"{idle:.1f} %"),
        *((f"a commit of {what}, processor time", f"{s * 1000:,.1f} ms") for what, s in commits),
        ("threads, with all clients at work", str(threads)),
        ("resident memory, all having committed", f"{worked_mb:,.0f} MB"),
        ("stopped", f"{stopped_s:.1f} s"),
    ]
    title = f"{GROUPS * SIZE:,} managers in one process: {GROUPS:,} groups x {SIZE:,} partitions"
    show(title, ("what", "figure"), rows)
    return [
        *at_most("started", started_s, START_S, "s"),
        *at_most("stopped", stopped_s, STOP_S, "s"),
        *at_most("resident memory", max(started_mb, worked_mb), MEMORY_MB, "MB"),
        *at_most("threads, with all clients at work", threads, THREADS),
        *at_most("idle", idle, IDLE_PERCENT, "% of a core"),
    ]


def _commit_cpu_s(process: psutil.Process, factory: Factory, handles: list[ManagerHandle]) -> float:
    """Return the processor time that a commit of ``handles`` takes, librdkafka's included."""
    before_s = cpu_s(process)
    highest = max((handle.status().committed or _NOTHING).offset for handle in handles)
    for number in range(COMMITS):
        for handle in handles:
            handle.submit(highest + number + 1)
        factory.flush([handle.key for handle in handles], timeout=TIMEOUT_S).get()
    return (cpu_s(process) - before_s) / COMMITS
