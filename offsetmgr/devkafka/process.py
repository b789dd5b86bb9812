"""A child process that does not outlive this one, and that a Ctrl-C in the terminal spares."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.errors import DevKafkaError, log_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

_WATCHDOG: Final = str(Path(__file__).with_name("watchdog.py"))
_ANSWER_S: Final = 30.0


class WatchedProcess:
    """A command run under the watchdog, in a session of its own.

    A death signal of the kernel (PR_SET_PDEATHSIG) would be sent when the *thread* that started
    the command ends; the watchdog holds a pipe instead, which closes with the whole process.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path, log_path: Path) -> None:
        """Start ``command`` in ``cwd``; all it prints is appended to ``log_path``."""
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
        self.pid = self._read_pid(log_path)

    def _read_pid(self, log_path: Path) -> int:
        ready, _, _ = select.select([self.fileno()], [], [], _ANSWER_S)
        line = os.read(self.fileno(), 64) if ready else b""
        if line:
            return int(line)
        self.close()
        message = f"{_WATCHDOG} could not start its command:\n{log_tail(log_path)}"
        raise DevKafkaError(message)

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the command ends."""
        stdout = self._watchdog.stdout
        assert stdout is not None  # noqa: S101 -- it was opened as a pipe
        return stdout.fileno()

    def running(self) -> bool:
        """Tell whether the command runs, paused or not."""
        return self._watchdog.poll() is None

    def status(self) -> int | None:
        """Return the command's exit status as a shell would see it; None while it runs."""
        return self._watchdog.poll()

    def signal(self, number: int) -> None:
        """Send the command a signal, and return when it is sent; nothing where it has ended."""
        stdin = self._watchdog.stdin
        assert stdin is not None  # noqa: S101 -- it was opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            stdin.write(bytes([number]))
            select.select([self.fileno()], [], [], _ANSWER_S)
            os.read(self.fileno(), 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the command; False where ``timeout_s`` ran out first."""
        try:
            self._watchdog.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End what still runs, at once, and free the pipes; harmless when repeated."""
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            if pipe is not None:
                pipe.close()
        self._watchdog.wait(_ANSWER_S)
