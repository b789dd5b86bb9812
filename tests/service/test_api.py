"""The operations of the service, over real HTTP."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from offsetmgr.codes import STORE_FAILED, error_info
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetStoreError
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    import httpx

GROUP = "orders-etl"


def entry(partition: int, offset: int, **more: Any) -> dict[str, Any]:
    return {"topic": "orders", "partition": partition, "offset": offset, **more}


def submit(client: httpx.Client, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Submit to the group; the answer has to be a success."""
    headers = more.pop("headers", {})
    body = {"group": GROUP, "offsets": list(entries), **more}
    answer = client.post("/v1/offsets", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def committed(service: Running, partition: int, group: str = GROUP) -> OffsetAndMetadata | None:
    return service.coordinator.broker.committed(group).get(TopicPartition("orders", partition))


def test_a_submit_spawns_and_a_wait_sees_the_commit(service: Running, etl: httpx.Client) -> None:
    """One request is all that a script needs."""
    answer = submit(etl, entry(0, 42, metadata="run 7", leader_epoch=3), wait=True)
    expected = entry(0, 42, metadata="run 7", leader_epoch=3) | {"group": GROUP}
    assert answer == {
        "accepted": 1,
        "refused": [],
        "committed": [expected],
        "uncommitted": [],
        "topic_ids": {},
    }
    assert committed(service, 0) == OffsetAndMetadata(42, "run 7", 3)


def test_a_process_that_waits_for_its_name_is_an_error_of_the_group(
    service: Running, etl: httpx.Client
) -> None:
    """While a client of the name is alive that was started later, operators see who waits.

    Its partitions are one event, which pushes out no failure of others.
    """
    with service.http("etl", incarnation=5) as alive:
        submit(alive, entry(0, 10), entry(1, 10), wait=True)
        assert etl.get("/v1/offsets", params={"group": GROUP}).status_code == 200
        refused = etl.post("/v1/heartbeat", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "client_exists")
        assert refused.json()["error"]["lease_left_s"] > 0
        for manager in alive.get("/v1/managers").json()["managers"]:
            assert manager["last_error"]["code"] == "client_exists"
        assert len(service.service.assembly.hub._failures) == 1
        alive.post("/v1/stop", json={"timeout_s": 10})
        assert submit(etl, entry(0, 11), wait=True)["accepted"] == 1
        answer = alive.post("/v1/heartbeat", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "client_fenced")


@pytest.mark.fault(16)
@pytest.mark.parametrize("path", ["/v1/flush", "/v1/offsets"])
def test_a_wait_does_not_take_a_successors_commit_for_the_callers(
    service: Running, etl: httpx.Client, path: str
) -> None:
    """A newer incarnation goes back while the older one waits, whose offset may be passed over."""
    submit(etl, entry(0, 5), wait=True)
    service.coordinator.pause()
    wait: dict[str, Any] = {"timeout_s": 300}
    if path == "/v1/offsets":
        wait |= {"group": GROUP, "offsets": [entry(0, 9)], "wait": True}
    else:
        submit(etl, entry(0, 9))
    with service.http("etl", incarnation=5) as restarted, ThreadPoolExecutor() as pool:
        waiting = pool.submit(etl.post, path, json=wait)
        until(lambda: service.coordinator.in_flight(GROUP))
        assert submit(restarted, entry(0, 3, rewind=True))["refused"] == []
        service.coordinator.resume()
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "client_fenced")


def test_a_repeated_request_has_one_effect(service: Running, etl: httpx.Client) -> None:
    """Not even a rewind is done again, whatever somebody else has committed since."""
    again = entry(0, 5, rewind=True, version=3)
    submit(etl, entry(0, 10, version=2), wait=True)
    first = submit(etl, again, wait=True)
    assert first["committed"][0]["offset"] == 5
    submit(etl, entry(0, 20, version=4), wait=True)
    commits = len(service.coordinator.requests)
    answer = submit(etl, again, wait=True)
    assert (answer["accepted"], answer["committed"][0]["offset"]) == (1, 20)
    assert len(service.coordinator.requests) == commits


