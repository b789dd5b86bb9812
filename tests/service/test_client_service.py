"""The client against the real service."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr import OffsetClient
from offsetmgr.client import core as client_core
from offsetmgr.client import wire
from offsetmgr.client.core import Core
from offsetmgr.client.offsets import QueryReport
from offsetmgr.client.transport import Unreachable
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    ManagerExistsError,
    OffsetCommitError,
    OffsetRegressionError,
    OffsetTimeoutError,
    OverloadedError,
)
from offsetmgr.http import answers
from offsetmgr.service import overview
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from offsetmgr import OffsetManagerHandle
    from offsetmgr.coordinator.memory import BrokerState

WHERE = TopicPartition("orders", 3)
KEY = ManagerKey("g", "t", 0)
PEER = ManagerKey("g", "t", 1)
NEW = ManagerKey("other", "t", 7)


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

    with running(lease_s=6) as first, first.http() as nobody:
        address = first.address
        client = OffsetClient(address, "etl")
        client.report_query(report)
        until(lambda: shown(nobody))
    listen = address.removeprefix("http://")
    with running(listen=listen, lease_s=6) as second, client, second.http() as nobody:
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


def test_a_refused_report_of_queries_is_logged_and_repeated(
    service: Running,
    client: OffsetClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last report of a query that has ended has no later one that makes up for it."""
    monkeypatch.setattr(client_core, "RETRY_S", 0.05)
    with service.http("nobody") as nobody:

        def states() -> list[str]:
            return [each["state"] for each in nobody.get("/v1/queries").json()["queries"]]

        client.report_query(QueryReport("1", "2", "running"))
        until(lambda: states() == ["running"])
        with monkeypatch.context() as patch:
            patch.setattr(overview, "QUERY_BYTES", 10)
            client.report_query(QueryReport("1", "2", "ended"))
            until(lambda: "more than 10 bytes" in caplog.text)
        until(lambda: states() == ["ended"])
    assert caplog.text.count("does not show this client's queries") == 1


