"""Refusals of the service: their answers, and that all else continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.service.core import OffsetService
from offsetmgr.types import TopicPartition
from tests.service.support import Running, connected, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    import httpx


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """One service for all tests: a refused request changes nothing."""
    with running() as here:
        yield here


GOOD = {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 7}], "wait": True}


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which carries text for people and the instance's id."""
    error = answer.json()["error"]
    assert error["message"]
    assert answer.headers["offsetmgr-instance"]
    return answer.status_code, error["code"]


def test_nothing_of_a_refused_request_is_applied(service: Running) -> None:
    """Nine hundred and ninety-nine good offsets do not excuse a bad one."""
    offsets = [{"topic": "t", "partition": number, "offset": 1} for number in range(1000)]
    offsets[999]["offset"] = -1
    with service.http("wrong") as client:
        answer = client.post("/v1/offsets", json={"group": "wrong", "offsets": offsets})
        assert code_of(answer) == (400, "invalid_value")
        assert answer.json()["error"]["field"] == "offsets[999].offset"
        assert client.get("/v1/managers?group=wrong").json()["managers"] == []
        nothing: dict[str, object] = {"committed": [], "uncommitted": [], "topic_ids": {}}
        assert client.post("/v1/flush", json={}).json() == nothing


@pytest.mark.parametrize("size", [8 * 1024 * 1024 + 1, 10_000_000])
def test_a_large_body_is_refused_and_others_go_on(
    service: Running, etl: httpx.Client, size: int
) -> None:
    """With its length said beforehand or not; the connections of others know nothing of it."""
    json = {"content-type": "application/json"}
    with service.http("greedy") as greedy:
        answer = greedy.post("/v1/offsets", content=b" " * size, headers=json)
        assert code_of(answer) == (413, "body_too_large")
        chunks = iter([b" " * 65_536] * (size // 65_536 + 1))
        answer = greedy.post("/v1/offsets", content=chunks, headers=json)
        assert code_of(answer) == (413, "body_too_large")
    assert etl.post("/v1/offsets", json=GOOD).json()["accepted"] == 1


def test_a_foreign_host_is_refused(service: Running) -> None:
    """A web page that resolves its own name to this machine gets nothing, not even health.

    The names of loopback are taken with any port, as a forwarded one differs.
    """
    with service.http() as client:
        for host in ("evil.example:8741", "10.0.0.1", "localhost.evil.example", ""):
            for path in ("/livez", "/v1/managers"):
                answer = client.get(path, headers={"Host": host})
                assert code_of(answer) == (421, "foreign_host")
        for host in ("localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:8741"):
            assert client.get("/livez", headers={"Host": host}).status_code == 200


def test_a_web_page_of_another_site_is_refused(service: Running) -> None:
    """Reads too: its event streams would take the places of all others."""
    with service.http() as client:
        for name, value in (
            ("Origin", "https://evil.example"),
            ("Origin", "null"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Site", "same-site"),
        ):
            for path in ("/v1/events", "/v1/managers", "/metrics"):
                answer = client.get(path, headers={name: value})
                assert code_of(answer) == (403, "foreign_origin")
        assert service.service.assembly.hub.reader_count == 0
        ours = {"Origin": service.address, "Sec-Fetch-Site": "same-origin"}
        assert client.get("/v1/managers", headers=ours).status_code == 200


def test_a_request_for_another_process_is_refused(service: Running) -> None:
    """It may be older than what that one was given last."""
    body = GOOD | {"group": "another"}
    with service.http() as client:
        ours = client.get("/livez").headers["Offsetmgr-Instance"]
        for meant_for, status in (("earlier", 412), (ours, 200)):
            headers = {"Offsetmgr-Client": "x", "Offsetmgr-Instance": meant_for}
            answer = client.post("/v1/offsets", json=body, headers=headers)
            assert answer.status_code == status
        answer = client.get("/v1/managers", headers={"Offsetmgr-Instance": "earlier"})
        assert code_of(answer) == (412, "other_instance")


def test_a_change_that_a_web_page_could_forge_is_refused(service: Running) -> None:
    """A page can send neither the header of a client nor JSON to another site."""
    with service.http() as client, service.http("etl") as etl:
        for path in ("/v1/managers", "/v1/offsets", "/v1/flush", "/v1/stop"):
            answer = client.post(path, json={})
            assert code_of(answer) == (400, "invalid_value")
            assert answer.json()["error"]["field"] == "Offsetmgr-Client"
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                answer = etl.post(path, content=b"{}", headers={"content-type": kind})
                assert code_of(answer) == (415, "unsupported_media_type")


def test_bad_identities_are_refused(service: Running) -> None:
    """The error names the header."""
    names = ["", "a%0Ab", "%ff", "x" * 256, "a%20"]
    incarnations = ["-1", "1.5", "9" * 30, "²"]
    given = [("Offsetmgr-Client", name, "0") for name in names]
    given += [("Offsetmgr-Incarnation", "a", each) for each in incarnations]
    with service.http() as client:
        for wrong, name, incarnation in given:
            headers = {b"Offsetmgr-Client": name, b"Offsetmgr-Incarnation": incarnation}
            raw = [(key, value.encode()) for key, value in headers.items()]
            answer = client.post("/v1/heartbeat", json={}, headers=raw)
            assert code_of(answer) == (400, "invalid_value")
            assert answer.json()["error"]["field"] == wrong


@pytest.mark.parametrize("name", ["Offsetmgr-Client", "Offsetmgr-Instance", "Authorization"])
def test_a_header_that_is_given_twice_is_refused(service: Running, name: str) -> None:
    """The kind: the first one counts, and what has checked the other before knows nothing of it."""
    with service.http() as client:
        for path in ("/v1/managers", "/livez"):
            answer = client.get(path, headers=[(name, "a"), (name, "b")])
            assert code_of(answer) == (400, "invalid_value")
            assert f"{name.lower()} is given 2 times" in answer.text
        assert client.get("/livez", headers=[("Accept", "a"), ("Accept", "b")]).status_code == 200


def test_two_lengths_of_a_body_are_refused(service: Running) -> None:
    """The kind: a proxy goes by the other one, and passes on a hidden request.

    What comes behind is not answered: it would be taken for the answer to somebody else.
    """
    hidden = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /v1/heartbeat HTTP/1.1\r\nHost: localhost\r\nOffsetmgr-Client: x\r\n"
    lengths = b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(service) as raw:
        raw.sendall(head + lengths + b"2\r\n{}\r\n0\r\n\r\n" + hidden)
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"send one of the two" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_an_internal_failure_is_answered_in_json(
    etl: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes on."""

    def fails(*_: object) -> NoReturn:
        raise RuntimeError

    monkeypatch.setattr(OffsetService, "under_way", fails)
    for _ in range(2):
        assert code_of(etl.post("/v1/heartbeat", json={})) == (500, "internal")


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/v1/offsets", {}, "query.group"),
        ("/v1/offsets", {"group": ["a", "b"]}, "query.group"),
        ("/v1/topics", {}, "query.topic"),
        ("/v1/topics", {"topic": "a/b"}, "query.topic"),
        ("/v1/topics", {"topic": "t", "at_ms": "noon"}, "query.at_ms"),
        ("/v1/topics", {"topic": "t", "stable": "yes"}, "query.stable"),
        ("/v1/topic-names", {"pattern": "t.*"}, "query.pattern"),
        ("/v1/initial-offsets", {"group": "g", "wait_s": "61"}, "query.wait_s"),
        ("/v1/initial-offsets", {"group": "g", "wait_s": "nan"}, "query.wait_s"),
        ("/v1/managers", {"limit": "0"}, "query.limit"),
        ("/v1/managers", {"limit": "10001"}, "query.limit"),
        ("/v1/managers", {"after": "W10"}, "query.after"),
        ("/v1/managers", {"after": "g/t/ 1"}, "query.after"),
        ("/v1/managers", {"after": "g/t/1_0"}, "query.after"),
        ("/v1/managers", {"group": ["a", "b"]}, "query.group"),
        ("/v1/events", {"client": "x"}, "query.client"),
        ("/v1/managers?group=%FF", None, "url"),
        ("/v3/kafka/default/consumer/a?consumer=b", None, "query.consumer"),
    ],
)
def test_bad_queries_are_refused(
    etl: httpx.Client, path: str, query: dict[str, Any] | None, field: str
) -> None:
    """The error names the parameter."""
    answer = etl.get(path, params=query)
    assert code_of(answer) == (400, "invalid_value")
    assert answer.json()["error"]["field"] == field


def test_an_unknown_path_is_not_found(etl: httpx.Client) -> None:
    """404 and 405 are JSON too, and point at the document."""
    assert code_of(etl.get("/v2/offsets")) == (404, "not_found")
    assert code_of(etl.get("/v1/offsets/")) == (404, "not_found")
    answer = etl.delete("/v1/offsets")
    assert code_of(answer) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= {each.strip() for each in answer.headers["allow"].split(",")}


def test_a_stream_has_no_head_alone(service: Running, etl: httpx.Client) -> None:
    """It would take a reader's place and never end; other reads have one."""
    answer = etl.head("/v1/events")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert service.service.assembly.hub.reader_count == 0
    assert etl.head("/v1/managers").status_code == 200


def test_a_draining_service_takes_no_work_and_says_so() -> None:
    """503 for work, unready, and still alive while what it holds is committed."""
    with running(stop_timeout_s=30) as service, service.http("etl") as etl:
        etl.post("/v1/offsets", json=GOOD).raise_for_status()
        service.coordinator.pause()
        etl.post("/v1/offsets", json=GOOD | {"wait": False, "offsets": [
            {"topic": "t", "partition": 0, "offset": 8}]}).raise_for_status()  # fmt: skip
        service.stop()
        until(lambda: etl.get("/readyz").json()["draining"])
        assert etl.get("/readyz").status_code == 503
        assert etl.get("/livez").status_code == 200
        assert code_of(etl.post("/v1/offsets", json=GOOD)) == (503, "draining")
        assert code_of(etl.get("/v1/events")) == (503, "draining")
        service.coordinator.resume()
    assert service.status == 0
    held = service.coordinator.broker.committed("g")[TopicPartition("t", 0)]
    assert held.offset == 8
