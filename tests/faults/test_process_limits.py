"""The service as a process that the machine or Kafka leaves without what it needs."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.faults.support import TOPIC
from tests.service.support import (
    MEMORY_SERVICE,
    ServeProcess,
    identity,
    memory_process,
    serve_process,
)
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka

_MB = 1 << 20
_STACK = 64 * _MB
_ROOM = _STACK + 32 * _MB
"""Of address space: for one more thread."""


def commit(
    http: httpx.Client, group: str, offset: int, topic: str = TOPIC, timeout_s: float = WAIT_S
) -> Any:
    entry = {"topic": topic, "partition": 0, "offset": offset}
    body = {"group": group, "offsets": [entry], "wait": True, "timeout_s": timeout_s}
    return http.post("/v1/offsets", json=body).raise_for_status().json()


@contextlib.contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    """A limit that the processes started meanwhile inherit."""
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


def limit(service: ServeProcess, kind: int, value: int) -> tuple[int, int]:
    """Limit the running service; what limited it before."""
    _, hard = resource.prlimit(service.process.pid, kind)
    return resource.prlimit(service.process.pid, kind, (value, hard))


@pytest.mark.fault(20)
def test_without_room_for_its_log_commits_go_on(tmp_path: Path) -> None:
    """Log lines without space are dropped and counted; later lines are written again."""
    log = tmp_path / "log"
    with log.open("w") as stderr:
        service = subprocess.Popen([sys.executable, str(MEMORY_SERVICE)], stderr=stderr)
    try:
        until(lambda: '"serving"' in log.read_text())
        address = json.loads(log.read_text().splitlines()[0])["address"]
        with httpx.Client(base_url=address, headers=identity("etl"), timeout=WAIT_S) as http:

            def dropped() -> bool:
                return "offsetmgr_dropped_log_records_total 0.0" not in http.get("/metrics").text

            assert commit(http, "g", 1)["uncommitted"] == []
            assert not dropped()
            # No file may grow: to the writer that is a disk without room.
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            service.send_signal(signal.SIGHUP)  # which it logs
            until(dropped)
            assert commit(http, "g", 2)["uncommitted"] == []
            assert '"reloaded"' not in log.read_text()
            everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, everything)
            service.send_signal(signal.SIGHUP)
            until(lambda: '"reloaded"' in log.read_text())
        service.terminate()
        assert service.wait(WAIT_S) == 0
    finally:
        service.kill()
        service.wait(WAIT_S)


@pytest.mark.fault(35)
def test_without_file_descriptors_old_connections_go_on_and_new_ones_wait() -> None:
    """Nobody is answered by half; with room again everybody is."""
    with memory_process("commit.commit_interval_s=0.05") as service, service.http("old") as old:
        assert commit(old, "g", 1)["uncommitted"] == []
        held = [int(name) for name in os.listdir(f"/proc/{service.process.pid}/fd")]  # noqa: PTH208
        before, _ = limit(service, resource.RLIMIT_NOFILE, max(held) + 1)
        host, port = service.address.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            news = [
                stack.enter_context(socket.create_connection((host, int(port)), WAIT_S))
                for _ in range(max(held) + 10)
            ]
            for new in news:
                with contextlib.suppress(ConnectionError):
                    new.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for offset in range(2, 7):
                assert commit(old, "g", offset)["uncommitted"] == []
            assert "" in {answer_so_far(new) for new in news}
        limit(service, resource.RLIMIT_NOFILE, before)
        with service.http("new") as late:
            assert commit(late, "h", 1)["uncommitted"] == []
        assert service.stop() == 0


def answer_so_far(connection: socket.socket) -> str:
    """Return the first bytes of an answer; empty if there are none, or if it is closed."""
    connection.setblocking(False)  # noqa: FBT003 -- the library's signature
    try:
        return connection.recv(12).decode()
    except (BlockingIOError, ConnectionError):
        return ""


@pytest.mark.fault(35)
def test_without_threads_old_groups_go_on_and_new_ones_report_it(
    kafka: DevKafka, topic: str
) -> None:
    """A group that needs a client of its own waits for it and says why; SIGTERM still commits."""
    # The names decide which client of the pool they get: these two do not share one.
    old, new = "old", "other"
    # Root has no limit of threads, so each is given a stack; there is address space for one, which
    # is worse than for none: librdkafka crashes where it gets a part of its threads.
    address = ("--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers)
    with soft_limit(resource.RLIMIT_STACK, _STACK):
        service = serve_process(*address, "--set", "commit.commit_interval_s=0.05", fresh=True)
    with service, service.http("etl") as http:
        assert commit(http, old, 1, topic)["uncommitted"] == []
        before, _ = limit(service, resource.RLIMIT_AS, address_space(service) + _ROOM)
        for offset in range(2, 7):
            assert commit(http, old, offset, topic)["uncommitted"] == []
        error = None
        while error is None or error["code"] == "timeout":  # it has not come to that yet
            error = left_over(commit(http, new, 1, topic, timeout_s=0.2))
        assert error["code"] == "NOT_SENT"
        assert error["retriable"]
        assert http.get("/v1/groups").status_code == 429
        limit(service, resource.RLIMIT_AS, before)
        assert commit(http, new, 1, topic)["uncommitted"] == []
        limit(service, resource.RLIMIT_AS, address_space(service) + _ROOM)
        assert service.stop() == 0


def left_over(answer: Any) -> Any:
    """Why the one offset is not committed; None where nothing is known yet."""
    (left,) = answer["uncommitted"]
    return left["error"]


def address_space(service: ServeProcess) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmSize:"))
    return int(line.split()[1]) * 1024
