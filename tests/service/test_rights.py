"""Rights: every field of every operation, and nothing of other groups and topics in any answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import KafkaRequestError, error_info
from offsetmgr.kafka.cluster import GroupListing
from offsetmgr.service.access import EVERYTHING, Names, Requester, Rights, matches
from tests.service.identities import as_identity, identities, refusal
from tests.service.support import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import httpx

    from offsetmgr.service.openapi import Operation

FOREIGN: Final = "payments-secret"
"""A legal name of a group, a topic and a client, none of which the identity ``etl`` may use."""

NOT_NAMES: Final = {
    # Fields of text that name neither a group nor a topic; what they select is filtered.
    *("after", "client", "cluster", "since"),
    *("offsets[].metadata", "partitions[].metadata"),
    *(f"queries[].{name}" for name in ("id", "run_id", "name", "time", "error", "groups[]")),
}
EXAMPLES: Final[dict[str, Any]] = {
    "mode": "from-group", "value": "orders-x", "consumer": "orders-etl", "groups": "orders-etl",
    "group": "orders-etl", "topic": "orders", "topics": "orders:0", "cluster": "default",
    "client": "job", "state": "running", "since": "1h",
}  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(**identities(tmp_path_factory.mktemp("tokens"))) as service:
        yield service


def texts_of(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all free texts in an object, such as ``offsets[].topic``."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    for each in schema.get("anyOf", ()):
        yield from texts_of(each, defs, path)
    if schema.get("type") == "string" and "enum" not in schema:
        yield path
    if schema.get("type") == "array":
        yield from texts_of(schema["items"], defs, f"{path}[]")
    for name, kind in schema.get("properties", {}).items():
        yield from texts_of(kind, defs, f"{path}.{name}".removeprefix("."))


def example(schema: Mapping[str, Any], defs: Mapping[str, Any], name: str = "") -> Any:
    """Return a valid value with all fields."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    schema = schema.get("anyOf", [schema])[0]
    kind = schema.get("type", "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {key: example(each, defs, key) for key, each in properties.items()}
    if kind == "array":
        return [example(schema["items"], defs, name)]
    text = EXAMPLES.get(name) or schema.get("enum", ["x"])[0]
    return {"string": text, "boolean": False}.get(kind, schema.get("minimum", 1))


def with_foreign(value: Any, path: str) -> Any:
    """Return ``value`` with FOREIGN at ``path``."""
    head, _, rest = path.partition(".")
    name = head.removesuffix("[]")
    if not name:
        return FOREIGN
    inner = value[name]
    if head.endswith("[]"):
        changed: Any = [with_foreign(inner[0], rest)]
    else:
        changed = with_foreign(inner, rest)
    return {**value, name: changed}


def send(client: httpx.Client, operation: Operation, asked: dict[str, Any]) -> httpx.Response:
    path = operation.path.format(**asked)
    if operation.method == "POST":
        return client.post(path, json=asked)
    query = {name: value for name, value in asked.items() if f"{{{name}}}" not in operation.path}
    headers = {"Last-Event-ID": "0"} if query.pop("Last-Event-ID", None) is not None else {}
    return client.get(path, params=query, headers=headers)


def test_a_foreign_name_is_refused_in_every_field_of_every_operation(secured: Running) -> None:
    """Also in fields and operations that come later: each text is a name, or is listed above.

    ``value`` is the name of a group in one mode of a reset.
    """
    tried = set()
    with as_identity(secured, "etl") as etl:
        for operation in secured.service.assembly.app.operations:
            if operation.request is None:
                continue
            schema = msgspec.json.schema(operation.request)
            valid = example(schema, schema["$defs"])
            for path in sorted(set(texts_of(schema, schema["$defs"])) - NOT_NAMES):
                answer = send(etl, operation, with_foreign(valid, path))
                place = f"{operation.method} {operation.path} {path}: {answer.text}"
                assert refusal(answer) == (403, "forbidden"), place
                assert "identity 'etl'" in answer.text
                assert "identities.etl." in answer.text
                tried.add(f"{operation.path} {path}")
    assert {"/v1/offsets offsets[].topic", "/v1/lag group[]", "/v1/plan value"} <= tried
    assert "/v1/plan topics[]" in tried
    assert not secured.service.assembly.factory.managers()


def test_an_operation_declares_the_names_that_it_needs(secured: Running) -> None:
    """Without a declaration it could not be made; nobody has a right unless it was given."""
    for operation in secured.service.assembly.app.operations:
        if operation.request is None:
            assert operation.needs(None) in {Names(), EVERYTHING}
    nobody = Requester("somebody")
    assert not nobody.sees("g")
    assert not nobody.sees(None, "t")
    assert nobody.rights.read_only


def test_no_answer_names_foreign_groups_topics_or_clients(secured: Running) -> None:
    """Groups, topics and clients of others, and errors about them."""
    service = secured.service.assembly
    partitions = [{"topic": topic, "partition": 0, "offset": 1} for topic in ("orders", FOREIGN)]
    for each in partitions:
        secured.coordinator.broker.create_topic(str(each["topic"]), 1)
    query = {"id": "i", "run_id": "r", "state": "failed", "error": FOREIGN}
    with as_identity(secured, "admin", FOREIGN) as admin, as_identity(secured, "etl") as etl:
        for group in ("orders-etl", FOREIGN):
            body = {"group": group, "offsets": partitions, "wait": True}
            admin.post("/v1/offsets", json=body).raise_for_status()
        secured.coordinator.inject("commit", Refuse(25, detail=FOREIGN), group=FOREIGN)
        newer = {"group": FOREIGN, "offsets": [{**partitions[1], "offset": 2}], "wait": True}
        admin.post("/v1/offsets", json={**newer, "timeout_s": 1}).raise_for_status()
        reported = [query, {**query, "groups": [FOREIGN]}, {**query, "groups": ["orders-a"]}]
        admin.post("/v1/queries", json={"queries": reported[:2]}).raise_for_status()
        # A query of a foreign group hides no other of its client.
        mine = [{**query, "groups": [FOREIGN]}, {**query, "error": "mine"}]
        answer = etl.post("/v1/queries", json={"queries": mine}).json()
        assert (answer["kept"], [each["code"] for each in answer["refused"]]) == (1, ["forbidden"])
        names = "orders-etl", FOREIGN
        service.watch.listing = {n: GroupListing(n, "Empty", "classic") for n in names}
        service.watch.error = KafkaRequestError(FOREIGN, error_info(30))
        for path in (
            *("/v1/overview", "/v1/draining", "/v1/queries", "/v1/managers", "/v1/topic-names"),
            *("/v1/offsets?group=orders-etl", "/v1/initial-offsets?group=orders-etl"),
            "/v1/starting-offsets?group=orders-etl",
            *("/v1/watched", "/v3/kafka/default/consumer", "/v3/kafka/default/topic", "/v3/kafka"),
        ):
            answer = etl.get(path)
            assert answer.status_code == 200, path
            own_managers = answer.text.replace(f"admin/{FOREIGN}", "")  # of a group that it may use
            assert FOREIGN not in own_managers, path
        del etl.headers["Offsetmgr-Client"]  # or it would be told of its own managers alone
        with etl.stream("GET", "/v1/events") as stream:
            for group, topic in (
                (FOREIGN, "orders"),
                ("orders-etl", FOREIGN),
                ("orders-etl", "orders"),
            ):
                body = {"group": group, "offsets": [{"topic": topic, "partition": 0, "offset": 9}]}
                admin.post("/v1/offsets", json={**body, "wait": True}).raise_for_status()
            lines = stream.iter_lines()
            told = next(lines)
            while '"offset":9' not in told:
                told += next(lines)
        assert FOREIGN not in told
        assert [each["error"] for each in etl.get("/v1/queries").json()["queries"]] == ["mine"]
        assert len(admin.get("/v1/queries").json()["queries"]) == 3
        assert FOREIGN in admin.get("/v1/overview").json()["groups_error"]["message"]


def test_the_overview_does_not_show_the_pattern_of_watched_groups(tmp_path: Path) -> None:
    """It names groups."""
    with (
        running(**identities(tmp_path), watch__groups=FOREIGN) as service,
        as_identity(service, "etl") as etl,
        as_identity(service, "admin") as admin,
    ):
        assert FOREIGN not in etl.get("/v1/overview").text
        assert admin.get("/v1/overview").json()["watch"]["groups"] == FOREIGN


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders-*", "orders-", True),
        ("orders-*", "eu-orders-a", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("order?", "order?", True),
        ("[a-z]*", "orders", False),
        ("[a-z]*", "[a-z]1", True),
        ("[!a]x", "bx", False),
        ("a*" * 60 + "b", "a" * 255, False),
    ],
)
def test_only_the_asterisk_is_special_in_a_pattern(pattern: str, name: str, *, fits: bool) -> None:
    """A name with ``?`` or ``[`` in it is written as it is, and gives no right to other names."""
    assert matches(pattern, name) is fits
    assert Requester("i", Rights((pattern,))).sees(name) is fits
