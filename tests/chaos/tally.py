"""A plugin of pytest for ``make chaos``: every test of a fault several times, and what came of it.

``pytest -p tests.chaos.tally -m "fault or chaos" --tries 3 --tally FILE`` appends a line of JSON
for each result, so that a run that dies has told all before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRY = "chaos_try"


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
