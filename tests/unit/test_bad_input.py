"""A public method takes any value, or refuses it by name and touches nothing else."""

from __future__ import annotations

import inspect
from contextlib import suppress
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from offsetmgr import OffsetAndMetadata, OffsetClient
from offsetmgr.client.client import RemoteManagerHandle
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.manager import Factory, ManagerHandle, Submission
from offsetmgr.types import TopicPartition
from tests.unit.core.core import Core, at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_T = TypeVar("_T")

VALUES: Final[Mapping[str, Callable[[], Any]]] = {
    "None": lambda: None,
    "text": lambda: "5",
    "empty": lambda: "",
    "bytes": lambda: b"5",
    "negative": lambda: -1,
    "2**63": lambda: 2**63,
    "huge": lambda: 10**5000,
    "nan": lambda: nan,
    "inf": lambda: inf,
    "fraction": lambda: 0.01,
    "bool": lambda: True,
    "surrogate": lambda: "a\ud800",
    "huge text": lambda: "x" * 70_000,
    "tuple": lambda: ("t", 0),
    "short tuple": lambda: ("t",),
    "text in a tuple": lambda: ("t", "0"),
    "list": lambda: [["t", 0]],
    "unhashable in a tuple": lambda: [("g", [], {})],
    "None in a list": lambda: [None],
    "dict": lambda: {"t": 0},
    "offset of None": lambda: {("t", 0): None},
    "too large an offset": lambda: {("t", 0): 2**63},
    "too much metadata": lambda: {("t", 0): OffsetAndMetadata(1, "x" * 70_000)},
    "bad metadata": lambda: {("t", 0): OffsetAndMetadata(1, "a\ud800")},
    "metadata of bytes": lambda: {("t", 0): Submission(1, b"x")},  # type: ignore[arg-type]
    "bad rewind": lambda: {("t", 0): Submission(1, "", None, "yes")},  # type: ignore[arg-type]
    "generator": lambda: (each for each in [("t", "x")]),
    "object": object,
}

WHERE: Final = ("t", 0)
KEY: Final = ("g", "t", 0)
INTERNAL: Final = {
    Factory: {"topic_ids"},
    ManagerHandle: set(),
    OffsetClient: {"check_process", "report_query", "topic_ids_of"},
    RemoteManagerHandle: set(),
    KafkaCoordinator: {"connect"},
}
"""Methods called by handles, by the Spark functions, and at the interpreter's exit."""

TRUSTED: Final[Mapping[type, set[str]]] = {
    Factory: {"topic_ids"},
    KafkaCoordinator: {"partitions", "offsets", "at_ms", "stable"},
}
"""Parameters that the managers and the service have checked: a commit of a thousand offsets is not
checked twice."""

OF_A_HANDLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "initial_offset": {"timeout": 0},
    "submit": {"offset": 5, "metadata": "", "leader_epoch": None},
    "rewind": {"offset": 5, "metadata": "", "leader_epoch": None},
    "committed_offsets": {},
    "errors": {},
    "stop": {"timeout": 0},
}

