"""Answers of a server that is not our service, or of another version: an error in one line."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from offsetmgr.admin import service
from offsetmgr.admin.service import LiveManager, ServiceReader, view_status
from offsetmgr.errors import ServiceError, ServiceUnavailableError
from offsetmgr.lag.measure import GroupLag
from offsetmgr.lag.report import lag_report
from offsetmgr.types import TopicPartition
from tests.answering import Answering, answering
from tests.commands import run_alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.deadlines import Deadline

VERSION: Final = "is it of another version than this client?"
JSON: Final = "did not answer in JSON; is the url right?"


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


def group_row(name: str) -> dict[str, Any]:
    """Return a group without partitions, as a service answers it."""
    row: dict[str, Any] = lag_report([GroupLag(name, None, ())])["groups"][0]
    return row


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{}", VERSION),
        (b'{"groups": 5, "managers": 5}', VERSION),
        (b'{"groups": [{}], "managers": [{}], "errors": []}', VERSION),
        (b'{"groups": [5], "managers": [5], "errors": []}', VERSION),
        (b"[]", "answered 200"),
        (b'{"groups": "\\ud800"}', JSON),
        (b"9" * 5_000, JSON),
        (b"[" * 100_000, JSON),
        (b"event: failed\ndata: {}\n\n", VERSION),
        (b"event: failed\ndata: 5\n\n", VERSION),
        (b"event: failed\ndata: " + b"9" * 5_000 + b"\n\n", JSON),
    ],
)
def test_a_strange_answer_is_one_line(server: Answering, body: bytes, error: str) -> None:
    """Every command that asks a service ends so."""
    server.body = body
    commands = [["groups"], ["lag"], ["lag", "etl"], ["describe", "etl"], ["top"], ["errors"]]
    if body.startswith(b"event"):
        commands = [["errors", "--follow"], ["errors", "--follow", "--json"]]
    for words in commands:
        ran = run_alone(*words, "--service", server.url)
        assert error in ran.output, words
        assert ran.status in {1, 3}


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("describe", {"lag_seconds": "x"}),
        ("lag", {"partitions": [{}]}),
        ("describe", {"members": [5]}),
        ("lag", {"lag": {"a": 1}}),
        ("top", {"lag": "x"}),
    ],
)
def test_a_field_of_another_type_is_one_line(
    server: Answering, command: str, fields: dict[str, object]
) -> None:
    """A traceback ended the command."""
    group = group_row("etl") | {"state": "Stable", "type": "classic", "lag": 5, **fields}
    server.body = json.dumps({"groups": [group], "errors": []}).encode()
    ran = run_alone(command, "etl", "--service", server.url)
    assert ran.status == 1
    assert VERSION in ran.err


def test_names_of_another_type_are_text(server: Answering) -> None:
    """The doctor sorts and quotes them."""
    manager = {"group": 1, "topic": None, "partition": "3", "client": 7, "last_error": None}
    ready = {"ready": True, "draining": False, "kafka": "ok", "fenced_groups": 0}
    followed = {"checkpoint": 5, "problem": "gone", "query_id": "q"}
    lists = {"managers": [manager], "next": None, "queries": [], "followed": [followed]}
    server.body = json.dumps(ready | lists).encode()
    facts = ServiceReader(server.url).facts()
    assert facts.managers == [LiveManager("1", TopicPartition("None", 3), "7", "")]
    assert facts.failing_checkpoints == {"5": "gone"}


def test_further_fields_of_a_newer_view_are_left_out(server: Answering) -> None:
    server.body = b'{"topic": "t", "state": "running", "partitions": [], "newer": 1}'
    found = view_status(server.url, 5.0)
    assert (found["url"], found["topic"], found["error"]) == (server.url, "t", None)
    assert "newer" not in found


def test_a_list_without_an_end_is_an_error(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages share one time-out: a service may answer the same page, or a next one, forever."""
    monkeypatch.setattr(service, "_ANSWER_S", 0.0)
    server.body = b'{"managers": [], "next": "g/t/0"}'
    with pytest.raises(ServiceUnavailableError):
        ServiceReader(server.url, 0.3).managers()


def test_all_that_the_doctor_asks_a_service_has_one_time_limit(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that answers slowly had it three times."""
    limits: list[Deadline] = []

    def ask(_: ServiceReader, *given: object, deadline: Deadline, **more: object) -> Any:
        del given, more
        limits.append(deadline)
        return {"managers": [], "next": None, "queries": [], "followed": []} | dict.fromkeys(
            ("ready", "draining", "kafka", "fenced_groups"), 0
        )

    monkeypatch.setattr(ServiceReader, "ask", ask)
    ServiceReader(server.url).facts()
    assert len(limits) == 3
    assert len(set(limits)) == 1


@pytest.mark.parametrize("command", [["lag"], ["top", "--interval", "0.5"]])
def test_a_group_that_a_service_refuses_hides_no_other(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups that are named are asked for, in parts; a refusal of any request is not repeated.

    All watched groups of a service were read to show one of them.
    """
    asked: list[int] = []
    refused, status = "secret", HTTPStatus.FORBIDDEN

    def ask(_: ServiceReader, method: str, target: str, **more: object) -> Any:
        del method, more
        names = parse_qs(urlsplit(target).query)["group"]
        asked.append(len(names))
        if refused in names:
            raise ServiceError(status, "it is not yours", "forbidden")
        return {"groups": [group_row(name) for name in names], "next": None}

    monkeypatch.setattr(ServiceReader, "ask", ask)
    names = [f"g{number}" for number in range(120)]
    names.insert(7, refused)
    ran = run_alone(*command, *names, "--json", "--service", "http://127.0.0.1:1")
    found = {each["name"]: each["error"] for each in ran.json()["groups"]}
    assert (ran.status, list(found)) == (3, names)
    assert [name for name, error in found.items() if error] == [refused]
    assert max(asked) <= 50

    refused, status = "g0", HTTPStatus.UNAUTHORIZED
    asked.clear()
    ran = run_alone(*command, *names, "--json", "--service", "http://127.0.0.1:1")
    assert (ran.status, len(asked)) == (1, 1)


def test_a_missing_group_is_named_with_csv(server: Answering) -> None:
    """It has no row there."""
    server.body = json.dumps({"groups": [group_row("etl") | {"state": "Dead"}]}).encode()
    for command in ("lag", "describe"):
        ran = run_alone(command, "etl", "--csv", "--service", server.url)
        assert (ran.status, ran.err) == (1, "etl: the group does not exist\n")
