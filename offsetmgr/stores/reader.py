"""Groups that are kept in an offset store, for lag and resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetManagerError
from offsetmgr.lag.cluster import ClusterReader, GroupDescription, GroupListing
from offsetmgr.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.stores.base import OffsetStore
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class StoreReader(ClusterReader):
    """A ClusterReader with the groups of ``store`` in the place of Kafka's; closes both.

    Members are those that Kafka knows.  Without any the state of a group is Empty, or Dead if
    nothing is committed.
    """

    def __init__(
        self, store: OffsetStore, kafka: str | Mapping[str, object], *, timeout_s: float = 10.0
    ) -> None:
        super().__init__(kafka, timeout_s=timeout_s)
        self._store = store

    def groups(self) -> list[GroupListing]:
        in_kafka = {each.name: each for each in super().groups()}
        return [
            in_kafka.get(name, GroupListing(name, "Empty", "store"))
            for name in self._store.groups()
        ]

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
        found: dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError] = {}
        for group in groups:
            try:
                offsets = self._store.fetch_offsets(group)
            except OffsetManagerError as error:
                found[group] = error
            else:
                found[group] = {where: each for where, each in offsets.items() if each is not None}
        return found

    def close(self) -> None:
        self._store.close()
        super().close()


def open_reader(
    kafka: str | Mapping[str, object], store: str | None, *, timeout_s: float
) -> ClusterReader:
    """Return the reader of the groups at the URL ``store``, of Kafka's own groups if None."""
    if store is None:
        return ClusterReader(kafka, timeout_s=timeout_s)
    return StoreReader(open_store(store), kafka, timeout_s=timeout_s)
