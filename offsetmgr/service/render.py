"""From the core's values to the wire's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.service.messages import (
    GroupOffsetEntry,
    GroupUncommitted,
    OffsetEntry,
    OffsetValue,
    SettleAnswer,
)
from offsetmgr.service.problems import error_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.service.messages import ErrorBody
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition


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


def settled(results: Mapping[ManagerKey, StopResult]) -> SettleAnswer:
    """What a flush or a stop of many managers came to."""
    committed, uncommitted = [], []
    for key, result in results.items():
        if result.uncommitted is not None:
            left = result.uncommitted
            error = body_or_none(result.error)
            uncommitted.append(GroupUncommitted(*key, left.offset, left.metadata, error))
        elif result.committed is not None:
            committed.append(group_entry(key, result.committed))
    return SettleAnswer(committed, uncommitted)
