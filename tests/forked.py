"""Python programs in processes of their own, forked from a process that has imported the product.

Importing it takes longer than most tests need the service for.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

# Imported for the processes that are forked from the one that imports this module.
import offsetmgr.cli.app
import offsetmgr.service.run
import offsetmgr.streams.view  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

_FORKS: Final = get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class Forked:
    """A program of its own, of which ``stderr`` is read; the methods are those of Popen."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """``command`` is what would follow ``python``: a script or ``-m`` and a module."""
        reading, writing = _FORKS.Pipe(duplex=False)
        arguments = (command, str(cwd), dict(env), writing)
        self._process = _FORKS.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        writing.close()
        self.stderr = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Return the exit status; raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(command: Sequence[str], cwd: str, env: Mapping[str, str], stderr: Connection) -> None:
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
        for number in (0, 1):
            os.dup2(nothing.fileno(), number)
    os.dup2(stderr.fileno(), 2)
    stderr.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    name, *rest = command
    if name == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [name, *rest]
        runpy.run_path(name, run_name="__main__")
