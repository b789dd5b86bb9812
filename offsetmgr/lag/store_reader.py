"""The groups of an offset store, to be measured as those of a Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.cluster import GroupListing, GroupListings
from offsetmgr.kafka.errors import tried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
    from offsetmgr.stores import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class StoreReader:
    """A ClusterReader's answers, with the groups of ``store`` in the place of Kafka's; closes both.

    Members are those that Kafka knows.  Without any the state of a group is Empty, or Dead if
    nothing is committed.
    """

    def __init__(self, store: OffsetStore, cluster: ClusterReader) -> None:
        self._store = store
        self.cluster = cluster
        self.log_ranges = cluster.log_ranges
        self.next_records = cluster.next_records
        self.offsets_at = cluster.offsets_at
        self.partitions_of = cluster.partitions_of

    def groups(self) -> GroupListings:
        in_kafka = {each.name: each for each in self.cluster.groups().groups}
        return GroupListings(
            [
                in_kafka.get(name, GroupListing(name, "Empty", "store"))
                for name in self._store.groups()
            ]
        )

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        known = self._store.groups()
        found = self.cluster.describe(groups)
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
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
