"""``offsetmgr errors``: what the service could not commit, now and as it comes."""

from __future__ import annotations

import json
import subprocess
import sys

from offsetmgr.coordinator.memory import Refuse
from tests.commands import Ran, run_alone
from tests.service.support import running
from tests.waiting import until

_METADATA_TOO_LARGE = 12


def errors(address: str, *options: str) -> Ran:
    return run_alone("errors", "--service", address, *options)


def test_errors() -> None:
    """Status 0 where all is committed; else 1, with what failed and why."""
    with running(stop_timeout_s=2) as service, service.http("etl") as etl:
        fine = errors(service.address)
        assert fine.status == 0, fine.err
        service.coordinator.inject("commit", *[Refuse(_METADATA_TOO_LARGE)] * 1_000, group="bad")
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