ALL: Final[Mapping[type, Mapping[str, Mapping[str, Any]]]] = {
    Factory: {
        "spawn": {"group": "g", "topic": "t", "partition": 1, "owner": "me"},
        "spawn_many": {"group": "g", "partitions": [("t", 2)], "owner": "me"},
        "get": {"key": KEY},
        "managers": {"group": "g"},
        "submit": {"group": "g", "offsets": {WHERE: 5}, "rewind": False, "topic_ids": {}},
        "flush": {"keys": [KEY], "timeout": 0},
        "stop_managers": {"keys": [KEY], "timeout": 0},
        "begin_stop": {"timeout": 0},
        "stop": {"timeout": 0},
    },
    OffsetClient: {
        "spawn": {"group": "g", "topic": "t", "partition": 1},
        "claim": {"group": "h", "partitions": [("t", 2)], "timeout": 0},
        "submit": {
            "group": "g",
            "offsets": {WHERE: 5},
            "rewind": False,
            "sync": False,
            "timeout": 0,
        },
        "flush": {"timeout": 0, "group": "g", "partitions": [WHERE]},
        "stop_managers": {"timeout": 0, "group": "h", "partitions": [WHERE]},
        "committed": {"group": "g", "timeout": 0},
        "topics": {"topics": ["t"], "timeout": 0},
        "offsets_at": {"topics": ["t"], "at_ms": 0, "timeout": 0},
        "stable_ends": {"topics": ["t"], "timeout": 0},
        "logs": {"topics": ["t"], "timeout": 0},
        "topic_names": {"timeout": 0},
        "watch_errors": {"on_error": print},
        "close": {"timeout": 0},
    },
    KafkaCoordinator: {
        "fetch": {"group": "g", "partitions": [WHERE], "timeout_s": 0},
        "commit": {"group": "g", "offsets": {TopicPartition(*WHERE): at(5)}, "timeout_s": 0},
        "topic_ids": {"topics": ["t"], "timeout_s": 0},
        "topic_logs": {"topics": ["t"], "timeout_s": 0, "at_ms": 0, "stable": False},
        "topic_names": {"timeout_s": 0},
        "members": {"group": "g", "timeout_s": 0},
        "check": {"timeout_s": 0},
        "release": {"group": "g"},
        "check_process": {},
        "close": {"timeout": 0},
    },
    ManagerHandle: OF_A_HANDLE,
    RemoteManagerHandle: OF_A_HANDLE,
}
"""The public methods, each with arguments that it takes."""


def cases(*classes: type, but: str = "") -> list[Any]:
    """Return each parameter of each method; with its class, if there are several."""
    return [
        pytest.param(
            *(kind, method, field)[len(classes) == 1 :], id=f"{kind.__name__}.{method}({field})"
        )
        for kind in classes
        for method, arguments in ALL[kind].items()
        for field in sorted(arguments.keys() - TRUSTED.get(kind, set()))
        if method != but
    ]


def give(target: object, method: str, field: str, value: str) -> None:
    """Call it so; it may take the value, or refuse it by name."""
    arguments = {**ALL[type(target)][method], field: VALUES[value]()}
    with suppress(OffsetManagerError):  # such as that the time is over
        taken_or_refused(lambda: getattr(target, method)(**arguments))


def taken_or_refused(call: Callable[[], _T]) -> _T | None:
    """Return what it gives; None where it refuses a value, by name."""
    try:
        return call()
    except InvalidValueError as error:
        refused = error
    assert refused.field
    assert refused.hint
    assert refused.field in str(refused)
    assert len(str(refused)) < 500
    return None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_public_method_or_parameter_is_left_out(kind: type) -> None:
    """A new one needs its line in the table above."""
    found = {
        name: set(inspect.signature(member).parameters) - {"self", "incidents"}
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in INTERNAL[kind]
    }
    found.pop("status", None)
    assert {name: set(arguments) for name, arguments in ALL[kind].items()} == found


@pytest.mark.parametrize(("kind", "method", "field"), cases(Factory, ManagerHandle))
def test_in_process(kind: type, method: str, field: str) -> None:
    """A peer of the group, and another group, go on as if nothing had happened."""
    for value in VALUES:
        core = Core()
        handle, peer, other = core.spawn(0), core.spawn(9), core.spawn(0, "other")
        give(core.factory if kind is Factory else handle, method, field, value)
        if "stop" not in method:
            peer.submit(7)
            other.submit(8)
            core.advance(2)
            assert core.holds(9) == at(7), value
            assert core.holds(0, "other") == at(8), value
            assert all(each.status().last_error is None for each in (peer, other)), value


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffsetClient]:
    nowhere: Path = tmp_path_factory.mktemp("nowhere")
    with OffsetClient(f"unix://{nowhere}/s", "etl") as made:
        yield made
        made.close(timeout=0)


