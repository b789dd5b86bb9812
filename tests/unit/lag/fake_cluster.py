"""A cluster in memory, for what reads groups and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import KafkaRequestError, OffsetManagerError, error_info
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription, GroupMember
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UNKNOWN_TOPIC = 3
TIMED_OUT = -185


class FakeCluster(ClusterReader):
    """Committed offsets and logs; counts the questions it is asked."""

    def __init__(self) -> None:  # it connects to nothing
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.members: dict[str, tuple[GroupMember, ...]] = {}
        self.times: dict[TopicPartition, list[tuple[float, int]]] = {}
        """Offsets by the second at which each was written."""
        self.down = False
        self.asked: list[str] = []

    def commit(self, group: str, where: TopicPartition, offset: int) -> None:
        self.offsets.setdefault(group, {})[where] = OffsetAndMetadata(offset)

    def member(self, group: str, *partitions: TopicPartition) -> GroupMember:
        made = GroupMember("one-1", "one", "/10.0.0.1", "", partitions)
        self.members[group] = (made,)
        return made

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        self.asked.append("describe")
        if self.down:
            return {group: failed(group) for group in groups}
        return {group: self._described(group) for group in groups}

    def _described(self, group: str) -> GroupDescription:
        members = self.members.get(group, ())
        state = "Stable" if members else "Empty" if group in self.offsets else "Dead"
        return GroupDescription(state, "classic", "broker:9092 (1)", "range", members)

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        self.asked.append("committed")
        if self.down:
            return {group: failed(group) for group in groups}
        return {group: dict(self.offsets.get(group, {})) for group in groups}

    def log_ends(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | OffsetManagerError]:
        self.asked.append("log_ends")
        if self.down:
            return {each: failed(str(each)) for each in partitions}
        return {each: self.ends.get(each, no_topic(each)) for each in partitions}

    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | OffsetManagerError | None]:
        self.asked.append("offsets_at")
        return {
            each: next((at for at_s, at in self.times.get(each, ()) if at_s * 1000 >= at_ms), None)
            for each, at_ms in times.items()
        }


def failed(what: str) -> KafkaRequestError:
    return KafkaRequestError(what, error_info(TIMED_OUT))


def no_topic(where: TopicPartition) -> KafkaRequestError:
    return KafkaRequestError(f"log of {where}", error_info(UNKNOWN_TOPIC))
