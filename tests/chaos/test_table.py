"""The table of ``make chaos`` counts what happened, and is no success where anything is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.chaos.table import Excused, Results, held, results_of, rows
from tests.faults.catalogue import FAULTS

ROOT = Path(__file__).parents[2]
ALL_HELD = Results(Counter(dict.fromkeys(FAULTS, 3)), Counter())


def test_a_test_counts_for_all_that_it_proves() -> None:
    """Each result of it is a try of each of its faults."""
    lines = [
        json.dumps({"test": "a", "faults": [1, 4], "lost": False}),
        json.dumps({"test": "a", "faults": [1, 4], "lost": True}),
        json.dumps({"test": "b", "faults": [4], "lost": False}),
    ]
    assert results_of(lines) == Results(Counter({1: 2, 4: 3}), Counter({1: 1, 4: 1}))


def test_only_a_run_without_any_loss_and_gap_has_held() -> None:
    """A loss, a fault that nobody tried, a run that died and a failed chaos run are told."""
    assert held(0, ALL_HELD, 0)
    assert held(0, ALL_HELD, None)
    assert not held(0, ALL_HELD, 1)
    assert not held(1, ALL_HELD, 0)
    assert not held(0, ALL_HELD._replace(losses=Counter({5: 1})), 0)
    gap = Counter({number: 3 for number in FAULTS if number != 20})
    assert not held(0, Results(gap, Counter()), 0)


def test_the_table_has_a_row_for_each_fault_and_one_for_the_kills() -> None:
    """With what must hold, in lines that fit a terminal."""
    table = list(rows(ALL_HELD, 10.0, 0))
    assert len(table) == 1 + len(FAULTS) + 1
    assert max(map(len, table)) <= 125
    assert table[21].split()[0] == "21"


def test_the_row_of_the_kills_says_what_was_excused() -> None:
    """Where they came to their end: an excuse that is used often would hide what breaks."""
    table = list(rows(ALL_HELD, 10.0, 0, Excused(superseded=12, late=345)))
    assert "excused 12 of replaced clients, 345 late" in table[-1]
    assert len(table[-1]) <= 125
    assert "excused" not in list(rows(ALL_HELD, 10.0, 1))[-1]


TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError

@pytest.mark.fault(1, 4)
def test_good(): pass

@pytest.mark.fault(5)
def test_bad(): assert False

@pytest.mark.fault(6)
def test_broken(broken): pass

def test_other(): pass
"""


def test_every_test_runs_as_often_as_asked_and_is_told(tmp_path: Path) -> None:
    """Failures of a test and of what it needs are both losses."""
    (tmp_path / "test_made.py").write_text(TESTS)
    tally = tmp_path / "tally"
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.chaos.table", "-m", "fault"),
        *("--tries", "2", "--tally", str(tally)),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    found = results_of(tally.read_text().splitlines())
    assert found == Results(Counter({1: 2, 4: 2, 5: 2, 6: 2}), Counter({5: 2, 6: 2}))