@pytest.mark.parametrize(("method", "field"), cases(OffsetClient, but="close"))
def test_client(client: OffsetClient, method: str, field: str) -> None:
    """The client is as good as before."""
    for value in VALUES:
        give(client, method, field, value)
        client.submit("rest", {("t", 0): 1})


@pytest.mark.parametrize(("method", "field"), cases(RemoteManagerHandle))
def test_handle_of_the_client(client: OffsetClient, method: str, field: str) -> None:
    """None waits forever for an initial offset: here for that of a stopped manager."""
    for value in VALUES:
        handle = client.spawn("handles", "t", 0)
        if value == "None":
            handle.stop(timeout=0)
        give(handle, method, field, value)
        handle.stop(timeout=0)


@pytest.mark.parametrize("closed", [OffsetClient, KafkaCoordinator])
def test_a_refused_close_has_closed_nothing(closed: type, tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/s" if closed is OffsetClient else "127.0.0.1:1"
    target = closed(address)
    for name in VALUES.keys() - {"fraction"}:
        with pytest.raises(InvalidValueError, match=r"^timeout "):
            target.close(timeout=VALUES[name]())
    if isinstance(target, OffsetClient):
        target.submit("g", {WHERE: 1})
    else:
        assert target.fetch("g", [], 1).get(timeout=1)[:3] == ({}, {}, None)
    target.close(timeout=0)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (OffsetClient, "url"),
        (OffsetClient, "name"),
        (KafkaCoordinator, "config"),
        (KafkaCoordinator, "clients"),
        (KafkaCoordinator, "client.id"),
    ],
)
def test_bad_arguments_open_nothing(made: type, field: str) -> None:
    """A bad name, address or setting is refused before anything is started, or by librdkafka."""
    for value in VALUES.values():
        good: dict[str, Any] = {"url": "http://127.0.0.1:1"}
        if made is KafkaCoordinator:
            good = {"config": {"bootstrap.servers": "127.0.0.1:1"}, "clients": 1}
        changed = good["config"] if field == "client.id" else good
        changed[field] = value()
        opened = taken_or_refused(lambda: made(**good))  # noqa: B023 -- called here
        if opened is not None:
            opened.close(timeout=0)


@pytest.mark.parametrize("mailbox", ["committed_offsets", "errors"])
def test_mailboxes_on_both_sides(client: OffsetClient, mailbox: str) -> None:
    """A wait of None is endless: for what never comes from a stopped manager."""
    handles: list[Any] = [Core().spawn(), client.spawn("mailboxes", "t", 0)]
    for handle in handles:
        stream = getattr(handle, mailbox)()
        handle.stop(timeout=0)
        for value in VALUES.values():
            with pytest.raises(OffsetManagerError):
                stream.get(value())


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCoordinator]:
    with KafkaCoordinator("127.0.0.1:1", clients=1) as made:
        yield made
        made.close(timeout=0)


@pytest.mark.parametrize(("method", "field"), cases(KafkaCoordinator, but="close"))
def test_kafka(kafka: KafkaCoordinator, method: str, field: str) -> None:
    """Nothing of it reaches librdkafka, which aborts the process on some values."""
    for value in VALUES:
        give(kafka, method, field, value)


@pytest.mark.parametrize("field", ["coordinator", "settings", "system", "observer", "rng"])
def test_making_a_factory(field: str) -> None:
    """The parts of a factory are checked when it is made."""
    core = Core()
    good: dict[str, Any] = {"coordinator": core.coordinator, "system": core.system}
    for name, value in VALUES.items():
        if name == "None" and field != "coordinator":
            Factory(**{**good, "system": core.system})
        else:
            with pytest.raises(InvalidValueError, match=rf"^{field} "):
                Factory(**{**good, field: value()})
