"""The page's requests to the service itself, over real HTTP."""

from __future__ import annotations

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse
from tests.service.support import memory_process, running
from tests.waiting import eventually

if TYPE_CHECKING:
    import httpx

    from tests.service.support import Running

OFFSETS = {"group": "g", "offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}
QUERY = {
    "id": "1",
    "run_id": "2",
    "state": "running",
    "name": "etl",
    "groups": ["g"],
    "batch_id": 12,
    "input_rows_per_second": 10.5,
}


def overview(client: httpx.Client, group: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The next overview that is not of before, and its row of a group."""
    answer = client.get("/v1/overview")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found, next((each for each in found["groups"] if each["name"] == group), {})


def test_the_overview_shows_clients_and_uncommitted_offsets(
    service: Running, etl: httpx.Client
) -> None:
    """Its client, its uncommitted offsets and the reason; null for all that is not measured."""
    service.coordinator.inject("commit", *[Refuse(30)] * 1_000)
    etl.post("/v1/offsets", json=OFFSETS).raise_for_status()
    row: dict[str, Any] = {}
    while not row.get("failing"):  # the first commit has to be refused, and the answer made again
        found, row = overview(etl, "g")
    assert (row["clients"], row["partitions"], row["uncommitted"]) == (["etl"], 1, 1)
    assert row["error"]["code"] == "GROUP_AUTHORIZATION_FAILED"
    assert row["error"]["hint"]
    assert (row["watched"], row["lag"], row["lag_points"]) == (False, None, [])
    assert (found["managers"], found["failing"], found["draining"]) == (1, 1, False)
    assert found["watch"]["groups"] == ""


def test_queries_are_shown_until_the_lease_of_their_client_ends() -> None:
    """A report replaces the one before; another client's stay."""
    with running() as service, service.http("etl") as etl, service.http("b") as other:
        etl.post("/v1/queries", json={"queries": [QUERY, {**QUERY, "id": "9"}]}).raise_for_status()
        other.post("/v1/queries", json={"queries": [QUERY]}).raise_for_status()
        assert etl.post("/v1/queries", json={"queries": [QUERY]}).json() == {"kept": 1}
        found = etl.get("/v1/queries").json()["queries"]
        assert [each["client"] for each in found] == ["etl", "b"]
        assert QUERY.items() <= found[0].items()
        assert found[0]["reported_at"] > 1e9
        assert found[0]["error"] is None
        with service.http("etl", 2) as successor:
            successor.post("/v1/heartbeat", json={}).raise_for_status()
            found = successor.get("/v1/queries?client=etl").json()["queries"]
            assert found == []
    with running(lease_s=0.1) as service, service.http("etl") as etl, service.http() as nobody:
        etl.post("/v1/queries", json={"queries": [QUERY]}).raise_for_status()
        eventually(lambda: nobody.get("/v1/queries").json()["queries"], [])


class _ViewStatus(BaseHTTPRequestHandler):
    """Answers as `offsetmgr view serve` at /v1/status."""

    def do_GET(self) -> None:
        body = json.dumps({"topic": "orders-table", "state": "running", "lag": 3}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_views_are_asked_and_one_that_is_away_says_so() -> None:
    """Those of the setting `streams`, in its order."""
    view = ThreadingHTTPServer(("127.0.0.1", 0), _ViewStatus)
    threading.Thread(target=view.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{view.server_port}"
    with running(streams=f"{url}, http://127.0.0.1:9") as service, service.http() as page:
        found = page.get("/v1/streams").json()
    view.shutdown()
    view.server_close()
    there, away = found["views"]
    assert (there["url"], there["topic"], there["lag"]) == (url, "orders-table", 3)
    assert (away["lag"], away["partitions"]) == (None, [])
    assert "the service at http://127.0.0.1:9" in away["error"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("queries", {"queries": [QUERY] * 51}, "queries must be a list of 0 to 50 entries"),
        ("queries", {"queries": [{**QUERY, "state": "lost"}]}, "must be one of ended, failed"),
        ("plan", {"group": "g", "mode": "from-file"}, "mode must be one of"),
        ("plan", {"group": "g", "mode": "to-offset"}, "value is missing; give the value of"),
        ("plan", {"group": "g", "mode": "to-latest", "topics": ["a b"]}, "topics 'a b'"),
        ("plan", {"group": "g", "mode": "to-offset", "value": "x"}, "value 'x' has 'x' where"),
        (
            "reset",
            {"group": "g", "partitions": [{"topic": "a", "partition": 0, "new": 1}]},
            "partitions[0].current is missing",
        ),
    ],
)
def test_bad_input(etl: httpx.Client, path: str, body: dict[str, Any], message: str) -> None:
    """Refused as a whole, with field, value and fix, before Kafka is asked."""
    answer = etl.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_uncommitted_offsets_are_shown_while_the_service_drains() -> None:
    """Without a client's name too, and with the seconds that are left; changes are refused."""
    with memory_process("stalled", "stop_timeout_s=600") as service, service.http() as client:
        client.post("/v1/offsets", json=OFFSETS).raise_for_status()
        before = client.get("/v1/draining").json()
        assert (before["draining"], before["deadline_s"], before["managers"]) == (False, None, 1)
        service.process.send_signal(signal.SIGTERM)
        service.wait_for("draining")
        found = client.get("/v1/draining").json()
        assert found["draining"]
        assert 0 < found["deadline_s"] <= 597
        (left,) = found["partitions"]
        assert (left["group"], left["client"], left["submitted"]["offset"]) == ("g", "test", 7)
        assert left["committed"] is None
        assert client.get("/v1/overview").json()["reasons"][0] == "the service is stopping"
        plan = {"group": "g", "mode": "to-latest"}
        assert client.post("/v1/plan", json=plan).json()["error"]["code"] == "draining"
        assert service.stop() == 143
