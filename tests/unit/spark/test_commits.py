"""The arguments of commit_offsets."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError, ManagerStoppedError
from offsetmgr.spark import commit_offsets
from offsetmgr.types import ManagerKey


class Session:
    """As much of a session as is looked at before it is used."""

    streams = None


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("spark", {"spark": "local[2]"}),
        ("client", {"client": "http://127.0.0.1:8741"}),
        ("group", {"group": None}),
        ("group", {"group": "a\nb"}),
        ("groups", {"groups": {"orders": "etl"}}),
        ("query_name", {"query_name": ""}),
        ("query_name", {"query_name": 5}),
    ],
)
def test_wrong_arguments_are_named(field: str, changes: dict[str, Any]) -> None:
    """A wrong argument is refused by its name, before anything is attached."""
    with OffsetClient("http://127.0.0.1:9", name="driver") as client:
        arguments: dict[str, Any] = {"spark": Session(), "client": client, "group": "etl"}
        arguments |= changes
        with pytest.raises(InvalidValueError) as caught:
            commit_offsets(arguments.pop("spark"), arguments.pop("client"), **arguments)
    assert caught.value.field == field


PROGRESS = {
    "id": "q1",
    "runId": "r1",
    "name": None,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 3,
    "sources": [{"description": "KafkaV2[Subscribe[t]]", "endOffset": {"t": {"0": 50}}}],
}


@pytest.mark.parametrize("active", [True, False])
def test_a_flush_names_what_the_client_did_not_take(*, active: bool) -> None:
    """A client that is closed inside the block, as where the two are nested the wrong way round."""
    session, query = mock.Mock(), mock.Mock(id="q1", runId="r1", isActive=active)
    session.streams.active = []
    query.name, query.lastProgress = None, PROGRESS
    client = OffsetClient("http://127.0.0.1:9", name="driver")
    with commit_offsets(session, client, group="etl") as commits:
        client.close(0.1)
        result = commits.flush(query, 10.0)
    left = result.uncommitted[ManagerKey("etl", "t", 0)]
    assert left.offset.offset == 50
    assert isinstance(left.error, ManagerStoppedError)
