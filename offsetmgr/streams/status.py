"""The tables of stream processors, for those who watch their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.graph import group_table
from offsetmgr.types import PartitionRange, TopicPartition, check_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.kafka.cluster import ClusterReader


def tables_of(reader: ClusterReader, groups: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the table of each of ``groups`` that has one: its topic, and messages by partition."""
    topics = {group: group_table(group) for group in groups if _may_have_table(group)}
    found = reader.partitions_of(topics.values())
    tables = {topic: numbers for topic, numbers in found.items() if isinstance(numbers, list)}
    messages: dict[str, dict[int, int]] = {topic: {} for topic in tables}
    asked = [TopicPartition(topic, number) for topic in tables for number in tables[topic]]
    for (topic, number), log in reader.log_ranges(asked).items():
        if isinstance(log, PartitionRange):
            messages[topic][number] = log.high_watermark - log.log_start_offset
    return {
        group: {"topic": topic, "messages": messages[topic]}
        for group, topic in topics.items()
        if topic in tables
    }


def _may_have_table(group: str) -> bool:
    try:
        check_topic(group_table(group))
    except InvalidValueError:
        return False
    return True
