"""Limits of what one client can take: memory, connections, event streams."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import httpx
import psutil
import pytest

from offsetmgr.service.messages import MAX_TOPICS
from tests.certificates import Authority
from tests.service.support import (
    MEMORY_SERVICE,
    WAIT_S,
    ServeProcess,
    connected,
    identity,
    memory_process,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

MB: Final = 1024 * 1024
ATTACK_S: Final = 8.0
HEAD: Final = b"Host: localhost\r\nOffsetmgr-Client: x\r\n"
TOPICS: Final = "&".join(f"topic={number:0249}" for number in range(MAX_TOPICS)).encode()
ATTACKS: Final = {
    # The longest heads that are taken, one after the other, whose answers nobody reads.
    "pipelined heads": (200, b"GET /v1/topics?%s HTTP/1.1\r\n%s\r\n" % (TOPICS, HEAD), True),
    "heads that are too long": (200, b"GET /v1/topics?%s HTTP/1.1\r\n" % (b"a" * 257_000), True),
    "unfinished bodies": (
        307,
        b"POST /v1/offsets HTTP/1.1\r\n%sContent-Type: application/json\r\n"
        b"Content-Length: 8000000\r\n\r\n%s" % (HEAD, b" " * 7_000_000),
        False,
    ),
    "unread answers": (1_000, b"GET /v1/managers?limit=1000 HTTP/1.1\r\n%s\r\n" % HEAD, True),
}
"""Connections, what is sent on each, and whether that is sent again and again."""


def memory(service: ServeProcess) -> float:
    """Return the megabytes that the service has."""
    return float(psutil.Process(service.process.pid).memory_info().rss) / MB


def attack(service: ServeProcess, connections: int, sent: bytes, *, repeat: bool) -> float:
    """Send for ATTACK_S, reading nothing; return the highest memory.  Health is answered."""
    host, _, port = service.address.removeprefix("http://").partition(":")
    most = 0.0
    with ExitStack() as stack:
        left: dict[socket.socket, memoryview] = {}
        until = time.monotonic() + ATTACK_S
        while time.monotonic() < until:
            while len(left) < connections:
                raw = stack.enter_context(socket.create_connection((host, int(port)), WAIT_S))
                raw.settimeout(0)
                left[raw] = memoryview(sent)
            for raw in list(left):
                try:
                    left[raw] = left[raw][raw.send(left[raw]) :]
                    if repeat and not left[raw]:
                        left[raw] = memoryview(sent)
                except BlockingIOError:
                    pass
                except OSError:
                    raw.close()
                    del left[raw]
            most = max(most, memory(service))
        with service.http() as client:
            assert client.get("/livez", timeout=5 * WAIT_S).status_code == 200
    return most


@pytest.mark.chaos
@pytest.mark.fault(30)
@pytest.mark.parametrize("name", ATTACKS)
def test_one_client_pins_little_memory(name: str) -> None:
    """A second attack finds the memory of the first: nothing is left behind."""
    connections, sent, repeat = ATTACKS[name]
    with memory_process() as service:
        offsets = [{"topic": "t", "partition": each, "offset": 1} for each in range(10_000)]
        with service.http("holder") as client:
            client.post("/v1/offsets", json={"group": "g", "offsets": offsets}).raise_for_status()
        before = memory(service)
        first, second = (attack(service, connections, sent, repeat=repeat) for _ in range(2))
        figures = f"{before:.0f} MB, then {first:.0f} and {second:.0f}"
        print(f"{name}: {figures}, at last {memory(service):.0f}")  # noqa: T201 -- with -s
        assert first < before + 300
        assert second < first + 150


def few_files(*settings: str) -> ServeProcess:
    """A service that can open 512 files, and no more."""
    program = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return ServeProcess(["-c", program, str(MEMORY_SERVICE), *settings], fresh=True)


@pytest.mark.fault(30, 35)
@pytest.mark.parametrize("tls", [False, True])
def test_idle_connections_do_not_silence_health(tmp_path: Path, *, tls: bool) -> None:
    """More than there are descriptors: the longest idle ones end, also before a TLS handshake."""
    authority = Authority(tmp_path)
    files = authority.sign("service.test")
    settings = [f"tls.certificate={files.certificate}", f"tls.key={files.key}"] if tls else []
    with few_files(*settings) as service, ExitStack() as stack:
        host, _, port = service.address.rpartition("/")[2].partition(":")
        assert service.wait_for("few_open_files")["limit"] == 512
        for _ in range(600):
            raw = socket.create_connection((host, int(port)), WAIT_S)
            stack.enter_context(contextlib.closing(raw))
        context = ssl.create_default_context(cafile=str(authority.file))
        headers = identity("job")
        with httpx.Client(base_url=service.address, headers=headers, verify=context) as client:
            assert client.get("/livez").status_code == 200
            assert client.post("/v1/heartbeat", json={}).status_code == 200


def test_event_streams_of_one_client_leave_room_for_others() -> None:
    """A page that opens streams without a name shares a quarter with all who have none."""
    with running(limits__event_streams=40) as service, ExitStack() as stack:
        request = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(10):
            raw = stack.enter_context(connected(service))
            raw.sendall(request)
            assert b" 200 " in raw.recv(100)
        last = stack.enter_context(connected(service))
        last.sendall(request)
        assert b" 429 " in last.recv(100)
        with service.http("job") as job, job.stream("GET", "/v1/events") as stream:
            assert stream.status_code == 200
