"""The demo from end to end, as its users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
ORDERS = 4_000
DEMO_S = 500.0
"""A guard: longer than any demo takes."""

pytestmark = pytest.mark.timeout(600)


def start(scratch: Path, **environment: str) -> subprocess.Popen[str]:
    """A demo whose temporary files go to ``scratch``."""
    return subprocess.Popen(
        [sys.executable, "-m", "offsetmgr", "demo", "--orders", str(ORDERS)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_every_claim_holds(tmp_path: Path) -> None:
    """On its own Kafka, the demo finds each of its claims to hold, and leaves nothing behind."""
    with start(tmp_path) as demo:
        text, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, text
    assert "cannot be reached" not in text
    assert "All 7 claims hold" in text
    assert f"✔ {ORDERS:,} orders were produced; each of them was written exactly once" in text
    assert "✔ Lag is 0 on all 8 partitions" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.chaos
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_in_the_middle_nothing_is_left(tmp_path: Path, number: int, status: int) -> None:
    """Ctrl-C while Kafka, the service and Spark run ends all of them, and says so by its status."""
    with start(tmp_path) as demo:
        assert demo.stdout is not None
        said = next(line for line in demo.stdout if "Spark starts and reads" in line)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) >= 6, "Kafka, service and job, each under its watchdog"
        demo.send_signal(number)
        said += demo.communicate(timeout=DEMO_S)[0]
    assert demo.returncode == status, said
    assert [each for each in family if each.is_running()] == []
    assert list(tmp_path.iterdir()) == []


def test_a_failing_step_is_reported_and_its_logs_are_kept(tmp_path: Path) -> None:
    """It says what failed, and exits with 1."""
    with start(tmp_path, JAVA_HOME=str(tmp_path)) as demo:
        text, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 1, text
    assert "✘ Kafka needs Java and there is none in JAVA_HOME" in text
    (kept,) = tmp_path.iterdir()
    assert f"Kept: {kept}" in text
