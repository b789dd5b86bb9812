"""Lag of groups that are kept in an offset store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetManagerError
from offsetmgr.lag.cluster import GroupDescription, GroupListing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.lag.cluster import ClusterReader
    from offsetmgr.stores.base import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class StoreSource:
    """What a ClusterReader answers, with the groups of ``store`` in the place of Kafka's.

    A store knows no members: the state of a group is Empty, or Dead where it has no offsets.
    """

    def __init__(self, store: OffsetStore, reader: ClusterReader) -> None:
        self._store = store
        self._reader = reader

    def groups(self) -> list[GroupListing]:
        return [GroupListing(name, "Empty", "store") for name in self._store.groups()]

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        known = set(self._store.groups())
        return {
            group: GroupDescription(
                "Empty" if group in known else "Dead", "store", self._store.url, "", ()
            )
            for group in groups
        }

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        return {group: self._committed(group) for group in groups}

    def _committed(
        self, group: str
    ) -> dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError:
        try:
            found = self._store.fetch_offsets(group)
        except OffsetManagerError as error:
            return error
        return {where: each for where, each in found.items() if each is not None}

    def log_ends(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | OffsetManagerError]:
        return self._reader.log_ends(partitions)

    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | OffsetManagerError | None]:
        return self._reader.offsets_at(times)
