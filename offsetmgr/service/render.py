"""From the core's values to the wire's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.service.messages import GroupOffsetEntry, OffsetEntry, OffsetValue
from offsetmgr.service.problems import error_body

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.service.messages import ErrorBody
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition


def entry(where: TopicPartition, value: OffsetAndMetadata) -> OffsetEntry:
    """An offset of a partition."""
    topic, partition = where
    return OffsetEntry(topic, partition, value.offset, value.metadata, value.leader_epoch)


def group_entry(key: ManagerKey, value: OffsetAndMetadata) -> GroupOffsetEntry:
    """An offset of a group's partition."""
    group, topic, partition = key
    return GroupOffsetEntry(
        group, topic, partition, value.offset, value.metadata, value.leader_epoch
    )


def value_or_none(value: OffsetAndMetadata | None) -> OffsetValue | None:
    """An offset alone."""
    return None if value is None else OffsetValue(*value)


def body_or_none(error: OffsetManagerError | None) -> ErrorBody | None:
    """An error, where there is one."""
    return None if error is None else error_body(error)
