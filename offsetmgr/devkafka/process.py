"""Child processes: short ones that are waited for, and long ones that do not outlive this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WATCHDOG: Final = str(Path(__file__).with_name("watchdog.py"))
_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.05
_SIGNALLED: Final = 128
"""Above it an exit status names the signal that ended the command."""
_TAIL_BYTES: Final = 8_192
_TAIL_LINES: Final = 25


class DevKafkaError(OffsetManagerError):
    """The local Kafka, or a tool it needs, is missing, did not start or is not running."""

    code = "dev_kafka"


def log_tail(path: Path) -> str:
    """Return the last lines of the log ``path``, with a line that introduces them."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"its log could not be read: {error}"
    return "\n".join(["the end of its log:", *lines]) if lines else "its log is empty"


def run_tool(
    name: str, command: Sequence[str], timeout_s: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` to its end, whatever its exit status, and return what it printed.

    Raises DevKafkaError if it does not start or takes too long.
    """
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise DevKafkaError(f"{name} does not run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise DevKafkaError(f"{name} took longer than {timeout_s:.0f} s") from error


class WatchedProcess:
    """A command that does not outlive this process, and that a Ctrl-C in the terminal spares.

    It runs under the watchdog, in a session of its own.  A death signal of the kernel
    (PR_SET_PDEATHSIG) would be sent when the *thread* that started the command ends; the watchdog
    holds a pipe instead, which closes with the whole process.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path, log_path: Path) -> None:
        """Start ``command`` in ``cwd``; all it prints is appended to ``log_path``."""
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", _WATCHDOG, *command],
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        assert self._watchdog.stdin is not None  # noqa: S101 -- it was opened as a pipe
        assert self._watchdog.stdout is not None  # noqa: S101 -- the same
        self._owned, self._output = self._watchdog.stdin, self._watchdog.stdout
        pid = self._output.readline()
        if not pid:
            self.close()
            raise DevKafkaError(f"{command[0]} could not be started; {log_tail(log_path)}")
        self.pid = int(pid)

    def running(self) -> bool:
        return self.status() is None

    def status(self) -> int | None:
        """Return the command's exit status as a shell would see it; None while it runs."""
        return self._watchdog.poll()

    def end(self) -> str:
        """Return how the command ended, as "exit status 1" or "killed by SIGKILL"."""
        status = self.status() or 0
        if status <= _SIGNALLED:
            return f"exit status {status}"
        return f"killed by {signal.Signals(status - _SIGNALLED).name}"

    def signal(self, number: int) -> None:
        """Send the command a signal; nothing where it has ended."""
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the command; False where ``timeout_s`` ran out first."""
        try:
            self._watchdog.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End what still runs, at once, and free the pipes; harmless when repeated."""
        if self._output.closed:
            return
        self._owned.close()
        self._output.close()
        self._watchdog.wait(_ANSWER_S)
        # What the command has started, such as Spark's Java, ends by itself, but not at once.
        deadline = time.monotonic() + _ANSWER_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._watchdog.pid, signal.SIGKILL)
                time.sleep(_POLL_S)
