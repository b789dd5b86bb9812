"""Limits of what one caller can take: heads, bodies, connections, places, streams, memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import ssl
import threading
import time
from contextlib import ExitStack
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final

import httpx
import psutil
import pytest

from offsetmgr.http import connections, front, server
from offsetmgr.service import api
from offsetmgr.service.messages import MAX_TOPICS
from tests.certificates import Authority
from tests.service.support import (
    MEMORY_SERVICE,
    Running,
    ServeProcess,
    asking,
    connected,
    identity,
    memory_process,
    running,
)
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    import socket
    from pathlib import Path

OPEN: Final = {"group": "g", "partitions": [{"topic": "t", "partition": 0}]}
OFFSETS: Final = [{"topic": "t", "partition": 0, "offset": 7}]
INITIAL: Final = "/v1/initial-offsets?group=g&wait_s=60"
TOPICS: Final = "&".join(f"topic={number:0249}" for number in range(MAX_TOPICS))


def served(etl: httpx.Client) -> None:
    """Requests that keep a client alive are answered, with Kafka or without."""
    assert etl.post("/v1/heartbeat", json={}).status_code == 200
    assert etl.post("/v1/offsets", json={"group": "g", "offsets": OFFSETS}).status_code == 200
    assert etl.get("/livez").status_code == 200


# Heads and bodies


@pytest.mark.parametrize("path", ["/v1/topics?", "/v1/offsets?group=g&"])
def test_a_query_of_the_most_topics_with_the_longest_names_fits(
    service: Running, path: str
) -> None:
    with asking(service, f"GET {path}{TOPICS}") as raw:
        answer = HTTPResponse(raw)
        answer.begin()
        assert answer.status == 200
        if path == "/v1/topics?":
            assert len(json.load(answer)["topics"]) == MAX_TOPICS


@pytest.mark.parametrize("sent", [b"GET /livez?a=", b"GET /livez HTTP/1.1\r\nX: "])
def test_a_larger_head_is_refused_without_waiting_for_its_end(
    service: Running, sent: bytes
) -> None:
    with connected(service) as raw:
        with contextlib.suppress(ConnectionError):  # the service may answer before it is all sent
            raw.sendall(sent + b"y" * 2 * server.HEAD_BYTES)
        assert b" 400 " in raw.recv(100)


def test_a_body_that_does_not_come_is_not_waited_for(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled sender gets 408 and holds nothing."""
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 0.2)
    with asking(service, "POST /v1/offsets", b"{", length=10) as raw:
        assert b" 408 " in raw.recv(100)


