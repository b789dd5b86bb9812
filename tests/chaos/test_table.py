"""The table of ``make chaos`` counts what happened, and fails where anything is missing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.chaos.table import Tally, held, rows
from tests.faults.catalogue import FAULTS

if TYPE_CHECKING:
    from pathlib import Path


def tally_of(tries: Counter[int], losses: Counter[int]) -> Tally:
    made = Tally()
    made.tries, made.losses = tries, losses
    return made


ALL_TRIED = Counter(dict.fromkeys(FAULTS, 3))


def test_only_a_run_without_any_loss_and_gap_has_held() -> None:
    """A loss, a fault that nobody tried, a run that died and a failed chaos run are told."""
    well = tally_of(ALL_TRIED, Counter())
    assert held(0, well, 0)
    assert held(0, well, None)
    assert not held(0, well, 1)
    assert not held(1, well, 0)
    assert not held(0, tally_of(ALL_TRIED, Counter({5: 1})), 0)
    gap = Counter({number: 3 for number in FAULTS if number != 20})
    assert not held(0, tally_of(gap, Counter()), 0)


def test_the_table_has_a_row_for_each_fault_and_one_for_the_kills() -> None:
    """With what must hold, in lines that fit a terminal."""
    table = list(rows(tally_of(ALL_TRIED, Counter()), 10.0, 0))
    assert len(table) == 1 + len(FAULTS) + 1
    assert max(map(len, table)) <= 125
    assert table[21].split()[0] == "21"


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


def test_each_try_counts_for_all_that_it_proves(tmp_path: Path) -> None:
    """Failures of a test and of what it needs are both losses."""
    made = tmp_path / "test_made.py"
    made.write_text(TESTS)
    tally = Tally()
    quiet = ["-p", "no:terminal", "-p", "no:logging", "-p", "no:cacheprovider"]
    assert pytest.main([*quiet, "-m", "fault", str(made)], [tally]) != 0
    assert tally.tries == Counter({1: 1, 4: 1, 5: 1, 6: 1})
    assert tally.losses == Counter({5: 1, 6: 1})
