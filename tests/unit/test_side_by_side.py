"""The script behind ``make test``: two halves at once, of which none may fail unseen."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "side-by-side.sh"
WAIT_S: Final = 60.0
"""A guard against a script that hangs."""

# What a shell starts in the background ignores a Ctrl-C, and so would the script.
HEEDING: Final = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def start(first: str, second: str) -> subprocess.Popen[str]:
    """Run both commands by the script."""
    return subprocess.Popen(
        [sys.executable, "-c", HEEDING, SCRIPT, first, second],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("first", "second", "failed"),
    [(0, 0, []), (3, 0, ["first"]), (0, 5, ["second"]), (3, 5, ["first", "second"])],
)
def test_it_fails_where_either_fails(first: int, second: int, failed: list[str]) -> None:
    """What both have printed is shown, and who failed is named at the end."""
    done = start(f": first; echo one; exit {first}", f": second; echo two; exit {second}")
    output = done.communicate(timeout=WAIT_S)[0]
    assert {"one", "two"} <= set(output.splitlines())
    assert [line.split()[5] for line in output.splitlines() if "exit status" in line] == [
        f"{each};" for each in failed
    ]
    assert done.returncode == (1 if failed else 0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_both_with_all_they_have_started(number: int, status: int) -> None:
    """As a Ctrl-C in the terminal would."""
    stopped = start("sleep 600; echo never", "echo ready; sleep 600; echo never")
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == "ready\n"
    family = psutil.Process(stopped.pid).children(recursive=True)
    stopped.send_signal(number)
    assert stopped.communicate(timeout=WAIT_S)[0] == ""
    assert stopped.returncode == status
    assert psutil.wait_procs(family, WAIT_S)[1] == []
