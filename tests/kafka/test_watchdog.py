"""A watched process ends with its owner, and with nothing less."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import psutil
import pytest

from offsetmgr.devkafka.process import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WAIT_S = 180.0
_SLEEP = ["sleep", "600"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[WatchedProcess]:
    """A watched process that would run for minutes."""
    process = WatchedProcess(_SLEEP, cwd=tmp_path, log_path=tmp_path / "log")
    yield process
    process.close()


def test_signals_arrive(sleeper: WatchedProcess) -> None:
    """It is paused, goes on, and ends; a later signal goes nowhere, without an error."""
    process = psutil.Process(sleeper.pid)
    assert not sleeper.wait(0.01)
    sleeper.signal(signal.SIGSTOP)
    while process.status() != psutil.STATUS_STOPPED:
        pass
    sleeper.signal(signal.SIGCONT)
    while process.status() == psutil.STATUS_STOPPED:
        pass
    for _ in range(2):
        sleeper.signal(signal.SIGTERM)
        assert sleeper.wait(_WAIT_S)
        assert not sleeper.running()


def test_terminal_signals_spare_it(sleeper: WatchedProcess) -> None:
    """Neither the process nor its watchdog is in the session that a Ctrl-C goes to."""
    watchdog = psutil.Process(sleeper.pid).ppid()
    assert os.getsid(sleeper.pid) == os.getsid(watchdog) == watchdog
    assert os.getsid(0) != watchdog


def test_it_outlives_its_thread_and_ends_with_close(tmp_path: Path) -> None:
    """A second ``close`` is harmless."""
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(WatchedProcess, _SLEEP, cwd=tmp_path, log_path=tmp_path / "log")
    with closing(started.result()) as process:
        assert not process.wait(0.5)
        process.close()
        assert not psutil.pid_exists(process.pid)


def test_a_frozen_watchdog_ends_with_close(sleeper: WatchedProcess) -> None:
    """One without a turn on a busy machine raised an error after 30 s, and the process stayed."""
    os.killpg(os.getpgid(sleeper.pid), signal.SIGSTOP)
    sleeper.close()
    assert not psutil.pid_exists(sleeper.pid)


_OWNER = """
import os, signal, sys
from pathlib import Path
from offsetmgr.devkafka.process import WatchedProcess
here = Path(sys.argv[1])
process = WatchedProcess(["sleep", "600"], cwd=here, log_path=here / "log")
child = os.fork() if sys.argv[2] == "forked" else -1
if child != 0:
    print(process.pid, child, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("family", ["alone", "forked"])
def test_it_dies_with_a_killed_owner(tmp_path: Path, family: str) -> None:
    """The process ends when its owner is killed, even if a child the owner forked lives on."""
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), family], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, child = (int(word) for word in owner.stdout.readline().split())
        process = psutil.Process(pid)
        owner.kill()
        _, alive = psutil.wait_procs([process], _WAIT_S)
        if child > 0:
            os.kill(child, signal.SIGKILL)
    assert not alive
