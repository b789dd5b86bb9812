"""Offset managers as an offset store: of this process, or of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.stores.base import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_REQUEST_S: Final = 10.0  # time that managers have to answer


class ManagerStore(OffsetStore):
    """Commits by the managers of a LocalOffsets or OffsetClient, which ``close`` leaves open."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    @property
    def url(self) -> str:
        return self._offsets.url

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        committed = self._offsets.committed(group, timeout=_REQUEST_S)
        return {
            each: committed.get(each) for each in (committed if partitions is None else partitions)
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        values: dict[tuple[str, int], int | OffsetAndMetadata] = dict(offsets.items())
        # Only a reset is lower than what was committed before.
        self._offsets.submit(group, values, rewind=True, sync=True, timeout=_REQUEST_S)

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        self._offsets.claim(group, partitions, timeout=_REQUEST_S)
        try:
            return self.fetch(group, partitions)
        except BaseException:
            self.release(group, partitions)
            raise

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self._offsets.stop_managers(timeout=_REQUEST_S, group=group, partitions=partitions)
