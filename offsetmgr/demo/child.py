"""A Python process of the demo with all that it starts, ended for certain when the demo ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import offsetmgr
from offsetmgr.demo.errors import DemoError
from offsetmgr.devkafka.errors import log_tail
from offsetmgr.devkafka.process import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE: Final = str(Path(offsetmgr.__file__).parents[1])
_POLL_S: Final = 0.05
_FAMILY_S: Final = 10.0


class Child(WatchedProcess):
    """``python -m`` a module of this very installation, in a session of its own."""

    def __init__(self, arguments: Sequence[str], *, log_path: Path) -> None:
        """Run ``python -m arguments``; all it prints goes to ``log_path``."""
        self.name = arguments[0]
        self.log_path = log_path
        path = os.pathsep.join(filter(None, [_HERE, os.environ.get("PYTHONPATH")]))
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-m", *arguments]
        super().__init__(command, cwd=log_path.parent, log_path=log_path)

    def check_running(self) -> None:
        """Raise DemoError, with the tail of the log, where the process has ended."""
        if not self.running():
            message = f"{self.name} ended by itself; {self.log_end()}"
            raise DemoError(message)

    def log_end(self) -> str:
        """The end of its log, to stand at the end of an error."""
        return f"the end of its log:\n{log_tail(self.log_path)}"

    def finish(self, timeout_s: float) -> int:
        """Wait for the end of the process and return its exit status.

        Raises DemoError, with the tail of the log, where it takes longer than ``timeout_s``.
        """
        if not self.wait(timeout_s):
            message = f"{self.name} did not end within {timeout_s:.0f} s; {self.log_end()}"
            raise DemoError(message)
        return self._watchdog.wait()

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM); nothing where it has ended."""
        self.signal(signal.SIGTERM)

    def close(self) -> None:
        """End what still runs of the process and its children; harmless when repeated."""
        super().close()
        # Spark's Java ends by itself when its Python is gone, which takes a moment.
        deadline = time.monotonic() + _FAMILY_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._watchdog.pid, 0)
                time.sleep(_POLL_S)
            os.killpg(self._watchdog.pid, signal.SIGKILL)
