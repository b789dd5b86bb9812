"""Provokes every fault of the catalogue several times, then kills at random, and prints a table.

``python -m tests.chaos.table [--tries N] [--minutes M]``; non-zero where anything was lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]

_ROW: Final = "{:>3}  {:<45} {:<57} {:>6} {:>6}"


class Results(NamedTuple):
    """What came of the tests, by fault."""

    tries: Counter[int]
    losses: Counter[int]


class Excused(NamedTuple):
    """What the checker of the random kills holds against nobody, as its verdict counts it."""

    revenants: int
    late: int


def provoke(tries: int, folder: Path) -> tuple[int, Results]:
    """Run the tests of all faults; pytest's exit status, and what came of each."""
    tally = folder / "tally"
    tally.touch()
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.chaos.tally", "-m", "fault or chaos"),
        # In one word each: pytest takes a path on its own for a place to look for its settings.
        *(f"--tries={tries}", f"--tally={tally}"),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return status, results_of(tally.read_text().splitlines())


def results_of(lines: Iterable[str]) -> Results:
    """Count what ``tests.chaos.tally`` wrote; a test may prove several faults."""
    results = Results(Counter(), Counter())
    for line in lines:
        told = json.loads(line)
        results.tries.update(told["faults"])
        if told["lost"]:
            results.losses.update(told["faults"])
    return results


def kill_at_random(minutes: float, folder: Path) -> tuple[int, Excused | None]:
    """Run the random kills; their exit status, and what was excused, where they came so far."""
    told = folder / "excused"
    command = [sys.executable, "-m", "tests.chaos.run", str(minutes), f"--excused={told}"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return status, Excused(*json.loads(told.read_text())) if told.exists() else None


def rows(
    results: Results, minutes: float, kills: int | None, excused: Excused | None = None
) -> Iterator[str]:
    """The table, line by line; ``kills`` is None where there were none."""
    yield _ROW.format("#", "fault", "what must hold", "tries", "losses")
    for number, fault in FAULTS.items():
        tries, losses = results.tries[number], results.losses[number]
        yield _ROW.format(number, fault.what, fault.promise, tries, losses)
    if kills is not None:
        what = f"everything at random, for {minutes:g} minutes"
        promise = "nothing acknowledged is lost, nothing goes backwards"
        if excused is not None:
            late, revenants = excused.late, excused.revenants
            promise = f"no loss, no fall; excused {revenants} of replaced clients, {late} late"
        yield _ROW.format("", what, promise, 1, int(kills != 0))


def held(status: int, results: Results, kills: int | None) -> bool:
    """Whether every fault was tried, nothing was lost, and no run ended as it should not."""
    untried = [number for number in FAULTS if not results.tries[number]]
    return not (status or results.losses or untried or kills)


def main(arguments: Sequence[str]) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.table", description=__doc__)
    parser.add_argument("--tries", type=int, default=3, help="how often each test runs")
    parser.add_argument("--minutes", type=float, default=10.0, help="of random kills; 0 for none")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        status, results = provoke(given.tries, Path(folder))
        kills, excused = (
            kill_at_random(given.minutes, Path(folder)) if given.minutes else (None, None)
        )
    for row in rows(results, given.minutes, kills, excused):
        sys.stdout.write(f"{row}\n")
    return 0 if held(status, results, kills) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
