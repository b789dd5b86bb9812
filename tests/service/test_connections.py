"""Limits on the head of a request and on the number of connections."""

from __future__ import annotations

import contextlib
import json
import resource
from contextlib import ExitStack
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Final

import httpx
import psutil
import pytest

from offsetmgr.http import connections, server
from offsetmgr.service.messages import MAX_TOPICS
from tests.service.support import Running, connected, memory_process, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


ONE: Final = {"topic": "t", "partition": 0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A service with places for two connections."""
    monkeypatch.setattr(server, "CONNECTIONS", 1)
    with running(limits__event_streams=1) as service:
        yield service


@pytest.mark.parametrize("path", ["/v1/topics?", "/v1/offsets?group=g&"])
def test_a_query_of_the_most_topics_with_the_longest_names_fits(
    service: Running, path: str
) -> None:
    names = "&".join(f"topic={number:0249}" for number in range(MAX_TOPICS))
    with connected(service) as raw:
        raw.sendall(f"GET {path}{names} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
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


def test_an_idle_connection_makes_room_for_the_next(small: Running) -> None:
    """Health is answered, no matter how many connections are held open."""
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(small)) for _ in range(5)]
        for _ in range(3):
            with small.http() as client:
                assert client.get("/livez").status_code == 200
        assert idle[0].recv(1) == b""


def test_a_connection_too_many_is_refused(small: Running) -> None:
    """If none is idle; those that were there go on."""
    small.coordinator.pause()
    with small.http("first") as first, small.http() as late:
        first.post("/v1/managers", json={"group": "g", "partitions": [ONE]}).raise_for_status()
        target = b"GET /v1/initial-offsets?group=g&wait_s=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connected(small) as busy:
            busy.sendall(target)
            with connected(small) as other:
                other.sendall(target)
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


def test_a_reader_that_stalls_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that waits for it in the service is given up."""
    monkeypatch.setattr(connections, "STALLED_S", 0.1)
    with running() as service, connected(service) as raw:
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
