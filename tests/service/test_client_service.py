"""The client against the real service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.client import wire
from offsetmgr.client.offsets import QueryReport
from offsetmgr.errors import ManagerExistsError, OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.service.support import Running, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

KEY = ManagerKey("g", "orders", 3)
WHERE = KEY.topic_partition


@pytest.fixture
def client(service: Running) -> Iterator[OffsetClient]:
    with OffsetClient(service.address, "etl") as made:
        yield made


def test_queries_are_shown_by_the_next_service_too() -> None:
    """A query that has nothing new to say is reported again to a service that is new.

    A character that no JSON can hold does not keep it from that.
    """
    report = QueryReport("1", "2", "running", name="etl\ud800")

    def shown(by: httpx.Client) -> list[str]:
        return [each["name"] for each in by.get("/v1/queries").json()["queries"]]

    with running() as first, first.http() as nobody:
        address = first.address
        client = OffsetClient(address, "etl")
        client.report_query(report)
        until(lambda: shown(nobody))
    listen = address.removeprefix("http://")
    with running(listen=listen) as second, client, second.http() as nobody:
        assert until(lambda: shown(nobody)) == ["etl?"]


def test_a_service_that_takes_no_queries_takes_offsets(
    client: OffsetClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is older than the client, which logs nothing of it."""
    asked = threading.Event()

    def body(_: object) -> bytes:
        asked.set()
        return b"{}"

    monkeypatch.setattr(wire, "QUERIES", "/v1/of-a-later-release")
    monkeypatch.setattr(wire, "queries_body", body)
    client.report_query(QueryReport("1", "2", "running"))
    assert asked.wait(60)
    client.submit("g", {WHERE: 7}, sync=True, timeout=60)
    logged = [record for record in caplog.records if record.name.startswith("offsetmgr.client")]
    assert logged == []


def test_many(service: Running, client: OffsetClient) -> None:
    """More partitions than fit in a request are flushed, submitted in sync, and stopped."""
    offsets = {("orders", number): number for number in range(10_200)}
    client.submit("g", offsets)
    assert len(client.flush(timeout=60).committed) == 10_200
    assert len(service.coordinator.broker.committed("g")) == 10_200
    client.submit("g", {("orders", n): 20_000 + n for n in range(1_100)}, sync=True, timeout=60)
    newest = service.coordinator.broker.committed("g").values()
    assert sum(each.offset >= 20_000 for each in newest) == 1_100
    named = client.stop_managers(timeout=60, group="g", partitions=list(offsets)[:10_100])
    assert len(named.committed) == 10_100
    assert len(client.stop_managers(timeout=60).committed) == 100


def test_a_claim_has_all_or_nothing(service: Running, client: OffsetClient) -> None:
    """If another client holds one, that is an error at once, and the others are given back."""
    wheres = [("orders", number) for number in range(3)]
    client.claim("g", wheres)
    with pytest.raises(ManagerExistsError, match="etl"):
        client.claim("g", wheres[2:])
    with OffsetClient(service.address, "other") as other:
        with pytest.raises(ManagerExistsError, match="etl"):
            other.claim("g", [("bills", 0), *wheres], timeout=600)
        client.stop_managers(group="g")
        other.claim("g", [("bills", 0), *wheres], timeout=60)
        other.submit("g", {("orders", 1): 7}, sync=True)


def test_a_claim_without_a_service_ends_in_time(tmp_path: Path) -> None:
    """It says why, and nothing of it is left to be sent later."""
    with OffsetClient(f"unix://{tmp_path}/none.sock", "etl") as client:
        with pytest.raises(OffsetTimeoutError, match=r"none\.sock"):
            client.claim("g", [("orders", 0)], timeout=2)
        with pytest.raises(OffsetTimeoutError):
            client.claim("g", [("orders", 0)], timeout=0.2)


def test_another_client_holds_it(service: Running, client: OffsetClient) -> None:
    """Another client's manager names its owner, and can be had when that one is closed."""
    with OffsetClient(service.address, "größe 100%") as rival:
        rival.submit("g", {("orders", 3): 5}, sync=True)
        with pytest.raises(ManagerExistsError, match="größe 100%"):
            client.submit("g", {("orders", 3): 6}, sync=True, timeout=600)
    client.submit("g", {("orders", 3): 7}, sync=True, timeout=60)
    assert service.coordinator.broker.committed("g") == {WHERE: OffsetAndMetadata(7)}


def test_a_dead_client_with_a_fast_clock_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    """Its successor waits for its lease to end, says so, and loses nothing."""
    with running(lease_s=1.0) as service:
        with service.http("etl", incarnation=2**62) as dead:
            dead.post(
                "/v1/offsets", json={"group": "g", "offsets": [{**WHERE._asdict(), "offset": 5}]}
            )
        with OffsetClient(service.address, "etl") as client:
            client.submit("g", {WHERE: 7}, sync=True, timeout=60)
            assert client.committed("g") == {WHERE: OffsetAndMetadata(7)}
    assert [each for each in caplog.messages if "its lease ends in" in each]
