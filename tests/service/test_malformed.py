"""Malformed requests are refused, none with 500, and the service stays healthy."""

from __future__ import annotations

import json
import random
import socket
from contextlib import ExitStack
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.logs import capture_logs
from tests.service.support import asking, running
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

PATHS: Final = ["/v1/offsets", "/v1/managers", "/v1/flush", "/v1/stop", "/v1/heartbeat"]
VALUES: Final[Sequence[Any]] = (
    *(None, True, -1, 0, 1.5, 2**63, 10**400, float("nan"), "", "\0", "\ud800", "x" * 300),
    *([], {}, [[]], [None], {"topic": "t"}, {"a" * 300: 1}),
)
PIECES: Final = (
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"\xff",
    b" ",
    b":",
    b"%",
    b"HTTP/9",
    b"\t",
    b"{",
    b"9" * 30,
)
BODY: Final = {
    "group": "g",
    "offsets": [{"topic": "t", "partition": 0, "offset": 1, "metadata": ""}],
    "timeout_s": 1,
}


BROKEN: Final = [
    f"{start} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n".encode()
    for start in ("POST /none", "HEAD /livez", "GET /v1/events")
]
"""Requests whose answer begins before their bodies turn out to be malformed."""


@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1_800)])]
)
def test_no_malformed_request_is_answered_with_500(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """None is in a log either, which anybody could fill by such requests."""
    rng = random.Random(count)  # noqa: S311 -- no secret
    with capture_logs() as records, ExitStack() as unfinished, running() as service:
        host, _, port = service.address.removeprefix("http://").partition(":")
        unfinished.enter_context(asking(service, "POST /v1/flush", b"{", length=9))
        for sent in BROKEN + [malformed(rng) for _ in range(count)]:
            with socket.create_connection((host, int(port)), WAIT_S) as raw:
                raw.sendall(sent)
                raw.shutdown(socket.SHUT_WR)
                answer = HTTPResponse(raw)
                try:
                    answer.begin()
                except (HTTPException, ConnectionError):
                    continue  # closed without an answer, or answered like HTTP/0.9
                assert answer.status < 500, sent
        with service.http("test") as client:
            assert client.get("/livez").status_code == 200
            assert client.post("/v1/offsets", json={**BODY, "group": "h"}).json()["accepted"] == 1
    assert not [each for each in records if each["event"] == "request_failed"]
    assert not [each for each in caplog.records if each.exc_info]


def malformed(rng: Random) -> bytes:
    """Return a request with a bad value in its JSON, or with bad bytes anywhere."""
    body = json.dumps(damaged(BODY, rng)).encode()
    if rng.random() < 0.5:
        body = garbled(body, rng)
    head = (
        f"POST {rng.choice(PATHS)} HTTP/1.1\r\nHost: localhost\r\nOffsetmgr-Client: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    ).encode()
    return (garbled(head, rng) if rng.random() < 0.5 else head) + b"\r\n" + body


def damaged(value: Any, rng: Random) -> Any:
    """Return ``value`` with one of the values within replaced, added or left out."""
    if isinstance(value, dict):
        name = rng.choice([*value, "unknown"])
        kept = {each: value[each] for each in value if each != name or rng.random() < 0.8}
        return {**kept, name: damaged(value.get(name), rng)}
    if isinstance(value, list) and rng.random() < 0.7:
        return [damaged(each, rng) for each in value] * rng.choice([1, 1, 2])
    return rng.choice(VALUES)


def garbled(text: bytes, rng: Random) -> bytes:
    """Return ``text`` with one to three pieces replaced, or cut off."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        piece = rng.choice([*PIECES, rng.randbytes(rng.randint(1, 8))])
        text = text[:start] + piece + text[start + rng.randint(0, 8) :]
    return text if rng.random() < 0.8 else text[: rng.randrange(len(text) + 1)]
