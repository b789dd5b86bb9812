"""A hundred thousand managers in one process, on a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import MISSED

ROOT = Path(__file__).parents[2]


@pytest.mark.chaos
@pytest.mark.fault(29)
@pytest.mark.timeout(900)
def test_a_hundred_thousand_managers_fit_into_one_process() -> None:
    """Their memory and threads are within bounds, and every one is committed and stopped.

    How long that takes says how busy the machine is; whoever measures that runs the command alone.
    """
    command = [sys.executable, "-m", "benchmarks", "crowd", "--rounds", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = run.stderr.splitlines()
    misses = [line.removeprefix(MISSED) for line in lines if line.startswith(MISSED)]
    assert run.returncode == (1 if misses else 0), run.stderr
    assert "100,000 managers in one process" in run.stdout
    assert [line for line in misses if line.startswith(("resident memory", "threads"))] == []
