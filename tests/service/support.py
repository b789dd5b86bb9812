"""The real service for tests: in this process around a coordinator in memory, or as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvloop

from actors import ActorSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.http.address import Address, listening
from offsetmgr.local import LocalOffsets
from offsetmgr.service.logs import Logs
from offsetmgr.service.run import Service
from offsetmgr.service.settings import Settings, load
from tests.forked import Forked
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Self

    from offsetmgr.coordinator.base import Coordinator

ROOT = Path(__file__).parents[2]
MEMORY_SERVICE = ROOT / "tests" / "service" / "memory_service.py"

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For connections without TLS: to load the authorities of the system takes longer than they do."""


def settings_of(**values: object) -> Settings:
    """Settings by dotted names written with two underscores, quick where nothing is said."""
    given = {"listen": "127.0.0.1:0", "commit__commit_interval_s": 0.05} | values
    found = {name.replace("__", "."): (value, "test") for name, value in given.items()}
    return load(None, {}, found | {"kafka.bootstrap.servers": ("memory:1", "test")})


class Running:
    """A service in this process."""

    def __init__(self, service: Service, coordinator: MemoryCoordinator, address: Address) -> None:
        self.service = service
        self.coordinator = coordinator
        self.address = str(address)
        self._listening = address
        self.status: int | None = None
        """Exit status, once stopped."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()

    def run(self, sock: Any) -> None:
        """Serve until stopped; in a thread of its own."""

        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            self._up.set()
            return await self.service.serve(sock, self._listening)

        self.status = uvloop.run(main())  # asyncio leaves Nagle's algorithm on

    def stop(self) -> None:
        """Ask for a drain; nothing to do if one has already ended."""
        assert self._up.wait(WAIT_S)
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the service has stopped
            self._loop.call_soon_threadsafe(self.service.stop)

    def http(self, client: str | None = None, incarnation: int = 0) -> httpx.Client:
        headers = {} if client is None else identity(client, incarnation)
        return httpx.Client(
            base_url=self.address, headers=headers, timeout=WAIT_S, verify=NO_AUTHORITIES
        )


def identity(client: str, incarnation: int = 0) -> dict[str, str]:
    return {"Offsetmgr-Client": client, "Offsetmgr-Incarnation": str(incarnation)}


def connected(service: Running | ServeProcess) -> socket.socket:
    """A bare connection, whose system takes little ahead of its reader."""
    host, _, port = service.address.rpartition("/")[2].partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(WAIT_S)
    raw.connect((host, int(port)))
    return raw


def asking(
    service: Running | ServeProcess,
    request: str,
    body: bytes = b"",
    *,
    length: int | None = None,
    client: str = "waiter",
) -> socket.socket:
    """A bare connection on which ``client`` has sent a request, such as ``GET /livez``.

    ``length`` is what it says of the body's length.
    """
    headers = {"Host": "localhost", "Content-Length": len(body) if length is None else length}
    headers |= identity(client) if client else {}
    headers |= {"Content-Type": "application/json"} if body else {}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    raw = connected(service)
    raw.sendall(f"{request} HTTP/1.1\r\n{head}\r\n".encode() + body)
    return raw


@contextmanager
def running(**values: object) -> Iterator[Running]:
    """The service over loopback, stopped afterwards."""
    settings = settings_of(**values)
    with (
        listening(settings.address) as (sock, address),
        ActorSystem(name="test") as system,
        Path(os.devnull).open("w") as nowhere,
    ):
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        service = Service(settings, coordinator, system, Logs(nowhere), lambda: settings)
        here = Running(service, coordinator, address)
        thread = threading.Thread(target=here.run, args=(sock,), name="test-service", daemon=True)
        thread.start()
        try:
            yield here
        finally:
            here.stop()
            thread.join(WAIT_S)
        assert not thread.is_alive(), "the service did not stop"


def local_over(
    coordinator: Coordinator, name: str = "etl", commit_interval_s: float = 0.05
) -> LocalOffsets:
    """Offsets of this process over any coordinator, which their close closes."""
    made = LocalOffsets.__new__(LocalOffsets)
    settings = CommitSettings(commit_interval_s=commit_interval_s)
    made._use(coordinator, "kafka://memory", name, settings)
    return made


class ServeProcess:
    """The service as a process; its log is read as it comes."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, *, fresh: bool = False
    ) -> None:
        """``fresh`` is for a new Python, which has the limits of this process."""
        env = {**os.environ, **(env or {})}
        self.process: Forked | subprocess.Popen[str] = (
            subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=env,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            if fresh
            else Forked(command, ROOT, env)
        )  # fmt: skip
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._arrived = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="test-log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._arrived:
                self.lines.append(line)
                if line.startswith("{"):
                    self.records.append(json.loads(line))
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def wait_for(self, event: str, number: int = 1) -> dict[str, Any]:
        """Return the record of that event, counted from 1; fails with the log if there is none."""

        def found() -> list[dict[str, Any]]:
            return [record for record in self.records if record["event"] == event]

        with self._arrived:
            self._arrived.wait_for(lambda: len(found()) >= number or self._ended, WAIT_S)
            assert len(found()) >= number, f"no {event!r} in the log:\n" + "".join(self.lines)
            return found()[number - 1]

    def started(self) -> bool:
        """Wait until it serves; False where it ended instead."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._serving() or self._ended, WAIT_S)
            return self._serving()

    def _serving(self) -> bool:
        return any(record["event"] == "serving" for record in self.records)

    @property
    def address(self) -> str:
        return str(self.wait_for("serving")["address"])

    def http(self, client: str = "test", incarnation: int = 0) -> httpx.Client:
        transport, base = None, self.address
        if base.startswith("unix://"):
            path = base.removeprefix("unix://")
            transport = httpx.HTTPTransport(uds=path, verify=NO_AUTHORITIES)
            base = "http://localhost"
        headers = identity(client, incarnation)
        return httpx.Client(
            base_url=base,
            headers=headers,
            transport=transport,
            timeout=WAIT_S,
            verify=NO_AUTHORITIES,
        )

    def stop(self, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> int:
        """Send the signals and return the exit status."""
        for each in signals:
            self.process.send_signal(each)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


def serve_process(
    *options: str, env: Mapping[str, str] | None = None, fresh: bool = False
) -> ServeProcess:
    """``python -m offsetmgr serve`` with these options; use it as a context manager."""
    return ServeProcess(["-m", "offsetmgr", "serve", *options], env, fresh=fresh)


def memory_process(
    *options: str, env: Mapping[str, str] | None = None, fresh: bool = False
) -> ServeProcess:
    """The same service around a coordinator in memory; options are ``name=value`` settings."""
    return ServeProcess([str(MEMORY_SERVICE), *options], env, fresh=fresh)
