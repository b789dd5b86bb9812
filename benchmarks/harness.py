"""Rounds of contestants in turn, medians, ratios, floors.

Machines differ and so do minutes on one machine; a ratio of two things measured in turn in the
same run is what can be compared.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

TIMEOUT_S: Final = 120.0

TOPIC: Final = "bench"
"""The topic whose offsets are committed."""

MISSED: Final = "floor missed: "
"""Begins each line that tells of one."""


def in_turn(
    contestants: Mapping[str, Callable[[int], None]], *, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Run each contestant ``rounds`` times, taking turns; return the seconds of each round.

    A contestant takes the number of its round, so that rounds can differ in their data.  Warm-up
    rounds are not counted.
    """
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + warmup):
        for name, run in contestants.items():
            began = perf_counter()
            run(number)
            if number >= warmup:
                took[name].append(perf_counter() - began)
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
    missed = f"{what}: {round(figure, 2):,} {unit}".rstrip() + f", more than {bound:,}"
    return [missed] if figure > bound else []


def at_least(what: str, figure: float, bound: float, unit: str = "") -> list[str]:
    """Return a line where ``figure`` is less than ``bound``, else none."""
    missed = f"{what}: {round(figure, 2):,} {unit}".rstrip() + f", less than {bound:,}"
    return [missed] if figure < bound else []


def end(missed: Sequence[str]) -> int:
    """Print what was missed; return the exit status."""
    for line in missed:
        print(f"{MISSED}{line}", file=sys.stderr)
    return int(bool(missed))


def parser(module: str, description: str | None) -> ArgumentParser:
    """Return a parser with the option that all benchmarks have."""
    made = ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--brokers", help="a Kafka of yours; without it one is started")
    return made


def create_topic(bootstrap_servers: str, partitions: int) -> None:
    """Create ``TOPIC`` where it is not there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    if TOPIC not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result(TIMEOUT_S)
