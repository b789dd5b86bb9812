"""Provokes every fault of the catalogue several times, then kills at random, and prints a table.

``python -m tests.chaos.table [--tries N] [--minutes M]``; non-zero where anything was lost.

It is also the plugin of the pytest that it runs: that repeats every test of a fault, and appends a
line of JSON for each result to a file, so that a run that dies has told all before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]

_TRY: Final = "chaos_try"
_ROW: Final = "{:>3}  {:<45} {:<57} {:>6} {:>6}"


class Results(NamedTuple):
    """What came of the tests, by fault."""

    tries: Counter[int]
    losses: Counter[int]


class Excused(NamedTuple):
    """What the checker of the random kills holds against nobody, as its verdict counts it."""

    superseded: int
    late: int


def provoke(tries: int, folder: Path) -> tuple[int, Results]:
    """Run the tests of all faults; pytest's exit status, and what came of each."""
    tally = folder / "tally"
    tally.touch()
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.chaos.table", "-m", "fault or chaos"),
        # In one word each: pytest takes a path on its own for a place to look for its settings.
        *(f"--tries={tries}", f"--tally={tally}"),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return status, results_of(tally.read_text().splitlines())


def results_of(lines: Iterable[str]) -> Results:
    """Count what the plugin wrote; a test may prove several faults."""
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
            late, superseded = excused.late, excused.superseded
            promise = f"no loss, no fall; excused {superseded} of replaced clients, {late} late"
        yield _ROW.format("", what, promise, 1, int(kills != 0))


def held(status: int, results: Results, kills: int | None) -> bool:
    """True if every fault was tried, nothing was lost, and no run ended as it should not."""
    untried = [number for number in FAULTS if not results.tries[number]]
    return not (status or results.losses or untried or kills)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How often, and where to write."""
    parser.addoption("--tries", type=int, default=1, help="how often each test runs")
    parser.addoption("--tally", type=Path, help="file that results are appended to")


def pytest_configure(config: pytest.Config) -> None:
    """Listen to the results."""
    config.pluginmanager.register(Tally(config.getoption("--tally")))


@pytest.fixture(scope="session")
def chaos_try(request: pytest.FixtureRequest) -> Any:
    """Return which try this is."""
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a fault as often as asked for: all of them once, then all of them again."""
    is_fault = metafunc.definition.get_closest_marker("fault") is not None
    tries = metafunc.config.getoption("--tries") if is_fault else 1
    metafunc.fixturenames.append(_TRY)
    metafunc.parametrize(_TRY, range(1, tries + 1), indirect=True, scope="session")


class Tally:
    """Writes which faults were tried, and which tries were lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._faults: dict[str, Sequence[int]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember what each test proves."""
        self._faults = {
            item.nodeid: [number for mark in item.iter_markers("fault") for number in mark.args]
            for item in session.items
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line for each try, and for what fails around one."""
        if report.when != "call" and not report.failed:
            return
        line = {
            "test": report.nodeid,
            "faults": self._faults[report.nodeid],
            "lost": report.failed,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


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
