"""Which group a topic's offsets are committed to: one for all topics, or each its own.

A query's progress names no group, so its people say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from offsetmgr.errors import InvalidValueError
from offsetmgr.types import check_group, check_topic


class Groups(Protocol):
    """Knows the group of a topic."""

    def group_of(self, topic: str) -> str | None:
        """The group that ``topic`` is committed to; None where it is to be left alone."""


class OneGroup(NamedTuple):
    """Every topic is committed to the same group."""

    group: str

    def group_of(self, topic: str) -> str | None:  # noqa: ARG002 -- the same for each
        """The one group."""
        return self.group


class GroupOfTopic(NamedTuple):
    """Each topic has a group of its own; topics that are not named are left alone."""

    groups: Mapping[str, str]

    def group_of(self, topic: str) -> str | None:
        """The group named for ``topic``."""
        return self.groups.get(topic)


def check_groups(group: object, groups: object) -> Groups:
    """The groups as the caller named them: ``group`` or ``groups``, exactly one of the two.

    Raises InvalidValueError naming the argument.
    """
    if groups is None:
        if group is None:
            fix = 'give group="..." or groups={"topic": "group"}'
            raise InvalidValueError("group", None, "is missing", fix)
        return OneGroup(check_group(group))
    if group is not None:
        raise InvalidValueError("groups", groups, "was given beside group", "give one of the two")
    if not isinstance(groups, Mapping) or not groups:
        fix = 'give a mapping such as {"orders": "orders-etl"}'
        raise InvalidValueError("groups", groups, "is no mapping of topics to groups", fix)
    checked = {
        check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
        for topic, name in groups.items()
    }
    return GroupOfTopic(checked)