@pytest.mark.fault(17)
def test_a_late_request_does_not_undo_a_newer_one(service: Running, etl: httpx.Client) -> None:
    """Not even a rewind; its peers that come in time are taken."""
    submit(etl, entry(0, 20, version=5), entry(1, 20, version=3), wait=True)
    entries = (entry(p, 4, rewind=True, version=4) for p in (0, 1))
    assert submit(etl, *entries, wait=True)["accepted"] == 2
    assert [committed(service, p) for p in (0, 1)] == [OffsetAndMetadata(20), OffsetAndMetadata(4)]


@pytest.mark.fault(17)
@pytest.mark.parametrize("named", [True, False])
def test_a_late_request_for_a_stopped_manager_is_refused(etl: httpx.Client, named: bool) -> None:  # noqa: FBT001
    """Its offset is committed by nobody, which is said, whether it waits or not."""
    submit(etl, entry(0, 1, version=1), wait=True)
    wanted = {"group": GROUP, "partitions": [{"topic": "orders", "partition": 0}]}
    stop = (wanted if named else {}) | {"version": 5}
    etl.post("/v1/stop", json=stop).raise_for_status()
    for version, wait in ((3, False), (4, True)):
        answer = submit(etl, entry(0, 9, version=version), wait=wait)
        assert (answer["accepted"], answer["committed"], answer["uncommitted"]) == (0, [], [])
        assert answer["refused"][0]["error"]["code"] == "manager_stopped"
    late = wanted | {"partitions": [{"topic": "orders", "partition": 0, "version": 2}]}
    opened = etl.post("/v1/managers", json=late).json()
    assert opened["managers"][0]["error"]["code"] == "manager_stopped"
    assert submit(etl, entry(0, 9, version=6))["accepted"] == 1


@pytest.mark.fault(17)
def test_a_late_stop_does_not_stop_a_newer_manager(etl: httpx.Client) -> None:
    """Its version is lower than that of the spawn; the other one is stopped.

    A stop answers for the newest manager of a partition, whatever was stopped before it.
    """
    submit(etl, entry(0, 1, version=3), entry(1, 1, version=1), wait=True)
    answer = etl.post("/v1/stop", json={"version": 2}).json()
    assert [each["partition"] for each in answer["committed"]] == [1]
    assert [each["partition"] for each in etl.get("/v1/managers").json()["managers"]] == [0]
    for last in (10, 20):
        submit(etl, entry(0, last))
        stopped = etl.post("/v1/stop", json={}).json()["committed"]
        assert {e["partition"]: e["offset"] for e in stopped}[0] == last


def test_a_refused_version_may_be_tried_again(service: Running, etl: httpx.Client) -> None:
    """It had no effect, so its repetition may have one."""
    submit(etl, entry(0, 10, version=1), wait=True)
    lower = entry(0, 5, version=2)
    assert submit(etl, lower)["accepted"] == 0
    assert submit(etl, lower)["accepted"] == 0
    submit(etl, entry(0, 3, rewind=True), wait=True)
    assert submit(etl, entry(0, 6, version=9), wait=True)["accepted"] == 1
    assert committed(service, 0) == OffsetAndMetadata(6)


def test_without_a_version_a_request_is_the_newest(service: Running, etl: httpx.Client) -> None:
    """A script needs none; what it sends stands above what was sent before."""
    submit(etl, entry(0, 10, version=7), entry(1, 1, version=9), wait=True)
    submit(etl, entry(0, 11), wait=True)
    submit(etl, entry(0, 12, version=9), wait=True)
    assert committed(service, 0) == OffsetAndMetadata(11)
    assert etl.post("/v1/stop", json={}).json()["uncommitted"] == []
    assert etl.get("/v1/managers").json()["managers"] == []


