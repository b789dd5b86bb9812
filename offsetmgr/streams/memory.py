"""Rows of a table in memory; needs no package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.streams.messages import update_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MemoryStorage:
    """Rows in memory: each start of a view reads the whole table."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self._rows = {} if rows is None else rows
        self._offsets: dict[int, int] = {}

    def open(self, topic: str, topic_id: str) -> None:
        pass

    def close(self) -> None:
        self._rows.clear()
        self._offsets.clear()

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def items(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._rows.copy().items()):
            if start <= key and (end is None or key < end):
                yield key, value

    def offset(self, partition: int) -> int | None:
        return self._offsets.get(partition)

    def apply(self, rows: Mapping[bytes, bytes | None], offsets: Mapping[int, int]) -> None:
        for key, value in rows.items():
            update_rows(self._rows, key, value)
        self._offsets.update(offsets)

    def clear(self, topic_id: str) -> None:  # noqa: ARG002 -- nothing outlasts the process
        self.close()

    def seen_s(self) -> float | None:
        return None

    def note_seen(self, at_s: float) -> None:
        pass

    def flush(self) -> None:
        pass


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all that begin with ``prefix``; None where there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
