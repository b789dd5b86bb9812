"""The page: its files, and its requests to the service itself, over real HTTP."""

from __future__ import annotations

import json
from collections import UserDict
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import KafkaRequestError, error_info
from offsetmgr.kafka.cluster import GroupListing
from offsetmgr.lag.measure import GroupLag
from offsetmgr.streams.graph import group_table
from tests.answering import answering
from tests.commands import run_alone
from tests.service.support import Running, running
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture(scope="module")
def browser() -> Iterator[httpx.Client]:
    with running() as service, service.http() as client:
        yield client


def test_a_browser_may_do_no_more_with_an_answer_than_the_page_needs(browser: httpx.Client) -> None:
    """No other site's code, frames or scripts made of text; nothing is guessed about a file."""
    for path in ("/", "/page/main.js", "/livez", "/metrics", "/v1/managers", "/none"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["cache-control"] == "no-store"  # an upgraded service has other scripts
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_a_link_of_another_site_opens_the_page_but_not_its_data(browser: httpx.Client) -> None:
    """A runbook may link to the page; another site's script still learns nothing."""
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    assert browser.get("/", headers=foreign).status_code == 200
    framed = foreign | {"sec-fetch-dest": "iframe"}
    for path, headers in (("/", framed), ("/page/main.js", foreign), ("/v1/managers", foreign)):
        assert browser.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/page/", "/page/../http.py", "/page/%2e%2e/http.py", "/page/x"])
def test_nothing_but_the_page_is_served(browser: httpx.Client, path: str) -> None:
    """Only the files of the page have an address."""
    assert browser.get(path).status_code == 404


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


def test_a_group_shows_a_partition_without_a_commit(
    service: Running, etl: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: a group is in trouble, and its own view shows none.  Kafka has no offset of it."""
    monkeypatch.setattr(service.service.assembly.watch, "reader", lambda: None)
    monkeypatch.setattr("offsetmgr.service.watch.measure", lambda *_: [GroupLag("g", None, ())])
    service.coordinator.inject("commit", *[Refuse(29)] * 1_000)
    etl.post("/v1/offsets", json={**OFFSETS, "wait": True}).raise_for_status()
    (row,) = etl.get("/v1/lag?group=g").json()["groups"][0]["partitions"]
    assert (row["topic"], row["committed"], row["submitted"]) == ("orders", None, 7)
    assert row["error"]["code"] == "TOPIC_AUTHORIZATION_FAILED"


def test_a_group_that_is_deleted_during_an_answer_hides_no_other(service: Running) -> None:
    """The kind: what the watch replaces is read twice for one answer."""
    watch = service.service.assembly.watch

    class Listing(UserDict[str, GroupListing]):
        def __iter__(self) -> Iterator[str]:
            watch.listing = {}  # by the next round of the watch
            return super().__iter__()

    watch.listing = Listing(g=GroupListing("g", "Empty", "classic"))
    with service.http() as page:
        found, row = overview(page, "g")
    assert row["state"] == "Empty"
    assert found["watch"]["hint"].startswith("the lag of 1 of these groups")


def test_queries_are_shown_until_the_lease_of_their_client_ends() -> None:
    """A report replaces the one before; another client's stay."""
    with running() as service, service.http("etl") as etl, service.http("b") as other:
        etl.post("/v1/queries", json={"queries": [QUERY, {**QUERY, "id": "9"}]}).raise_for_status()
        other.post("/v1/queries", json={"queries": [QUERY]}).raise_for_status()
        assert etl.post("/v1/queries", json={"queries": [QUERY]}).json()["kept"] == 1
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


def test_a_wrong_view_hides_no_other() -> None:
    """Views are listed in the order of the setting; one that is away or another server is an error.

    The command shows the same rows.
    """
    view = {"topic": "orders-table", "state": "running", "lag": 3, "partitions": []}
    odd = (
        (404, b'{"error": "Not Found"}'),
        (500, b'{"error": {"message": 7, "code": []}}'),
        (200, b"[]"),
        (200, b'"a text"'),
        (200, b'{"topic": "t"}'),
        (200, b'{"partitions": []}'),
        (200, b'{"topic": "\\ud800", "partitions": []}'),
        (200, b"9" * 5_000),
        (200, b'{"topic": [], "partitions": []}'),
        (200, b'{"topic": "t", "partitions": [1]}'),
        (200, b'{"topic": "t", "partitions": [{"partition": 0}]}'),
        (200, b'{"partitions": ' + b"[" * 100_000),
        (200, b""),
    )
    with ExitStack() as stack:
        addresses = [stack.enter_context(answering(body, code)).url for code, body in odd]
        good = stack.enter_context(answering(json.dumps(view).encode())).url
        addresses += ["http://127.0.0.1:9", good]
        service = stack.enter_context(running(streams=",".join(addresses)))
        page = stack.enter_context(service.http())
        views = page.get("/v1/streams").json()["views"]
        options = [word for address in addresses for word in ("--view", address)]
        ran = run_alone("streams", "status", "--json", *options)
    assert [row["url"] for row in views] == addresses
    *bad, well = views
    assert {"url": good, "error": None, **view}.items() <= well.items()
    for row in bad:
        assert (row["lag"], row["partitions"]) == (None, [])
        assert f"the service at {row['url']}" in row["error"] or row["error"] == "7"
    assert ran.status == 1
    assert ran.json()["views"] == views


def test_a_processor_stays_while_its_table_cannot_be_read() -> None:
    """The kind: what Kafka does not answer for is shown as absent.  A deleted table is."""
    group, table = "orders-app", group_table("orders-app")
    found = [[0], *(KafkaRequestError("a look", error_info(code)) for code in (-185, 3))]
    answers = iter([{table: each} for each in found])
    reader = {"partitions_of": lambda _: next(answers), "log_ranges": lambda _: {}}
    with running() as service, service.http("page") as page:
        watch = service.service.assembly.watch
        watch._reader = cast("Any", SimpleNamespace(**reader, close=lambda: None))
        view = {group: GroupLag(group, None, ())}
        watch._watcher = cast("Any", SimpleNamespace(view=view, fail=lambda _: None))
        rows = [page.get("/v1/streams").json()["processors"] for _ in found]
    assert [[row["name"] for row in each] for each in rows] == [[group], [group], []]
    assert rows[1][0]["table"] == {"topic": table, "messages": {}}


def test_bad_input(etl: httpx.Client) -> None:
    """Refused as a whole, with field, value and fix, before Kafka is asked."""
    plan = {"group": "g", "mode": "to-offset"}
    row = {"topic": "a", "partition": 0, "new": 1}
    for path, body, message in (
        ("queries", {"queries": [QUERY] * 51}, "queries must be a list of 0 to 50 entries"),
        ("plan", plan | {"mode": "from-file"}, "mode must be one of"),
        ("plan", plan, "value is missing; give the value of"),
        ("plan", plan | {"mode": "to-latest", "topics": ["a b"]}, "topics 'a b'"),
        ("plan", plan | {"value": "x"}, "value 'x' has 'x' where"),
        ("reset", {"group": "g", "partitions": [row]}, "partitions[0].current is missing"),
    ):
        answer = etl.post(f"/v1/{path}", json=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


def test_a_bad_query_hides_no_other_query_of_its_client(
    etl: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cause is in the answer, and once in the log, however often it is reported."""
    causes = {
        "queries[0].state must be one of": {**QUERY, "state": "lost"},
        "queries[1].batch_id must be a whole number from 0": {**QUERY, "batch_id": -1},
        "queries[2].error must be text of": {**QUERY, "error": "x" * 4_001},
        "queries[3].group 'a\\n' holds a control": {**QUERY, "groups": ["a\n"]},
        "queries[4].later 1 is an unknown field": {**QUERY, "later": 1},
        "queries[5].run_id is missing": {"id": "1", "state": "running"},
        "queries[6] must be a JSON object": None,
    }
    for _ in range(2):
        answer = etl.post("/v1/queries", json={"queries": [*causes.values(), QUERY]}).json()
        assert answer["kept"] == 1
        for cause, each in zip(causes, answer["refused"], strict=True):
            assert each["message"].startswith(cause)
    assert [each["id"] for each in etl.get("/v1/queries").json()["queries"]] == ["1"]
    logged = [each for each in caplog.records if "query_refused" in each.getMessage()]
    assert len(logged) == len(causes)
