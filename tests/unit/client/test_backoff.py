"""Requests that fail, for whatever reason: further and further apart, and told once."""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING

import pytest

from offsetmgr.backoff import Backoff
from offsetmgr.client import core
from tests.unit.client.scripted import DROP, Fault, error_body
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService

FAILURES = 8


@pytest.fixture
def in_a_row(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of failures in a row, at each failure of a client made after this."""
    monkeypatch.setattr(core, "FIRST_PAUSE_S", 0.001)
    numbers: list[int] = []

    class Counted(Backoff):
        def failed(self) -> float:
            pause_s = super().failed()
            assert 0 < pause_s <= 2
            numbers.append(self.failures)
            return pause_s

    monkeypatch.setattr(core, "Backoff", Counted)
    return numbers


def refusal(status: int, code: str) -> Fault:
    return Fault(act=False, status=status, body=error_body(code))


def malformed(**answer: object) -> Fault:
    """A success that nothing can be made of."""
    return Fault(act=False, status=200, body=json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("path", "fault"),
    [("/v1/offsets", refusal(421, "foreign_host"))]
    + [
        ("/v1/heartbeat", fault)
        for fault in (
            refusal(421, "foreign_host"),
            refusal(404, "not_found"),
            refusal(409, "conflict"),
            refusal(302, "moved"),
            refusal(500, "internal"),
            refusal(503, "draining"),
            refusal(429, "overloaded"),
            malformed(),
            malformed(lease_s="long", last_event_id=0),
            malformed(lease_s=math.inf, last_event_id=0),
            malformed(lease_s=10, last_event_id=math.inf),
            Fault(act=False, status=200, body=b"[]"),
            DROP,
        )
    ],
)
def test_failed_requests_are_retried_with_growing_pauses(
    path: str,
    fault: Fault,
    in_a_row: list[int],
    service: ScriptedService,
    client: OffsetClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only a success ends the back-off; one warning, and one line when it is over."""
    caplog.set_level(logging.INFO, "offsetmgr.client")
    service.script(path, *[fault] * FAILURES)
    client.spawn("g", "orders", 3).submit(5)
    assert not client.flush(timeout=WAIT_S).uncommitted
    assert in_a_row[:FAILURES] == list(range(1, FAILURES + 1))
    until(lambda: client.core.backoff.failures == 0)  # a request that the close ends counts, too
    client.close()  # its sender has said all that it has to say
    told = [each.levelname for each in caplog.records if each.name == "offsetmgr.client"]
    assert told == ["WARNING", "WARNING"]


def test_the_answer_to_another_request_does_not_end_the_back_off(
    service: ScriptedService, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that reads while its offsets are refused has one warning in its log, not thousands."""
    service.script("/v1/heartbeat", *[refusal(421, "foreign_host")] * 3)
    client.spawn("g", "orders", 3)
    while not service.managers:
        client.committed("g")
    assert len([each for each in caplog.messages if "refuses requests" in each]) == 1


def test_another_cause_is_logged(
    service: ScriptedService, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A second cause is not hidden behind the first."""
    service.script("/v1/heartbeat", DROP, DROP, refusal(421, "foreign_host"))
    assert client.spawn("g", "orders", 3).initial_offset(timeout=WAIT_S) is None
    client.close()
    first, second, _ = caplog.messages
    assert "closed the connection without an answer; was it killed" in first
    assert "refuses requests: no" in second


def test_an_event_stream_that_ends_at_once_is_opened_further_and_further_apart(
    in_a_row: list[int], service: ScriptedService, client: OffsetClient
) -> None:
    """Neither an opened stream nor an event in it counts as a success yet."""
    body = b": connected\n\nid: 8\nevent: dropped\ndata: {}\n\n"
    service.script("/v1/events", *[Fault(status=200, body=body)] * FAILURES)
    client.spawn("g", "orders", 3).errors()
    service.wait_for(lambda: len(service.of("/v1/events", "GET")) > FAILURES)
    assert in_a_row[:FAILURES] == list(range(1, FAILURES + 1))
