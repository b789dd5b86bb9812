"""Limits on the head of a request and on the number of connections."""

from __future__ import annotations

import contextlib
import json
import resource
from http.client import HTTPResponse
from typing import TYPE_CHECKING

import psutil
import pytest

from offsetmgr.service import run
from offsetmgr.service.messages import MAX_TOPICS
from tests.service.support import Running, connected, memory_process, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A service that refuses the second connection."""
    monkeypatch.setattr(run, "CONNECTIONS", 2)
    with running() as service:
        yield service


@pytest.mark.parametrize("path", ["/v1/topics?", "/v1/offsets?group=g&"])
def test_a_query_of_a_thousand_topics_with_the_longest_names_fits(
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
            raw.sendall(sent + b"y" * 2 * run.HEAD_BYTES)
        assert b" 400 " in raw.recv(100)


def test_a_connection_too_many_is_refused(small: Running) -> None:
    with small.http() as first:
        first.get("/livez").raise_for_status()
        with small.http() as second:
            assert second.get("/livez").status_code == 503
        while first.get("/livez").status_code == 503:
            pass  # until the server has seen the other go, or the test run's guard ends it


def test_a_low_soft_limit_of_open_files_is_raised() -> None:
    """Else a thousand idle connections would keep health from being answered."""
    kind = resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (min(1_024, hard), hard))
    try:
        with memory_process() as service:
            assert service.started()
            raised, _ = psutil.Process(service.process.pid).rlimit(kind)
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert raised == min(run.DESCRIPTORS, hard)
