"""A group whose commits Kafka refuses for good is shown to operators; the others go on."""

from __future__ import annotations

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import error_info
from tests.logs import capture_logs
from tests.service.support import running
from tests.waiting import until

REFUSED = 28
"""No retry mends it; brokers answer it also if a record is too large."""


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
