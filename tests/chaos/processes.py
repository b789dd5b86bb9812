"""The service and the clients of a chaos run as processes: started, watched, started again."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from offsetmgr.devkafka.process import WatchedProcess
from tests.chaos.workload import INCOMPLETE, Life

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).parents[2]
RESTART_S: Final = 0.3
"""How long a supervisor waits before it starts again what has ended, as systemd's RestartSec."""

_KILLED: Final = 128 + signal.SIGKILL
_TERMINATED: Final = 128 + signal.SIGTERM
"""It was not yet so far that it could end in order."""
_END_S: Final = 120.0
_PIDFD_GETFD: Final = 438
_LOG_TAIL: Final = 2_000


class Supervised:
    """A process that is started again whenever it ends; an end nobody ordered is an incident."""

    def __init__(
        self, name: str, log_path: Path, command: Callable[[int], list[str]], good: frozenset[int]
    ) -> None:
        """``command`` makes the command line of a life, from 1; ``good`` are the exit statuses of
        an ordered end."""  # noqa: D205, D209 -- two arguments, one sentence
        self.name = name
        self.life = 0
        self.starts: list[float] = []
        """When each life began, by the wall clock."""
        self.incidents: list[str] = []
        """Ends that nobody ordered."""
        self.log_path = log_path
        self._command = command
        self._good = good
        self._ordered: frozenset[int] = frozenset()
        self._ended_at: float | None = None
        self._process: WatchedProcess | None = None

    def start(self) -> None:
        """Begin the next life."""
        self.life += 1
        self.starts.append(time.time())
        self._ordered, self._ended_at = frozenset(), None
        command = [sys.executable, "-m", *self._command(self.life)]
        self._process = WatchedProcess(command, cwd=ROOT, log_path=self.log_path)

    @property
    def process(self) -> WatchedProcess:
        """Its process, which may have ended."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def stays(self) -> bool:
        """True if this life runs, and nobody has told it to end."""
        return not self._ordered and self.process.running()

    def kill(self) -> None:
        """End it on the spot."""
        self._ordered |= {_KILLED}
        self.process.signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end in order, paused or not; once, since a second time forces the end."""
        if not self._good <= self._ordered:
            self._ordered |= self._good | {_TERMINATED}
            self.process.signal(signal.SIGTERM)
        self.process.signal(signal.SIGCONT)

    def pause(self) -> None:
        """Freeze it."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on; harmless where it is not paused."""
        self.process.signal(signal.SIGCONT)

    def silence(self) -> None:
        """Have a client submit nothing more for now."""
        self.process.signal(signal.SIGUSR1)

    def speak(self) -> None:
        """Have a silent client go on."""
        self.process.signal(signal.SIGUSR2)

    def part(self) -> Zombie:
        """Freeze this life and begin the next one beside it."""
        self.pause()
        zombie = Zombie(self.process)
        self.start()
        return zombie

    def tick(self) -> None:
        """Start it again where it ended a while ago."""
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
        """Kill it, where it runs, for good."""
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
        """Kill it."""
        self._process.close()


def service(
    folder: Path, address: str, bootstrap_servers: str, settings: Sequence[str]
) -> Supervised:
    """The service at ``address``; ``settings`` are written as ``name=value``."""
    options = [
        *("--listen", address, "--bootstrap-servers", bootstrap_servers),
        *(f"--set={setting}" for setting in settings),
    ]
    return Supervised(
        "the service",
        folder / "service.log",
        lambda _: ["offsetmgr", "serve", *options],
        frozenset({0, INCOMPLETE}),
    )


def client(first: Life) -> Supervised:
    """The client of which ``first`` describes the first life."""
    return Supervised(
        first.name,
        first.folder / f"{first.name}.log",
        lambda number: ["tests.chaos.workload", *first._replace(number=number).arguments()],
        frozenset({0, INCOMPLETE}),
    )


def cut_connections(pid: int) -> int:
    """Reset the TCP connections of a process as a failing network does; how many there were.

    The process keeps its descriptors and finds them dead.  Needs the right to trace it.  Raises
    ProcessLookupError where it has ended, and so closed them itself, perhaps just now.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    cut = 0
    try:
        for descriptor in _connections(pid):
            number = libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
            if number >= 0:
                cut += _reset(libc, number)
                os.close(number)
            elif (code := ctypes.get_errno()) != errno.EBADF:  # which means closed meanwhile
                # OSError makes a ProcessLookupError of ESRCH by itself.
                raise OSError(code, f"cannot cut connections: {os.strerror(code)}; run as root")
    finally:
        os.close(handle)
    return cut


def _connections(pid: int) -> list[int]:
    """Its descriptors of connections."""
    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(errno.ESRCH, str(error)) from error
    return [each.fd for each in found if each.status == psutil.CONN_ESTABLISHED]


def _reset(libc: ctypes.CDLL, number: int) -> bool:
    """Send RST: what connecting a connected socket to no family at all does.

    False where the descriptor is no socket any more: the process has used its number again.
    """
    nowhere = (ctypes.c_char * 16)()
    return bool(libc.connect(number, nowhere, len(nowhere)) == 0)
