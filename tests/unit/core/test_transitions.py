"""The table of a manager's life in the documentation is that of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

from offsetmgr.manager import events
from offsetmgr.manager.step import TRANSITIONS

ROOT = Path(__file__).parents[3]


def test_the_documented_table_is_that_of_the_code() -> None:
    """``scripts/transitions.py`` prints it."""
    command = [sys.executable, "scripts/transitions.py"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert table in (ROOT / "docs" / "internals.md").read_text()


def test_every_phase_has_a_step_for_every_event() -> None:
    """No answer of the coordinator meets a manager without a step for it."""
    (handled,) = {frozenset(steps) for steps in TRANSITIONS.values()}
    assert handled == set(get_args(events.Event))
