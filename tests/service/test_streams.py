"""Event streams over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetCommitError, error_info
from offsetmgr.service.events import FAILURES_KEPT
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.service.support import Running, connected, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

KEY = ManagerKey("g", "t", 0)


def submit(client: httpx.Client, group: str, offset: int) -> None:
    """One offset, seen through to its end."""
    offsets = [{"topic": "t", "partition": 0, "offset": offset}]
    body = {"group": group, "offsets": offsets, "wait": True, "timeout_s": 2}
    client.post("/v1/offsets", json=body).raise_for_status()


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, id and data of each event."""
    name = number = ""
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "id":
            number = value
        elif key == "data":
            yield name, number, json.loads(value)
            number = ""


def test_a_stream_begins_with_the_committed_offsets(service: Running, etl: httpx.Client) -> None:
    """First the committed offset of each manager, then commits, failures and stops."""
    submit(etl, "g", 1)
    with etl.stream("GET", "/v1/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = events(stream.iter_lines())
        assert next(told)[2]["offset"] == 1
        submit(etl, "g", 2)
        name, _, data = next(told)
        assert (name, data["group"], data["offset"]) == ("committed", "g", 2)
        service.coordinator.inject("commit", Refuse(25, detail="held by spark-1"))
        submit(etl, "g", 3)
        name, number, data = next(told)
        assert (name, data["error"]["code"]) == ("failed", "UNKNOWN_MEMBER_ID")
        assert data["error"]["hint"] == "held by spark-1"
        assert number.isdigit()
        etl.post("/v1/stop", json={}).raise_for_status()
        names = [next(told)[0]]
        while names[-1] != "stopped":
            names.append(next(told)[0])


def test_a_stream_is_of_the_clients_own_managers(service: Running, etl: httpx.Client) -> None:
    """With a header of this client alone, without one of all."""
    with service.http("other") as other, service.http() as anybody:
        submit(other, "theirs", 1)
        submit(etl, "mine", 2)
        with etl.stream("GET", "/v1/events") as stream:
            assert next(events(stream.iter_lines()))[2]["group"] == "mine"
        with anybody.stream("GET", "/v1/events") as stream:
            told = events(stream.iter_lines())
            assert {next(told)[2]["group"], next(told)[2]["group"]} == {"theirs", "mine"}
        with anybody.stream("GET", "/v1/events", params={"group": "mine"}) as stream:
            assert next(events(stream.iter_lines()))[2]["group"] == "mine"


def test_a_reader_resumes_where_it_was(service: Running, etl: httpx.Client) -> None:
    """Failures that happened while it was away come first."""
    service.coordinator.inject("commit", Refuse(25))
    submit(etl, "g", 3)
    with etl.stream("GET", "/v1/events", headers={"Last-Event-ID": "0"}) as stream:
        kinds = {}
        told = events(stream.iter_lines())
        while "failed" not in kinds:
            name, number, _ = next(told)
            kinds[name] = number
    service.coordinator.inject("commit", Refuse(30))
    submit(etl, "g", 4)
    with etl.stream("GET", "/v1/events", headers={"Last-Event-ID": kinds["failed"]}) as stream:
        codes = [e["error"]["code"] for n, _, e in _until_failed(events(stream.iter_lines())) if n]
    assert codes == ["GROUP_AUTHORIZATION_FAILED"]


def _until_failed(
    told: Iterator[tuple[str, str, dict[str, Any]]],
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for each in told:
        if each[0] == "failed":
            yield each
            return


def test_open_streams_do_not_hold_up_the_stop() -> None:
    """They end, with the response finished properly, and the service stops."""
    with (
        running() as service,
        service.http() as reader,
        reader.stream("GET", "/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        service.stop()
        assert list(lines) == [""]
    assert service.status == 0


@pytest.mark.fault(30)
def test_a_reader_that_stands_still_costs_its_bounds_and_nobody_else(
    service: Running, etl: httpx.Client
) -> None:
    """Events beyond its limit are dropped and counted; other streams are served."""
    hub = service.service.assembly.hub
    error = OffsetCommitError(*KEY, 5, error_info(25))
    with connected(service) as slow:
        slow.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in slow.recv(100)
        (reader,) = hub._readers
        told = -1
        while told != reader.next_failure:  # until the stream is full
            told = reader.next_failure
            for _ in range(FAILURES_KEPT + 1):
                hub.failed(KEY, error)
            for _ in range(3):
                assert etl.get("/livez").status_code == 200
        submit(etl, "g", 7)
        held = service.coordinator.broker.committed("g")
        assert held == {KEY.topic_partition: OffsetAndMetadata(7)}
        received = slow.recv(65_536)
        while b"event: dropped" not in received[-130_000:]:
            received += slow.recv(65_536)
