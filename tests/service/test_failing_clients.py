"""Clients that repeat themselves, come late, die or stand still: what the service makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import OffsetCommitError, error_info
from offsetmgr.service.events import FAILURES_KEPT
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition
from tests.service.support import ROOT, Running, connected, running

if TYPE_CHECKING:
    import httpx


KEY = ManagerKey("g", "t", 0)
JSON = {"Content-Type": "application/json"}
WAIT_S = 60.0

CLIENT = """
import sys, time
from offsetmgr import OffsetClient
client = OffsetClient(sys.argv[1], name="dies")
client.submit("g", {("t", 0): 10})
time.sleep(600)
"""


def body_of(
    offset: int, version: int | None = None, *, rewind: bool = False, wait: bool = False
) -> bytes:
    """A submit to the one partition of these tests."""
    entry = {"topic": "t", "partition": 0, "offset": offset, "rewind": rewind, "version": version}
    return json.dumps({"group": "g", "offsets": [entry], "wait": wait}).encode()


def committed(service: Running) -> OffsetAndMetadata | None:
    """What the coordinator holds."""
    return service.coordinator.broker.committed("g").get(TopicPartition("t", 0))


@pytest.mark.fault(16)
def test_a_request_repeated_while_it_is_under_way_gets_the_same_answer(
    service: Running, etl: httpx.Client
) -> None:
    """One effect, and the same bytes for both."""
    service.coordinator.pause()

    def ask(offset: int) -> bytes:
        with service.http("etl") as client:
            body = body_of(offset, 1, wait=True)
            return client.post("/v1/offsets", content=body, headers=JSON).content

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, 7)
        while not _has(etl, "etl", 7):
            pass  # until it has arrived, or the guard of the test run ends it
        second = threads.submit(ask, 7)
        service.coordinator.resume()
        assert first.result() == second.result()
    commits = [each for each in service.coordinator.requests if each.operation == "commit"]
    assert len(commits) == 1
    assert committed(service) == OffsetAndMetadata(7)


@pytest.mark.fault(17)
def test_what_arrives_on_an_old_connection_after_a_newer_request_undoes_nothing(
    service: Running, etl: httpx.Client
) -> None:
    """A client that reconnects may be overtaken by itself: its highest version wins."""
    late = body_of(3, 1, rewind=True)
    with connected(service) as old:
        head = (
            "POST /v1/offsets HTTP/1.1\r\nHost: localhost\r\nOffsetmgr-Client: etl\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(late)}\r\n\r\n"
        )
        old.sendall(head.encode() + late[:10])
        newer = body_of(20, 2, wait=True)
        etl.post("/v1/offsets", content=newer, headers=JSON).raise_for_status()
        old.sendall(late[10:])
        assert b" 200 " in old.recv(4096)
    etl.post("/v1/flush", json={}).raise_for_status()
    assert committed(service) == OffsetAndMetadata(20)


@pytest.mark.fault(18)
def test_what_a_killed_client_had_handed_over_is_committed_and_its_managers_are_free() -> None:
    """The service needs no goodbye: the lease lapses, then another may have the partition."""
    with running(lease_s=1.0, commit__commit_interval_s=600) as service:
        command = [sys.executable, "-c", CLIENT, service.address]
        with subprocess.Popen(command, cwd=ROOT) as dying, service.http("heir") as heir:
            try:
                while not _has(heir, "dies", 10):
                    assert dying.poll() is None
            finally:
                dying.kill()
        with service.http("heir") as heir:
            while heir.post("/v1/offsets", content=body_of(11), headers=JSON).json()["refused"]:
                pass  # ends with the lease, or by the guard of the test run
            assert committed(service) == OffsetAndMetadata(10)
            assert _has(heir, "heir", 11)


def _has(client: httpx.Client, owner: str, offset: int) -> bool:
    """True if the service holds that offset of that client."""
    managers = client.get("/v1/managers").json()["managers"]
    submitted = [(each["client"], each["submitted"]) for each in managers]
    return any(name == owner and value and value["offset"] == offset for name, value in submitted)


@pytest.mark.fault(30)
def test_a_reader_that_stands_still_costs_its_bounds_and_nobody_else(
    service: Running, etl: httpx.Client
) -> None:
    """What it does not take is dropped and counted, however much comes; others are served."""
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
        etl.post("/v1/offsets", content=body_of(7, wait=True), headers=JSON).raise_for_status()
        assert committed(service) == OffsetAndMetadata(7)
        received = slow.recv(65_536)
        while b"event: dropped" not in received[-130_000:]:
            received += slow.recv(65_536)
