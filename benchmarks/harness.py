"""Rounds of contestants in turn, medians, ratios, floors.

Machines differ and so do minutes on one machine; a ratio of two things measured in turn in the
same run is what can be compared.  A benchmark is a module with ``run(brokers, rounds)``, which
prints tables and returns a line for each floor that is missed.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import uvicorn
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from offsetmgr.devkafka.command import create_topic
from offsetmgr.streams.messages import PARTITIONER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import psutil
    from starlette.types import ASGIApp

ROOT: Final = Path(__file__).parents[1]
TIMEOUT_S: Final = 120.0

TOPIC: Final = "bench"
"""The topic whose offsets are committed; it has 1,000 partitions."""

MISSED: Final = "floor missed: "
"""Begins each line that tells of one."""

PARTITIONS: Final = 4
VALUE: Final = b"x" * 100
_CHUNK: Final = 10_000


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used, all of its threads together."""
    return float(sum(process.cpu_times()[:2]))


def resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def in_turn(
    contestants: Mapping[str, Callable[[int], float | None]], *, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Run each contestant ``rounds`` times, taking turns; return the seconds of each round.

    A contestant takes the number of its round, so that rounds can differ in their data, and may
    return the seconds that count.  Warm-up rounds are not counted.
    """
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + warmup):
        for name, run in contestants.items():
            began = perf_counter()
            counted = run(number)
            if number >= warmup:
                took[name].append(perf_counter() - began if counted is None else counted)
    return took


def report(title: str, results: Mapping[str, Sequence[float]], *, items: int, unit: str) -> None:
    """Print a table; the first row is the baseline of the ratios."""
    base = median(next(iter(results.values())))
    rows = []
    for name, seconds in results.items():
        shown = [f"{each * 1000:,.1f} ms" for each in (median(seconds), min(seconds), max(seconds))]
        rate = f"{items / median(seconds):,.0f}"
        rows.append((name, *shown, rate, f"{median(seconds) / base:.2f}"))
    show(title, ("what", "median", "min", "max", f"{unit}/s", "x baseline"), rows)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def at_most(what: str, figure: float, bound: float, unit: str = "") -> list[str]:
    """Return a line where ``figure`` is more than ``bound``, else none."""
    text = f"{what}: {figure:,} instead of at most {bound:,} {unit}"
    return [text.rstrip()] if figure > bound else []


def at_least(what: str, figure: float, bound: float, unit: str = "") -> list[str]:
    """Return a line where ``figure`` is less than ``bound``, else none."""
    text = f"{what}: {figure:,} instead of at least {bound:,} {unit}"
    return [text.rstrip()] if figure < bound else []


def key_of(number: int, keys: int) -> str:
    return f"key-{number * 7919 % keys}"


def filled(
    brokers: str,
    count: int,
    keys: int,
    value: bytes = VALUE,
    *,
    topic: str | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> str:
    """Return a topic with ``count`` new messages over ``keys`` keys; by default a new topic."""
    if topic is None:
        topic = f"bench-{uuid4().hex[:8]}"
        create_topic(brokers, topic, PARTITIONS)
    config = {"bootstrap.servers": brokers, "linger.ms": 20, "partitioner": PARTITIONER}
    # A busy broker may take longer than 30 s to tell of a new topic.
    config["topic.metadata.propagation.max.ms"] = 300_000
    producer = Producer(config)
    for number in range(count):
        producer.produce(topic, value, key_of(number, keys), headers=dict(headers or {}))
        if number % _CHUNK == 0:
            producer.flush(TIMEOUT_S)
    producer.flush(TIMEOUT_S)
    return topic


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application in a thread of this process; yield its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, access_log=False, log_level="error", lifespan="off")
    )
    thread = Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
