"""An offset store in memory, for tests."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from offsetmgr.stores.base import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.errors import OffsetCommitError
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class MemoryOffsetStore(OffsetStore):
    """Keeps offsets as long as the process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)

    @property
    def url(self) -> str:
        return "memory:"

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(group for group, offsets in self._groups.items() if offsets)

    def close(self) -> None:
        pass

    def try_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetCommitError]:
        with self._lock:
            self._groups[group].update(offsets)
        return {}

    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._lock:
            known = self._groups[group].copy()
        return {
            where: known.get(where)
            for where in (sorted(known) if partitions is None else partitions)
        }