def test_kafka_can_be_read_without_a_manager(service: Running) -> None:
    """Without a client's header too.  A missing topic has its error, next to the others."""
    where, broker = TopicPartition("orders", 1), service.coordinator.broker
    broker.create_topic("orders", 2)
    broker.commit_externally("elsewhere", {where: OffsetAndMetadata(9, "m", 2)})
    with service.http() as anybody:
        answer = anybody.get("/v1/offsets", params={"group": "elsewhere"}).json()
        assert answer["offsets"] == [entry(1, 9, metadata="m", leader_epoch=2)]
        query = {"group": "elsewhere", "topic": "payments"}
        assert anybody.get("/v1/offsets", params=query).json()["offsets"] == []
        topics = anybody.get("/v1/topics", params={"topic": ["orders", "absent"]}).json()["topics"]
        assert [len(each["partitions"]) for each in topics] == [2, 0]
        assert topics[1]["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        assert "orders" in anybody.get("/v1/topic-names").json()["names"]


def test_a_kafka_that_fails_is_a_bad_gateway(
    service: Running, etl: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """502 where it refuses, 504 where it does not answer, with what it said.

    So is a database in its place; 500 is a fault of the service.
    """
    service.coordinator.inject("fetch", Refuse(30))
    answer = etl.get("/v1/offsets", params={"group": GROUP})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "GROUP_AUTHORIZATION_FAILED"
    service.coordinator.inject("fetch", Refuse(-185))
    assert etl.get("/v1/offsets", params={"group": GROUP}).status_code == 504
    service.coordinator.inject("topic_names", Refuse(31))
    answer = etl.get("/v1/topic-names")
    assert (answer.status_code, answer.json()["error"]["kafka_code"]) == (502, 31)
    failed = OffsetStoreError("read of the store", error_info(STORE_FAILED))
    monkeypatch.setattr(service.service.assembly.watch, "reader", Mock(side_effect=failed))
    answer = etl.get("/v1/groups")
    assert (answer.status_code, answer.json()["error"]["fault"]) == (502, "network")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/offsets", {"group": GROUP}),
        ("/v1/starting-offsets", {"group": GROUP}),
        ("/v1/topics", {"topic": "t"}),
        ("/v1/topic-names", {}),
    ],
)
def test_a_reader_says_how_long_kafka_may_take(
    service: Running, etl: httpx.Client, path: str, query: dict[str, str]
) -> None:
    """The client learns whose fault it is before it gives up."""
    service.coordinator.pause()
    answer = etl.get(path, params={**query, "timeout_s": 0.1})
    assert "Kafka did not answer the service within 0.1 s; check the brokers" in answer.text


def test_a_successor_waits_for_the_stop_before_it(service: Running, etl: httpx.Client) -> None:
    """A partition on its way out is not refused: it is taken when it is free."""
    submit(etl, entry(0, 10), wait=True)
    service.coordinator.pause()
    submit(etl, entry(0, 11))
    with service.http("heir") as heir, ThreadPoolExecutor(2) as threads:
        stopping = threads.submit(etl.post, "/v1/stop", json={"timeout_s": 60})
        with service.http() as anybody:
            until(lambda: '"stopping"' in anybody.get("/v1/managers").text)
            taking = threads.submit(submit, heir, entry(0, 12), wait=True)
            anybody.get("/livez")
            service.coordinator.resume()
        assert stopping.result().json()["committed"][0]["offset"] == 11
        assert taking.result()["refused"] == []
    assert committed(service, 0) == OffsetAndMetadata(12)


def test_flush_is_of_the_clients_own(service: Running, etl: httpx.Client) -> None:
    """Another client's managers are none of its business."""
    with service.http("other") as other:
        submit(other, entry(1, 5))
        submit(etl, entry(0, 10))
        answer = etl.post("/v1/flush", json={"group": GROUP}).json()
        assert [each["partition"] for each in answer["committed"]] == [0]


@pytest.mark.fault(18)
def test_a_silent_client_loses_its_managers_after_committing() -> None:
    """Its offsets are committed, and the partition is free."""
    with running(lease_s=0.5, commit__commit_interval_s=60) as service:
        with service.http("dead") as dead:
            submit(dead, entry(0, 10))
        with service.http("heir") as heir:
            until(lambda: not submit(heir, entry(0, 10))["refused"])  # the lease ends
            service.service.assembly.registry.lease_s = WAIT_S  # that of the heir does not
            page = heir.get("/v1/managers").json()
            assert [each["client"] for each in page["managers"]] == ["heir"]
            assert committed(service, 0) == OffsetAndMetadata(10)


