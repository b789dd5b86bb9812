"""Reads and waits have places of their own, and a caller that hung up takes none."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, Final

import pytest

from offsetmgr.service import api
from offsetmgr.service.api import WAITING
from tests.service.support import WAIT_S, Running, identity, running
from tests.waiting import until

if TYPE_CHECKING:
    import httpx

OPEN: Final = {"group": "g", "partitions": [{"topic": "t", "partition": 0}]}
OFFSETS: Final = [{"topic": "t", "partition": 0, "offset": 7}]


def asked(
    service: Running, method: str, target: str, body: dict[str, Any] | None = None
) -> socket.socket:
    """A connection on which ``target`` was asked for, a write by request 5 of ``waiter``."""
    host, _, port = service.address.removeprefix("http://").partition(":")
    content = b"" if body is None else json.dumps(body).encode()
    names = {"Host": "localhost", "Content-Length": str(len(content))}
    if content:
        names |= identity("waiter") | {"Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    raw = socket.create_connection((host, int(port)), timeout=WAIT_S)
    raw.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + content)
    return raw


@pytest.mark.fault(30)
def test_abandoned_waits_shut_nobody_out() -> None:
    """A living client is served at once in an outage, and the places are soon free again."""
    with running() as service, service.http("etl") as etl:
        places = service.service.assembly.app
        service.coordinator.pause()
        etl.post("/v1/managers", json=OPEN).raise_for_status()
        target = "/v1/initial-offsets?group=g&wait_s=60"
        share = WAITING // 4
        callers = [asked(service, "GET", target) for _ in range(share)]
        until(lambda: places.waiting.taken == share)
        with service.http() as another:  # as nameless as they are
            answer = another.get("/v1/initial-offsets", params={"group": "g", "wait_s": "60"})
        assert (answer.status_code, "waiting requests" in answer.text) == (429, True)
        served(etl)
        for each in callers:
            each.close()
        served(etl)
        until(lambda: places.waiting.taken == 0)
        assert etl.get("/v1/initial-offsets", params={"group": "g", "wait_s": "0"}).is_success
        service.coordinator.resume()


def served(etl: httpx.Client) -> None:
    """Requests that keep a client alive are answered, with Kafka or without."""
    assert etl.post("/v1/heartbeat", json={}).status_code == 200
    assert etl.post("/v1/offsets", json={"group": "g", "offsets": OFFSETS}).status_code == 200
    assert etl.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "/v1/initial-offsets?group=g&wait_s=60",
        "/v1/offsets?group=g",
        "/v1/topics?topic=t",
        "/v1/topic-names",
    ],
)
def test_a_read_ends_with_its_caller(target: str) -> None:
    with running(commit__request_timeout_s=300) as service, service.http("waiter") as waiter:
        places = service.service.assembly.app
        service.coordinator.pause()
        waiter.post("/v1/offsets", json={"group": "g", "offsets": OFFSETS}).raise_for_status()
        assert service._loop is not None
        before = len(asyncio.all_tasks(service._loop))
        raw = asked(service, "GET", target)
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
        with asked(service, "POST", path, body) as waiting:
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
        raw = asked(service, "POST", "/v1/offsets", body)
        until(lambda: places.waiting.taken == 1)
        raw.close()
        assert again.get("/v1/managers").json()["managers"][0]["dirty"]
        service.coordinator.resume()
        answer = again.post("/v1/offsets", json=body, headers=identity("waiter")).json()
        assert [each["offset"] for each in answer["committed"]] == [7]
