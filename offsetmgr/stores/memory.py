"""An offset store in memory, for tests."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from offsetmgr.stores.base import NO_ROW, ClaimingStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsetmgr.errors import OffsetCommitError
    from offsetmgr.stores.base import Claims, StoredOffset
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class MemoryOffsetStore(ClaimingStore):
    """Keeps offsets as long as the process lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, dict[TopicPartition, StoredOffset]] = defaultdict(dict)

    @property
    def url(self) -> str:
        return "memory:"

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(
                group
                for group, rows in self._rows.items()
                if any(row.offset is not None for row in rows.values())
            )

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def raise_generations(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        with self._lock:
            rows = self._rows[group]
            for where in partitions:
                before = rows.get(where, NO_ROW)
                rows[where] = before._replace(generation=before.generation + 1)
            return {where: rows[where] for where in partitions}

    def try_commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        claims: Claims | None = None,
    ) -> dict[TopicPartition, OffsetCommitError]:
        with self._lock:
            rows = self._rows[group]
            refused = {} if claims is None else claims.refusals(group, offsets, rows)
            for where, offset in offsets.items():
                if where not in refused:
                    rows[where] = rows.get(where, NO_ROW)._replace(offset=offset)
        return refused

    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._lock:
            rows = self._rows[group].copy()
        if partitions is None:
            return {where: row.offset for where, row in sorted(rows.items()) if row.offset}
        return {where: rows.get(where, NO_ROW).offset for where in partitions}
