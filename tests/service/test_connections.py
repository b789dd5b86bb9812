"""What a connection may cost: heads, idle ones, and clients that do not take their answers."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr.errors import OffsetCommitError, error_info
from offsetmgr.service import connections, run
from offsetmgr.service.connections import MAX_HEAD_BYTES, MAX_HEADERS
from offsetmgr.service.events import FAILURES_KEPT
from offsetmgr.types import ManagerKey
from tests.service.support import WAIT_S, Running, connected, running

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import NoReturn

HEAD: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED: Final = (
    b"POST /v1/heartbeat HTTP/1.1\r\nHost: localhost\r\nOffsetmgr-Client: x\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)
LINE: Final = b"X: " + b"y" * 1_000 + b"\r\n"
TOO_MUCH: Final = MAX_HEAD_BYTES + 2_000
FAR_TOO_MUCH: Final = 8 * MAX_HEAD_BYTES
"""Takes several readings: of what came in one, the parser may be keeping all unseen."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A service that waits for nobody, but for heads: those end connections, too."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 10 * WAIT_S)
    monkeypatch.setattr(run, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(connections, "STILL_S", 0.2)
    with running(limits__requests_in_flight=1) as here:
        yield here


def answer_on(raw: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    answer = http.client.HTTPResponse(raw)
    answer.begin()
    return answer.status, answer.read()


def ask_without_end(raw: socket.socket) -> NoReturn:
    """Ask, and read nothing."""
    while True:
        raw.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez?" + b"a" * TOO_MUCH,
        HEAD + b"X: " + b"y" * FAR_TOO_MUCH,
        HEAD + b"y" * FAR_TOO_MUCH,
        HEAD + LINE * (TOO_MUCH // len(LINE)),
        HEAD + LINE * (TOO_MUCH // len(LINE)) + b"\r\n",
        HEAD + b"X: y\r\n" * MAX_HEADERS + b"\r\n",
        CHUNKED + b"X: " + b"y" * FAR_TOO_MUCH,
        CHUNKED + LINE * (TOO_MUCH // len(LINE)) + b"\r\n",
    ],
    ids=["url", "value", "name", "lines", "whole", "many", "trailer", "trailers"],
)
def test_a_large_head_is_refused(service: Running, sent: bytes) -> None:
    """Whatever it is made of, and without waiting for its end; so also behind a chunked body."""
    with connected(service) as raw:
        with contextlib.suppress(ConnectionError):  # it need not take all of that
            raw.sendall(sent)
        status, body = answer_on(raw)
    assert (status, json.loads(body)["error"]["code"]) == (431, "head_too_large")


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * (MAX_HEADERS - 1) + b"\r\n",
    ],
)
def test_a_head_within_its_limits_is_taken(service: Running, head: bytes) -> None:
    """Each request of a connection has the limits for itself, and a large body has others."""
    large = b" " * (2 * MAX_HEAD_BYTES) + b"{}"
    body = b"POST /v1/heartbeat HTTP/1.1\r\nHost: localhost\r\nOffsetmgr-Client: x\r\n"
    body += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(large) + large
    trailing = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + LINE * 40 + b"\r\n", 1) + LINE * 40 + b"\r\n"
    with connected(service) as raw:
        for request in (head, body, trailing, head):
            raw.sendall(request)
            assert answer_on(raw)[0] == 200


def test_what_is_no_request_keeps_no_connection(impatient: Running) -> None:
    """An empty line, or a body that comes when its request was answered already."""
    with connected(impatient) as raw:
        raw.sendall(b"\r\n")
        assert raw.recv(100) == b""
    with connected(impatient) as raw:
        raw.sendall(b"POST /v1/flush HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert answer_on(raw)[0] == 400
        raw.sendall(b"{")
        assert raw.recv(100) == b""


@pytest.mark.fault(30)
def test_who_does_not_read_answers_is_cut_off(impatient: Running) -> None:
    """However much was asked on that connection; nobody else is refused for it."""
    with connected(impatient) as raw:
        with pytest.raises(ConnectionError):
            ask_without_end(raw)
        with impatient.http() as other:
            assert other.get("/v1/managers").status_code == 200


@pytest.mark.fault(30)
def test_an_event_stream_that_nobody_reads_ends(impatient: Running) -> None:
    """Its place is free again."""
    hub = impatient.service.assembly.hub
    with connected(impatient) as raw:
        raw.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in raw.recv(100)
        while hub.reader_count:
            for _ in range(FAILURES_KEPT):
                key = ManagerKey("g", "t", 0)
                hub.failed(key, OffsetCommitError(*key, 5, error_info(25)))