def test_managers_are_listed_page_by_page(service: Running, etl: httpx.Client) -> None:
    """In order, each once, filtered as asked; test_shares.py reads the pages of many."""
    submit(etl, entry(1, 1), entry(0, 1), wait=True)
    with service.http("other") as other:
        submit(other, entry(99, 1))
    query: dict[str, str | int] = {"limit": 1, "client": "etl"}
    (first,), after = etl.get("/v1/managers", params=query).json().values()
    (second,), last = etl.get("/v1/managers", params={**query, "after": after}).json().values()
    assert (second["partition"], last) == (1, None)
    value = {"offset": 1, "metadata": "", "leader_epoch": None}
    assert first == {
        "group": GROUP, "topic": "orders", "partition": 0, "client": "etl", "phase": "ready",
        "submitted": value, "committed": value, "dirty": False, "last_error": None,
        "regressions": 0,
    }  # fmt: skip


def test_metrics_show_managers_and_forget_the_stopped(service: Running, etl: httpx.Client) -> None:
    """Series of a stopped manager are gone, so nothing alerts on the dead."""
    submit(etl, entry(0, 42), wait=True)
    submit(etl, entry(0, 41))
    labels = '{cluster_name="default",group="orders-etl",topic="orders",partition="0"}'
    page = etl.get("/metrics").text
    assert f"offsetmgr_committed_offset{labels} 42.0" in page
    assert f"offsetmgr_regressions_total{labels} 1.0" in page
    assert 'offsetmgr_commits_total{cluster_name="default",result="committed"} 1.0' in page
    assert "offsetmgr_clients 1.0" in page
    service.coordinator.inject("commit", Refuse(25))
    submit(etl, entry(0, 43), wait=True)
    page = etl.get("/metrics").text
    code = 'code="UNKNOWN_MEMBER_ID"'
    assert f'offsetmgr_commit_errors_total{{cluster_name="default",{code}}} 1.0' in page
    etl.post("/v1/stop", json={}).raise_for_status()
    page = etl.get("/metrics").text
    assert "orders-etl" not in page
    assert "offsetmgr_managers 0.0" in page


def test_starting_offsets_omit_a_deleted_topic(service: Running, etl: httpx.Client) -> None:
    """Offsets of a topic that is gone do not keep the job from the others; alone they are refused.

    An offset beyond the end of a recreated topic's log starts at the earliest record.
    """
    submit(etl, entry(0, 10), wait=True)
    asked = {"group": GROUP}
    assert etl.get("/v1/starting-offsets", params=asked).status_code == 404
    service.coordinator.broker.create_topic("clicks", 2)
    service.coordinator.broker.set_log(TopicPartition("clicks", 1), 3, 9)
    clicks = [{**entry(number, 7), "topic": "clicks"} for number in range(2)]
    submit(etl, *clicks, wait=True)
    answer = etl.get("/v1/starting-offsets", params=asked).json()
    assert json.loads(answer["starting_offsets"]) == {"clicks": {"0": -2, "1": 7}}


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the wall clock shows another day."""
    real, days = time.time, itertools.cycle((0, 1, -1, 1, 0, -1))
    monkeypatch.setattr(time, "time", lambda: real() + next(days) * 86_400)


@pytest.mark.fault(19)
def test_a_clock_that_jumps_by_a_day_changes_no_interval(
    jumping_clock: None, service: Running, etl: httpx.Client
) -> None:
    """Commits come in their interval, no lease lapses, no deadline is over before its time."""
    for offset in range(1, 11):
        answer = submit(etl, entry(0, offset), wait=True, timeout_s=60)
        assert (len(answer["committed"]), answer["uncommitted"]) == (1, [])
    (manager,) = etl.get("/v1/managers").json()["managers"]
    assert manager["client"] == "etl"
    # Without anybody waiting, the interval alone commits it.
    submit(etl, entry(0, 11))
    eventually(lambda: committed(service, 0), OffsetAndMetadata(11))
    service.coordinator.pause()
    began_s = time.monotonic()
    (left,) = submit(etl, entry(0, 12), wait=True, timeout_s=0.5)["uncommitted"]
    assert left["offset"] == 12
    assert time.monotonic() - began_s > 0.4
    service.coordinator.resume()
    assert submit(etl, entry(0, 13), wait=True, timeout_s=60)["uncommitted"] == []
