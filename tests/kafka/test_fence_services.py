"""Two real services with a fence on one group of a real Kafka."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.messages import committed
from tests.service.support import serve_process
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    import httpx

    from offsetmgr.devkafka import DevKafka
    from tests.service.support import ServeProcess

SESSION_S = 6.0
"""The shortest that Kafka takes."""


def fenced_service(kafka: DevKafka) -> ServeProcess:
    """A service that commits when it is told to: what it was given stays in it until then."""
    env = {
        "OFFSETMGR_FENCE": "true",
        "OFFSETMGR_FENCE_SESSION_TIMEOUT_S": str(SESSION_S),
        "OFFSETMGR_LEASE_S": "3600",
        "OFFSETMGR_COMMIT__COMMIT_INTERVAL_S": "3600",
    }
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers)
    return serve_process(*options, env=env)


def submit(http: httpx.Client, group: str, topic: str, offset: int, *, wait: bool) -> Any:
    offsets = [{"topic": topic, "partition": 0, "offset": offset}]
    body = {"group": group, "offsets": offsets, "wait": wait, "timeout_s": WAIT_S}
    return http.post("/v1/offsets", json=body).json()


def flush(http: httpx.Client, group: str) -> Any:
    """Commit what is held; the one offset that could not be."""
    answer = http.post("/v1/flush", json={"group": group, "timeout_s": WAIT_S}).json()
    (left,) = answer["uncommitted"]
    return left


def until_kafka_dropped_all(kafka: DevKafka, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def dropped() -> bool:
        return not admin.describe_consumer_groups([group])[group].result(WAIT_S).members

    until(dropped, poll_s=0.1)  # some seconds of bare requests are a busy broker


@pytest.mark.fault(7, 8)
def test_a_frozen_service_commits_only_where_it_has_no_successor(
    kafka: DevKafka, topic: str, group: str
) -> None:
    """A service is frozen with offsets in hand, replaced, and thawed: they are refused.

    It names its successor, and is unready.  Also where Kafka had dropped it before its successor
    came, which is gone by then.  A group to which nobody else came is committed again, without an
    operator.
    """
    replaced, dropped, free = (f"{group}-{name}" for name in ("replaced", "dropped", "free"))
    with fenced_service(kafka) as zombie, zombie.http() as old:
        for name in (replaced, dropped, free):
            assert submit(old, name, topic, 10, wait=True)["uncommitted"] == []
        for name in (replaced, dropped):
            assert submit(old, name, topic, 99, wait=False)["accepted"] == 1
        with fenced_service(kafka) as second, second.http() as new:
            zombie.process.send_signal(signal.SIGSTOP)
            assert submit(new, replaced, topic, 20, wait=True)["uncommitted"] == []
            for name in (dropped, free):
                until_kafka_dropped_all(kafka, name)
            assert submit(new, dropped, topic, 20, wait=True)["uncommitted"] == []
            assert new.get("/readyz").json()["fenced_groups"] == 0
            assert "offsetmgr_held_groups 2.0" in new.get("/metrics").text
            assert second.stop() == 0
        zombie.process.send_signal(signal.SIGCONT)
        for name in (replaced, dropped):
            left = flush(old, name)
            assert (left["offset"], left["error"]["code"]) == (99, "FENCED_INSTANCE_ID")
            assert f"group {name} " in left["error"]["hint"]
            assert "stop the other and restart this one" in left["error"]["hint"]
        told = {zombie.wait_for("group_fenced", number)["group"] for number in (1, 2)}
        assert told == {replaced, dropped}
        assert submit(old, free, topic, 20, wait=True)["uncommitted"] == []
        ready = old.get("/readyz")
        assert (ready.status_code, ready.json()["fenced_groups"]) == (503, 2)
        assert group not in ready.text
        assert "offsetmgr_fenced_groups 2.0" in old.get("/metrics").text
        # Reading what is committed goes on, and takes nothing back.
        shown = old.get("/v1/offsets", params={"group": dropped}).json()
        assert [each["offset"] for each in shown["offsets"]] == [20]
        assert zombie.stop() == 3
    for name in (replaced, dropped, free):
        assert committed(kafka, name, topic, 1) == {0: (20, None)}
