"""Naming the group of a topic."""

from __future__ import annotations

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.groups import check_groups


def test_one_group_takes_every_topic() -> None:
    """With one group, each topic belongs to it."""
    assert check_groups("etl", None).group_of("anything") == "etl"


def test_a_topic_without_a_group_is_left_alone() -> None:
    """With a mapping, topics that it does not name have no group."""
    groups = check_groups(None, {"orders": "etl"})
    assert groups.group_of("orders") == "etl"
    assert groups.group_of("payments") is None


@pytest.mark.parametrize(
    ("group", "groups", "field"),
    [
        (None, None, "group"),
        ("etl", {"orders": "etl"}, "groups"),
        ("", None, "group"),
        (5, None, "group"),
        (None, {}, "groups"),
        (None, ["orders"], "groups"),
        (None, {"no topic": "etl"}, "groups topic"),
        (None, {"orders": "a\nb"}, "groups['orders']"),
    ],
)
def test_wrong_arguments_are_named(group: object, groups: object, field: str) -> None:
    """A wrong argument is refused by its name."""
    with pytest.raises(InvalidValueError) as caught:
        check_groups(group, groups)
    assert caught.value.field == field
