"""An operator's requests: what could not be committed and why, and offsets set for a live job."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.admin.service import ServiceReader
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetRegressionError, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.commands import Ran, run_alone
from tests.logs import capture_logs
from tests.service.support import Running, running
from tests.waiting import until

if TYPE_CHECKING:
    import httpx

METADATA_TOO_LARGE = 12
REFUSED = 28
"""No retry mends it; brokers answer it also if a record is too large."""

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def errors(address: str, *options: str) -> Ran:
    return run_alone("errors", "--service", address, *options)


def test_errors() -> None:
    """Status 0 where all is committed; else 1, with what failed and why."""
    with running(stop_timeout_s=2) as service, service.http("etl") as etl:
        fine = errors(service.address)
        assert fine.status == 0, fine.err
        service.coordinator.inject("commit", *[Refuse(METADATA_TOO_LARGE)] * 1_000, group="bad")
        options = ["--service", service.address, "bad", "--follow", "--json"]
        follow = [sys.executable, "-m", "offsetmgr", "errors", *options]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as following:
            try:
                streams = b"\noffsetmgr_event_streams 1.0"
                until(
                    lambda: following.poll() is not None or streams in etl.get("/metrics").content
                )
                assert following.poll() is None
                offsets = [{"topic": "t", "partition": 3, "offset": 7}]
                etl.post("/v1/offsets", json={"group": "bad", "offsets": offsets})
                assert following.stdout is not None
                told = json.loads(following.stdout.readline())
            finally:
                following.terminate()
        assert (told["group"], told["topic"], told["partition"]) == ("bad", "t", 3)
        assert told["code"] == "OFFSET_METADATA_TOO_LARGE"
        now = errors(service.address, "--json")
        assert now.status == 1, now.err
        (found,) = now.json()["errors"]
        assert (found["group"], found["client"]) == ("bad", "etl")
        assert "metadata" in found["message"]
    gone = errors(service.address)
    assert gone.status == 3
    assert len(gone.err.splitlines()) == 1


def test_kafka_is_away() -> None:
    """A read without an answer from Kafka is a 504, and status 3 of a command."""
    with (
        running(stop_timeout_s=2, commit__request_timeout_s=0.5) as service,
        service.http() as http,
    ):
        answer = http.get("/v1/groups")
        assert answer.status_code == 504
        assert answer.json()["error"]["fault"] == "network"
        done = run_alone("groups", "--service", service.address)
        assert done.status == 3
        assert "no answer from Kafka" in done.err


def test_a_group_that_is_refused_makes_nothing_unready() -> None:
    """/metrics, the list of managers and the last line have the answer of Kafka."""
    name = error_info(REFUSED).name
    bad = {"group": "bad", "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}
    with capture_logs() as records:
        with running(stop_timeout_s=2) as service, service.http("etl") as etl:
            service.coordinator.inject("commit", *[Refuse(REFUSED)] * 1_000, group="bad")
            waited = etl.post("/v1/offsets", json=bad | {"wait": True, "timeout_s": 60}).json()
            (error,) = (each["error"] for each in waited["uncommitted"])
            assert (error["code"], error["kafka_code"]) == (name, REFUSED)
            good = etl.post("/v1/offsets", json=bad | {"group": "good", "wait": True}).json()
            assert [each["offset"] for each in good["committed"]] == [7]
            until(lambda: etl.get("/readyz").status_code == 200)  # Kafka was asked once
            assert "bad" not in etl.get("/readyz").text
            (failing,) = etl.get("/v1/managers", params={"group": "bad"}).json()["managers"]
            assert (failing["dirty"], failing["last_error"]["code"]) == (True, name)
            labels = f'cluster_name="default",group="bad",topic="t",partition="0",code="{name}"'
            assert f"{{{labels}}} 1.0" in etl.get("/metrics").text
        assert service.status == 3
    by_event = {record["event"]: record for record in records}
    assert name in by_event["commit_failed"]["error"]
    assert name in by_event["uncommitted"]["error"]
    assert by_event["drained"]["reasons"] == {name: 1}


def test_the_offsets_of_a_live_job_are_set_and_the_job_goes_on(service: Running) -> None:
    """Nothing is seen as a foreign commit; a higher offset stands until the job has passed it.

    A partition without a manager is refused alone: it is reset past the service.
    """
    operator, broker = ServiceReader(service.address), service.coordinator.broker
    with OffsetClient(service.address, "etl") as job:
        job.submit("g", {P0: 50}, sync=True)
        assert operator.rewind("g", {P0: OffsetAndMetadata(10, "by hand")}, {}) == {}
        assert broker.committed("g") == {P0: OffsetAndMetadata(10, "by hand")}
        job.submit("g", {P0: 51}, sync=True)
        higher = {P0: OffsetAndMetadata(100), P1: OffsetAndMetadata(10)}
        assert operator.rewind("g", higher, {}) == {
            P1: "no client of this service holds g/orders/1"
        }
        with pytest.raises(OffsetRegressionError):
            job.submit("g", {P0: 52}, sync=True)
        job.submit("g", {P0: 101}, sync=True)
        assert broker.committed("g") == {P0: OffsetAndMetadata(101)}
        assert not job.flush().uncommitted


def test_an_offset_of_a_former_topic_is_not_set(service: Running, etl: httpx.Client) -> None:
    """As of a submit, the topic's id counts; a rewind ignored it without a word."""
    service.coordinator.broker.create_topic("orders", 1)
    body = {"group": "g", "offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}
    etl.post("/v1/offsets", json=body | {"wait": True}).raise_for_status()
    former = body | {"topic_ids": {"orders": "of-the-former"}, "wait": True}
    former["offsets"] = [{"topic": "orders", "partition": 0, "offset": 3}]
    (refused,) = etl.post("/v1/rewind", json=former).json()["refused"]
    assert refused["error"]["code"] == "TOPIC_RECREATED"
    assert service.coordinator.broker.committed("g") == {P0: OffsetAndMetadata(7)}
