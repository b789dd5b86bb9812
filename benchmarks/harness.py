"""How things are measured: rounds of contestants in turn, medians, ratios.

Machines differ and so do minutes on one machine; a ratio of two things measured in turn in the
same run is what can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Contestant:
    """One way to do the work of a benchmark."""

    name: str
    run: Callable[[int], None]
    """Does the work once; told the number of the round, so that rounds can differ in their data."""


@dataclass(frozen=True)
class Measured:
    """What a contestant took."""

    name: str
    seconds: tuple[float, ...]
    """Of each round."""

    @property
    def median_s(self) -> float:
        """Seconds of the middle round."""
        return median(self.seconds)


def in_turn(contestants: Sequence[Contestant], *, rounds: int, warmup: int = 1) -> list[Measured]:
    """Run each contestant ``rounds`` times, taking turns; warm-up rounds are not counted."""
    took: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds + warmup):
        for contestant in contestants:
            began = perf_counter()
            contestant.run(number)
            if number >= warmup:
                took[contestant.name].append(perf_counter() - began)
    return [Measured(name, tuple(seconds)) for name, seconds in took.items()]


def report(title: str, results: Sequence[Measured], *, items: int, unit: str) -> None:
    """Print a table; the first row is the baseline that the ratios speak of."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("what")
    for column in ("median", "min", "max", f"{unit}/s", "x baseline"):
        table.add_column(column, justify="right")
    base = results[0].median_s
    for result in results:
        table.add_row(
            result.name,
            f"{result.median_s * 1000:,.1f} ms",
            f"{min(result.seconds) * 1000:,.1f} ms",
            f"{max(result.seconds) * 1000:,.1f} ms",
            f"{items / result.median_s:,.0f}",
            f"{result.median_s / base:.2f}",
        )
    Console(width=110).print(table)
