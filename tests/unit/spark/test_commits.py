"""The arguments of commit_offsets."""

from __future__ import annotations

from typing import Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark import commit_offsets


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
