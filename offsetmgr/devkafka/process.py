"""Child processes: short ones that are waited for, and long ones that do not outlive this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Runs a command, prints its process id, and kills it when standard input ends: its owner has gone
# then, however it died.
_WATCHDOG: Final = """
exec 3<&0
"$@" >&2 & command=$!
echo $command
(read -r nothing; kill -9 $command) <&3 >&2 & guard=$!
trap '' INT TERM HUP
wait $command; status=$?
kill -9 $guard
exit $status
"""
_ANSWER_S: Final = 120.0
_TAIL_LINES: Final = 25


class DevKafkaError(OffsetManagerError):
    """The local Kafka, or a tool it needs, is missing, did not start or is not running."""

    code = "dev_kafka"


def log_tail(path: Path) -> str:
    """Return the last lines of the log ``path``, with a line that introduces them."""
    lines = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(["the end of its log:", *lines])


def run_tool(
    name: str, command: Sequence[str], timeout_s: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Return what ``command`` printed, and its status.  Raises DevKafkaError after the time."""
    try:
        return subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DevKafkaError(f"{name} took longer than {timeout_s:.0f} s") from error


class WatchedProcess:
    """A command that does not outlive this process, and that a Ctrl-C in the terminal spares.

    It runs in a session of its own, under a watchdog with a pipe to this process: the kernel's
    death signal would be sent when the *thread* that started the command ends.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path, log_path: Path) -> None:
        """Start ``command`` in ``cwd``; all it prints is appended to ``log_path``."""
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "sh", *command],
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        owned, output = self._watchdog.stdin, self._watchdog.stdout
        assert owned is not None and output is not None  # noqa: S101, PT018 -- they are pipes
        os.register_at_fork(after_in_child=owned.close)
        self._owned = owned
        with output:
            self.pid = int(output.readline())

    def running(self) -> bool:
        return self.status() is None

    def status(self) -> int | None:
        """Return the command's exit status as a shell would see it; None while it runs."""
        return self._watchdog.poll()

    def signal(self, number: int) -> None:
        """Send the command a signal; nothing where it has ended."""
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the command; False where ``timeout_s`` ran out first."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(timeout_s)
        return not self.running()

    def close(self) -> None:
        """End what still runs, at once; harmless when repeated."""
        if self._owned.closed:
            return
        # Not the watchdog's to do, which a busy machine may leave without a turn for long.
        with contextlib.suppress(ProcessLookupError):  # until all have ended, such as Spark's Java
            for _ in Deadline(_ANSWER_S).polls():
                os.killpg(self._watchdog.pid, signal.SIGKILL)
                self._watchdog.poll()
        self._owned.close()