@pytest.mark.fault(30)
def test_unfinished_large_bodies_have_a_limit(
    service: Running, etl: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small requests go on; the places are free again when the senders are gone."""
    monkeypatch.setattr(api, "BODY_TIMEOUT_S", 60.0)
    large, body = service.service.assembly.app.large, b" " * 2 * front.LARGE_BYTES
    with ExitStack() as stack:
        for count in range(api.LARGE_BODIES + 1):
            sender = asking(service, "POST /v1/offsets", body, length=1_000_000, client=f"x{count}")
            raw = stack.enter_context(sender)
            eventually(lambda: large.taken, min(count + 1, api.LARGE_BODIES))
        assert b" 429 " in raw.recv(100)
        served(etl)
    eventually(lambda: large.taken, 0)


# Requests at once


@pytest.mark.fault(30)
def test_too_many_requests_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health is still answered, and the one under way goes on."""
    monkeypatch.setattr(api, "REQUESTS", 1)
    with running() as service, service.http("etl") as etl:
        places = service.service.assembly.app
        with asking(service, "POST /v1/heartbeat", b"{", length=2) as submitting:
            until(lambda: places.working.taken)
            answer = etl.post("/v1/heartbeat", json={})
            assert (answer.status_code, "1 requests are under way" in answer.text) == (429, True)
            assert etl.get("/livez").status_code == 200
            submitting.sendall(b"}")
            assert b" 200 " in submitting.recv(100)


@pytest.mark.fault(30)
def test_a_read_without_room_for_a_thread_is_refused_as_too_much(
    etl: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without room for those of a Kafka client: one cause has one status, whichever is short."""
    start = threading.Thread.start

    def no_room(thread: threading.Thread) -> None:
        if thread.name == "question":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_room)
    answer = etl.get("/v1/groups")
    assert answer.status_code == 429
    assert "cannot start a thread" in answer.json()["error"]["message"]


def test_abandoned_waits_shut_nobody_out(service: Running, etl: httpx.Client) -> None:
    """A living client is served at once in an outage, and the places are soon free again."""
    places = service.service.assembly.app
    service.coordinator.pause()
    etl.post("/v1/managers", json=OPEN).raise_for_status()
    share = api.WAITING // 4
    callers = [asking(service, f"GET {INITIAL}", client="") for _ in range(share)]
    until(lambda: places.waiting.taken == share)
    with service.http() as another:  # as nameless as they are
        answer = another.get(INITIAL)
    assert (answer.status_code, "waiting requests" in answer.text) == (429, True)
    served(etl)
    for each in callers:
        each.close()
    served(etl)
    until(lambda: places.waiting.taken == 0)
    assert etl.get("/v1/initial-offsets", params={"group": "g", "wait_s": "0"}).is_success
    service.coordinator.resume()


@pytest.mark.parametrize(
    "target", [INITIAL, "/v1/offsets?group=g", "/v1/topics?topic=t", "/v1/topic-names"]
)
def test_a_read_ends_with_its_caller(target: str) -> None:
    with running(commit__request_timeout_s=300) as service, service.http("waiter") as waiter:
        places = service.service.assembly.app
        service.coordinator.pause()
        waiter.post("/v1/offsets", json={"group": "g", "offsets": OFFSETS}).raise_for_status()
        assert service._loop is not None
        before = len(asyncio.all_tasks(service._loop))
        raw = asking(service, f"GET {target}")
        until(lambda: places.waiting.taken == 1)
        raw.close()
        until(lambda: places.waiting.taken == 0)
        until(lambda: len(asyncio.all_tasks(service._loop)) <= before)
        service.coordinator.resume()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/offsets", {"offsets": OFFSETS, "wait": True}),
        ("/v1/flush", {}),
        ("/v1/stop", {}),
    ],
)
def test_a_write_that_waits_takes_no_place_of_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, path: str, more: dict[str, Any]
) -> None:
    """One place of each kind: the wait has the one, all else goes on in the other."""
    monkeypatch.setattr(api, "WAITING", 1)
    monkeypatch.setattr(api, "REQUESTS", 1)
    with running() as service, service.http("etl") as etl:
        places = service.service.assembly.app
        service.coordinator.pause()
        submitted = {"group": "w", "offsets": OFFSETS}
        etl.post("/v1/offsets", json=submitted, headers=identity("waiter")).raise_for_status()
        body = {"group": "w", "timeout_s": 300, **more}
        with asking(service, f"POST {path}", json.dumps(body).encode()) as waiting:
            until(lambda: (places.waiting.taken, places.working.taken) == (1, 0))
            served(etl)
            answer = etl.post(path, json=body)
            assert (answer.status_code, "waiting requests" in answer.text) == (429, True)
            service.coordinator.resume()
            assert b" 200 " in waiting.recv(100)


def test_a_write_goes_on_without_its_caller_and_answers_a_repeat() -> None:
    """A repeated request waits for what the first has begun."""
    with running(commit__request_timeout_s=300) as service, service.http() as again:
        places = service.service.assembly.app
        service.coordinator.pause()
        body = {"group": "g", "offsets": OFFSETS, "wait": True, "timeout_s": 300}
        raw = asking(service, "POST /v1/offsets", json.dumps(body).encode())
        until(lambda: places.waiting.taken == 1)
        raw.close()
        assert again.get("/v1/managers").json()["managers"][0]["dirty"]
        service.coordinator.resume()
        answer = again.post("/v1/offsets", json=body, headers=identity("waiter")).json()
        assert [each["offset"] for each in answer["committed"]] == [7]


# Connections and event streams


def test_a_connection_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If none is idle; those that were there go on."""
    monkeypatch.setattr(server, "CONNECTIONS", 1)
    with (
        running(limits__event_streams=1) as small,
        small.http("first") as first,
        small.http() as late,
    ):
        small.coordinator.pause()
        first.post("/v1/managers", json=OPEN).raise_for_status()
        with (
            asking(small, f"GET {INITIAL}", client="") as busy,
            asking(small, f"GET {INITIAL}", client="") as other,
        ):
            until(lambda: small.service.assembly.app.waiting.taken == 2)
            with pytest.raises(httpx.TransportError):
                late.get("/livez")
            small.coordinator.resume()
            assert b" 200 " in busy.recv(100)
            assert b" 200 " in other.recv(100)


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\n"])
def test_a_connection_without_a_request_ends(
    service: Running, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.1)
    with connected(service) as raw:
        raw.sendall(sent)
        assert raw.recv(1) == b""


def test_a_reader_that_stalls_is_left(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that waits for it in the service is given up."""
    monkeypatch.setattr(connections, "STALLED_S", 0.1)
    with connected(service) as raw:
        for _ in range(1_000):
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                raw.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: not service.service._server.connections.open)


def test_a_low_soft_limit_of_open_files_is_raised() -> None:
    """A thousand idle connections would keep health from being answered otherwise."""
    kind = resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (min(1_024, hard), hard))
    try:
        with memory_process(fresh=True) as service:
            assert service.started()
            raised, _ = psutil.Process(service.process.pid).rlimit(kind)
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert raised == min(server.DESCRIPTORS, hard)


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
        assert service.wait_for("few_open_files")["limit"] == 512
        idle = [stack.enter_context(connected(service)) for _ in range(600)]
        context = ssl.create_default_context(cafile=str(authority.file))
        headers = identity("job")
        with httpx.Client(base_url=service.address, headers=headers, verify=context) as client:
            assert client.get("/livez").status_code == 200
            assert client.post("/v1/heartbeat", json={}).status_code == 200
        assert idle[0].recv(1) == b""


def test_event_streams_of_one_client_leave_room_for_others() -> None:
    """A page that opens streams without a name shares a quarter with all who have none.

    A closed connection frees its place.
    """
    with running(limits__event_streams=40) as service, service.http("job") as job:
        with ExitStack() as stack:
            for _ in range(10):
                raw = stack.enter_context(asking(service, "GET /v1/events", client=""))
                assert b" 200 " in raw.recv(100)
            last = stack.enter_context(asking(service, "GET /v1/events", client=""))
            assert b" 429 " in last.recv(100)
            with job.stream("GET", "/v1/events") as stream:
                assert stream.status_code == 200
        until(lambda: "offsetmgr_event_streams 0.0" in job.get("/metrics").text)


# Memory

MB: Final = 1024 * 1024
ATTACK_S: Final = 8.0
HEAD: Final = b"Host: localhost\r\nOffsetmgr-Client: x\r\n"
ATTACKS: Final = {
    # The longest heads that are taken, one after the other, whose answers nobody reads.
    "pipelined heads": (
        200, b"GET /v1/topics?%s HTTP/1.1\r\n%s\r\n" % (TOPICS.encode(), HEAD), True
    ),
    "heads that are too long": (200, b"GET /v1/topics?%s HTTP/1.1\r\n" % (b"a" * 257_000), True),
    "unfinished bodies": (
        307,
        b"POST /v1/offsets HTTP/1.1\r\n%sContent-Type: application/json\r\n"
        b"Content-Length: 8000000\r\n\r\n%s" % (HEAD, b" " * 7_000_000),
        False,
    ),
    "unread answers": (1_000, b"GET /v1/managers?limit=1000 HTTP/1.1\r\n%s\r\n" % HEAD, True),
}  # fmt: skip
"""Connections, what is sent on each, and whether that is sent again and again."""


def memory(service: ServeProcess) -> float:
    """Return the megabytes that the service has."""
    return float(psutil.Process(service.process.pid).memory_info().rss) / MB


def attack(service: ServeProcess, count: int, sent: bytes, *, repeat: bool) -> float:
    """Send for ATTACK_S, reading nothing; return the highest memory.  Health is answered."""
    most = 0.0
    with ExitStack() as stack:
        left: dict[socket.socket, memoryview] = {}
        until = time.monotonic() + ATTACK_S
        while time.monotonic() < until:
            while len(left) < count:
                raw = stack.enter_context(connected(service))
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
    count, sent, repeat = ATTACKS[name]
    with memory_process() as service:
        offsets = [{"topic": "t", "partition": each, "offset": 1} for each in range(10_000)]
        with service.http("holder") as client:
            client.post("/v1/offsets", json={"group": "g", "offsets": offsets}).raise_for_status()
        before = memory(service)
        first, second = (attack(service, count, sent, repeat=repeat) for _ in range(2))
        figures = f"{before:.0f} MB, then {first:.0f} and {second:.0f}"
        print(f"{name}: {figures}, at last {memory(service):.0f}")  # noqa: T201 -- with -s
        assert first < before + 300
        assert second < first + 150
