"""The groups of an offset store, to be measured as those of a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader, GroupListing, GroupListings
from offsetmgr.kafka.errors import tried
from offsetmgr.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.kafka.cluster import GroupDescription
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


def open_cluster(
    config: Mapping[str, object], store: str | None, timeout_s: float
) -> ClusterReader:
    """Open the reader of a cluster, and of the store that keeps its groups, if there is one.

    ``store`` is its URL.  Raises InvalidValueError where it is wrong, or librdkafka does not take a
    setting.
    """
    if store is None:
        return ClusterReader(config, timeout_s=timeout_s)
    return StoreReader(store, config, timeout_s)


class StoreReader(ClusterReader):
    """Reads a cluster whose groups are in a store; members are those that Kafka knows.

    Without any the state of a group is Empty, or Dead if nothing is committed.
    """

    def __init__(self, store: str, config: Mapping[str, object], timeout_s: float) -> None:
        self._store = open_store(store)
        super().__init__(config, timeout_s=timeout_s)

    def groups(self) -> GroupListings:
        in_kafka = {each.name: each for each in super().groups().groups}
        stored = (GroupListing(name, "Empty", "store") for name in self._store.groups())
        return GroupListings([in_kafka.get(each.name, each) for each in stored])

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        known = self._store.groups()
        found = super().describe(groups)
        for group, each in found.items():
            if not isinstance(each, OffsetManagerError):
                empty = each.state == "Dead" and group in known
                found[group] = each._replace(
                    coordinator=self._store.url, state="Empty" if empty else each.state
                )
        return found

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        def fetch(group: str) -> dict[TopicPartition, OffsetAndMetadata]:
            offsets = self._store.fetch_offsets(group)
            return {where: each for where, each in offsets.items() if each is not None}

        return {group: tried(fetch, group) for group in groups}

    def close(self) -> None:
        self._store.close()
        super().close()
