"""The service and the clients of a chaos run as processes: started, watched, started again."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.process import WatchedProcess
from tests.chaos.workload import INCOMPLETE, Life

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).parents[2]
RESTART_S: Final = 0.3
"""Pause before an ended process is started again, as systemd's RestartSec."""

_KILLED: Final = 128 + signal.SIGKILL
_TERMINATED: Final = 128 + signal.SIGTERM
"""It was not yet so far that it could end in order."""
_END_S: Final = 120.0
_LOG_TAIL: Final = 2_000


class Supervised:
    """A process that is started again whenever it ends; an end nobody ordered is an incident."""

    def __init__(
        self,
        name: str,
        log_path: Path,
        command: Callable[[int], list[str]],
        good: frozenset[int],
        trees: Sequence[Path] = (ROOT,),
    ) -> None:
        """``command`` makes the command line of a life, from 1; lives take turns with ``trees``.

        ``good`` are the exit statuses of an ordered end.
        """
        self.name = name
        self.life = 0
        self.starts: list[float] = []
        """When each life began, by the wall clock."""
        self.incidents: list[str] = []
        """Ends that nobody ordered."""
        self.log_path = log_path
        self._command = command
        self._good = good
        self._trees = trees
        self._ordered: frozenset[int] = frozenset()
        self._ended_at: float | None = None
        self._process: WatchedProcess | None = None

    def start(self) -> None:
        self.life += 1
        self.starts.append(time.time())
        self._ordered, self._ended_at = frozenset(), None
        command = [sys.executable, "-m", *self._command(self.life)]
        tree = self._trees[(self.life - 1) % len(self._trees)]
        self._process = WatchedProcess(command, cwd=tree, log_path=self.log_path)

    @property
    def process(self) -> WatchedProcess:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def stays(self) -> bool:
        """True if this life runs, and nobody has told it to end."""
        return not self._ordered and self.process.running()

    def kill(self) -> None:
        self._ordered |= {_KILLED}
        self.process.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end in order, paused or not; once, since a second time forces the end."""
        if not self._good <= self._ordered:
            self._ordered |= self._good | {_TERMINATED}
            self.process.signal(signal.SIGTERM)
        self.process.signal(signal.SIGCONT)

    def pause(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on; harmless where it is not paused."""
        self.process.signal(signal.SIGCONT)

    def silence(self) -> None:
        self.process.signal(signal.SIGUSR1)

    def speak(self) -> None:
        self.process.signal(signal.SIGUSR2)

    def part(self) -> Zombie:
        """Freeze this life and begin the next one next to it."""
        self.pause()
        zombie = Zombie(self.process)
        self.start()
        return zombie

    def tick(self) -> None:
        if self.process.running():
            return
        if self._ended_at is None:
            self._ended_at = time.monotonic()
            self._look_at_end()
        elif time.monotonic() - self._ended_at > RESTART_S:
            self.process.close()
            self.start()

    def _look_at_end(self) -> None:
        status = self.process.status()
        if status not in self._ordered:
            tail = self.log_path.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
            what = f"{self.name} ended by itself with status {status} in life {self.life}"
            self.incidents.append(f"{what}; the end of its log:\n{tail}")

    def end(self) -> int | None:
        """Ask it to end, and wait; its exit status, None where it did not end in two minutes."""
        self.terminate()
        self.process.wait(_END_S)
        status = self.process.status()
        self.process.close()
        return status

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class Zombie:
    """A life that was frozen while its successor took over."""

    def __init__(self, process: WatchedProcess) -> None:
        self._process = process

    def resume(self) -> None:
        """It wakes up and believes that it still owns everything."""
        self._process.signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.close()


def service(
    folder: Path,
    address: str,
    bootstrap_servers: str,
    settings: Sequence[str],
    trees: Sequence[Path] = (ROOT,),
) -> Supervised:
    """The service at ``address``, of those source trees in turns; settings are ``name=value``.

    Of two values of one name the later counts.
    """
    chosen = {setting.partition("=")[0]: setting for setting in settings}
    options = [
        *("--listen", address, "--bootstrap-servers", bootstrap_servers),
        *(f"--set={setting}" for setting in chosen.values()),
    ]
    return Supervised(
        "the service",
        folder / "service.log",
        lambda _: ["offsetmgr", "serve", *options],
        frozenset({0, INCOMPLETE}),
        trees,
    )


def client(first: Life, tree: Path) -> Supervised:
    """The client of which ``first`` describes the first life."""
    return Supervised(
        first.name,
        first.folder / f"{first.name}.log",
        lambda number: first._replace(number=number).command(),
        frozenset({0, INCOMPLETE}),
        [tree],
    )