def test_an_invalid_report_of_queries_is_logged(
    client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.report_query(QueryReport("1", "2", "lost"))
    until(lambda: "does not show this client's queries: queries[0].state" in caplog.text)


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_not_finite_leaves_the_other_queries_shown(
    service: Running, client: OffsetClient, rate: float
) -> None:
    """No JSON has a number for it, so that the report as a whole was refused."""
    client.report_query(QueryReport("1", "2", "running", processed_rows_per_second=1.5))
    client.report_query(QueryReport("3", "4", "running", processed_rows_per_second=rate))

    def rates() -> list[float | None]:
        found = nobody.get("/v1/queries").json()["queries"]
        return [each["processed_rows_per_second"] for each in found]

    with service.http("nobody") as nobody:
        until(lambda: sorted(rates(), key=str) == [1.5, None])


@pytest.fixture
def behind() -> Iterator[tuple[OffsetClient, BrokerState]]:
    """A client that listens to no events and has committed 90; its topic was recreated since."""
    with running(lease_s=1.0, commit__verify_interval_s=0.5) as service:
        broker = service.coordinator.broker
        broker.create_topic("orders", 4)
        broker.set_log(WHERE, 0, 100)
        with OffsetClient(service.address, "etl") as client:
            client.submit("g", {WHERE: 90}, sync=True, timeout=60)
            broker.delete_topic("orders")
            broker.create_topic("orders", 4)
            broker.set_log(WHERE, 0, 100)
            yield client, broker


def test_a_client_without_listeners_follows_a_recreated_topic(
    behind: tuple[OffsetClient, BrokerState],
) -> None:
    """It learns the new id from a heartbeat alone, and then takes lower offsets."""
    client, broker = behind

    def is_taken() -> bool:
        try:
            client.submit("g", {WHERE: 5})
        except OffsetRegressionError:
            return False
        return True

    until(is_taken)
    assert client.flush(timeout=60).ok
    assert broker.committed("g")[WHERE].offset == 5


def test_a_stop_does_not_hide_that_a_topic_was_recreated(
    behind: tuple[OffsetClient, BrokerState],
) -> None:
    """The last offset of the former log is refused again, and a higher one is of the new log."""
    client, broker = behind
    until(lambda: client.flush(timeout=60).uncommitted)
    client.stop_managers(timeout=60)
    with pytest.raises(OffsetCommitError, match="recreated"):
        client.submit("g", {WHERE: 90}, sync=True, timeout=60)
    client.stop_managers(timeout=60)
    client.submit("g", {WHERE: 91}, sync=True, timeout=60)
    assert broker.committed("g")[WHERE].offset == 91


def test_many(service: Running, client: OffsetClient) -> None:
    """More partitions than fit in a request are flushed, submitted in sync, and stopped."""
    offsets = {("orders", number): number for number in range(10_200)}
    client.submit("g", offsets)
    assert len(client.flush(timeout=600).committed) == 10_200
    assert len(service.coordinator.broker.committed("g")) == 10_200
    client.submit("g", {("orders", n): 20_000 + n for n in range(1_100)}, sync=True, timeout=600)
    newest = service.coordinator.broker.committed("g").values()
    assert sum(each.offset >= 20_000 for each in newest) == 1_100
    named = client.stop_managers(timeout=600, group="g", partitions=list(offsets)[:10_100])
    assert len(named.committed) == 10_100
    assert len(client.stop_managers(timeout=600).committed) == 100


def test_a_claim_of_several_clients_has_all_or_nothing(
    service: Running, client: OffsetClient
) -> None:
    """If another client holds one, that is an error at once, and the others are given back.

    They are given back too where the refused client is closed at once.
    """
    wheres = [("orders", number) for number in range(3)]
    client.claim("g", wheres)
    with OffsetClient(service.address, "other") as other:
        with pytest.raises(ManagerExistsError, match="etl"):
            other.claim("g", [("bills", 0), *wheres], timeout=600)
        with OffsetClient(service.address, "late") as late, pytest.raises(ManagerExistsError):
            late.claim("g", [("bills", 1), *wheres])
        client.stop_managers(group="g")
        other.claim("g", [("bills", 0), ("bills", 1), *wheres], timeout=60)
        other.submit("g", {("orders", 1): 7}, sync=True)


def test_a_claim_without_a_service_ends_in_time(tmp_path: Path) -> None:
    """It says why, and nothing of it is left to be sent later."""
    with OffsetClient(f"unix://{tmp_path}/none.sock", "etl") as client:
        with pytest.raises(OffsetTimeoutError, match=r"none\.sock"):
            client.claim("g", [("orders", 0)], timeout=2)
        with pytest.raises(OffsetTimeoutError):
            client.claim("g", [("orders", 0)], timeout=0.2)


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


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, no stop reaches the service."""
    away = threading.Event()
    ask = Core.ask

    def over_a_link(self: Core, path: str, *more: Any) -> dict[str, Any]:
        if path == "/v1/stop" and away.is_set():
            raise Unreachable("the link is cut")
        return ask(self, path, *more)

    monkeypatch.setattr(Core, "ask", over_a_link)
    return away


def owner(service: Running, key: ManagerKey) -> str | None:
    handle = service.service.assembly.factory.get(key)
    return None if handle is None else handle.owner


def refusal(manager: OffsetManagerHandle) -> str:
    """Return why the manager has no initial offset yet."""
    with pytest.raises(OffsetTimeoutError) as caught:
        manager.initial_offset(timeout=0.1)
    return str(caught.value)


def test_a_manager_beyond_the_limit_holds_up_no_other() -> None:
    """Offsets of the managers that are there are committed; new ones are made when these go."""
    with running(limits__managers=2) as service, OffsetClient(service.address, "etl") as client:
        client.submit("g", {KEY.topic_partition: 1, PEER.topic_partition: 1}, sync=True)
        new = client.spawn(*NEW)
        until(lambda: "limits.managers" in refusal(new))
        with pytest.raises(OverloadedError, match=r"limits\.managers"):
            client.submit("g", {("t", 5): 1}, sync=True)
        with pytest.raises(OverloadedError, match=r"limits\.managers"):
            client.claim("g", [("t", 6)])
        client.submit("g", {("t", 0): 2, ("t", 1): 2})
        value = OffsetAndMetadata(2)
        committed, uncommitted = client.flush(timeout=60)
        assert committed == {KEY: value, PEER: value}
        assert all("limits.managers" in str(left.error) for left in uncommitted.values())
        client.stop_managers(group="g", partitions=[("t", 0), ("t", 1)])
        freed = {ManagerKey("g", "t", 5): OffsetAndMetadata(1)}
        # An answer from before the stop may still be on its way, and end a flush as well.
        until(lambda: client.flush(timeout=60) == (freed, {}))
        assert new.initial_offset(timeout=60) is None
        assert owner(service, NEW) == "etl"


def claimed(client: OffsetClient) -> bool:
    """Return False while another client holds the partition."""
    try:
        client.claim("g", [("t", 0)], timeout=60)
    except ManagerExistsError:
        return False
    return True


def test_an_unanswered_stop_frees_its_partition(cut: threading.Event) -> None:
    """A stop that never reached the service ends when it can be reached, and not with the lease."""
    with running(lease_s=600) as service, OffsetClient(service.address, "etl") as client:
        client.submit("g", {("t", 0): 1, ("t", 1): 1}, sync=True)
        cut.set()
        client.stop_managers(timeout=0.2, group="g", partitions=[("t", 0)])
        with OffsetClient(service.address, "heir") as heir:
            with pytest.raises(ManagerExistsError):
                heir.claim("g", [("t", 0)], timeout=60)
            cut.clear()
            until(lambda: claimed(heir))
        assert owner(service, PEER) == "etl"


def test_an_offset_overtaken_by_a_stop(
    service: Running, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that a restarted service gets before the offsets holds none of them back."""
    ask, number = Core.ask, iter([0])

    def overtaken(self: Core, path: str, *more: Any) -> object:
        if path == wire.OFFSETS and next(number, None) is not None:
            with self.lock:
                version = self.partitions.stop_version()
            stop = wire.flush_body("g", [KEY.topic_partition], 60, version)
            self.session.ask(wire.STOP, Deadline(60), dict, stop)
        return ask(self, path, *more)

    monkeypatch.setattr(Core, "ask", overtaken)
    client.submit("g", {("t", 0): 1}, sync=True, timeout=60)
    assert owner(service, KEY) == "etl"


def test_a_new_manager_outlives_the_stop_of_its_predecessor(
    service: Running, client: OffsetClient, cut: threading.Event
) -> None:
    """Offsets left by an unanswered stop have a lower version than those of the new manager."""
    client.submit("g", {("t", 0): 1, ("t", 1): 1}, sync=True)
    cut.set()
    client.stop_managers(timeout=0.2)
    client.submit("g", {("t", 0): 2}, sync=True)
    cut.clear()
    client.submit("h", {("t", 0): 1})
    until(lambda: owner(service, PEER) is None)
    assert owner(service, KEY) == "etl"


def test_a_followed_partition_names_the_setting_that_holds_it(tmp_path: Path) -> None:
    """No client has it, so none can be closed, and no lease ends; also for one of its name."""
    WrittenCheckpoint(tmp_path).batch(4, orders(40))
    follow = {"checkpoint": str(tmp_path), "group": "g", "interval_s": 0.1}
    with running(**{f"follow__lake__{name}": value for name, value in follow.items()}) as service:
        service.coordinator.broker.create_topic("orders", 4)
        service.coordinator.broker.set_log(TopicPartition("orders", 0), 0, 100)
        until(service.service.assembly.factory.managers)
        for name in ("etl", "follow"):
            with (
                OffsetClient(service.address, name) as client,
                pytest.raises(ManagerExistsError, match=r"held by a checkpoint .*\[follow\.NAME"),
            ):
                client.submit("g", {("orders", 0): 50}, sync=True, timeout=60)


def test_answers_beyond_the_limit_of_bytes_are_asked_for_in_parts(
    service: Running, client: OffsetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed offsets with long metadata were called uncommitted, and could not be read."""
    monkeypatch.setattr(answers, "MOST_BYTES", 30_000)
    monkeypatch.setattr("offsetmgr.client.client.CHUNK", 5)
    offsets = {("orders", number): OffsetAndMetadata(1, 4_000 * "m") for number in range(12)}
    client.submit("g", offsets)
    assert len(client.flush(timeout=60).committed) == len(offsets)
    assert client.committed("g", timeout=60) == offsets
    assert len(client.stop_managers(timeout=60).committed) == len(offsets)
