"""Provokes every fault of the catalogue several times, then kills at random, and prints a table.

``python -m tests.chaos.table [--tries N] [--minutes M]``; non-zero where anything was lost.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]

_ROW: Final = "{:>3}  {:<45} {:<57} {:>6} {:>6}"


class Tally:
    """A plugin of pytest: counts by fault how often it was tried, and how often a try failed."""

    def __init__(self) -> None:
        self.tries: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()
        self._faults: dict[str, Sequence[int]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember what each test proves; it may be several faults."""
        self._faults = {
            item.nodeid: [number for mark in item.iter_markers("fault") for number in mark.args]
            for item in session.items
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a try, and what fails in it or around it."""
        if report.when == "call" or report.failed:
            self.tries.update(self._faults[report.nodeid])
        if report.failed:
            self.losses.update(self._faults[report.nodeid])


def provoke(tries: int, tally: Tally) -> int:
    """Run the tests of all faults so often, the other long ones once; 0 where all of them held."""
    kinds = ["fault or chaos", *["fault"] * (tries - 1)]
    return max(pytest.main(["-m", kind, str(ROOT / "tests")], [tally]) for kind in kinds)


def rows(tally: Tally, minutes: float, kills: int | None) -> Iterator[str]:
    """The table, line by line; ``kills`` is the random kills' exit status, None without any."""
    yield _ROW.format("#", "fault", "what must hold", "tries", "losses")
    for number, fault in FAULTS.items():
        tries, losses = tally.tries[number], tally.losses[number]
        yield _ROW.format(number, fault.what, fault.promise, tries, losses)
    if kills is not None:
        what = f"everything at random, for {minutes:g} minutes"
        promise = "nothing acknowledged is lost, nothing goes backwards"
        yield _ROW.format("", what, promise, 1, int(kills != 0))


def held(status: int, tally: Tally, kills: int | None) -> bool:
    """True if every fault was tried, nothing was lost, and no run ended as it should not."""
    untried = [number for number in FAULTS if not tally.tries[number]]
    return not (status or tally.losses or untried or kills)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.table", description=__doc__)
    parser.add_argument("--tries", type=int, default=3, help="how often each test runs")
    parser.add_argument("--minutes", type=float, default=10.0, help="of random kills; 0 for none")
    given = parser.parse_args(arguments)
    tally = Tally()
    status = provoke(given.tries, tally)
    kills: int | None = None
    if given.minutes:
        command = [sys.executable, "-m", "tests.chaos.run", str(given.minutes)]
        kills = subprocess.run(command, cwd=ROOT, check=False).returncode
    for row in rows(tally, given.minutes, kills):
        sys.stdout.write(f"{row}\n")
    return 0 if held(status, tally, kills) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
