"""The interface of a table's storage, and rows in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from offsetmgr.streams.messages import update_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Storage(ABC):
    """Rows of a table, and the offset of the last message of each partition in them.

    Reads come from any thread, also during a write.  The defaults are those of rows that do not
    outlast the process.
    """

    def open(self, topic: str, topic_id: str) -> None:  # noqa: B027 -- the default
        """Open or create the store; ``topic_id`` is empty with brokers before 2.8.

        Rows of a former topic of that name are deleted.  Raises ViewError where the store has the
        rows of another topic.
        """

    @abstractmethod
    def close(self) -> None:
        """End; later reads may raise."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return a row; None where there is none."""

    @abstractmethod
    def items(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate in the order of keys from ``start`` up to before ``end``; None is the last."""

    @abstractmethod
    def offset(self, partition: int) -> int | None:
        """Return the offset of the last message whose row is stored; None before the first."""

    @abstractmethod
    def apply(self, rows: Mapping[bytes, bytes | None], offsets: Mapping[int, int]) -> None:
        """Write rows, where None deletes, and offsets: all of it or nothing.  Raises ViewError."""

    @abstractmethod
    def clear(self, topic_id: str) -> None:
        """Delete all rows and offsets; from now on the rows are of the topic with this id."""

    def leader_epoch(self, partition: int) -> int | None:  # noqa: ARG002 -- the default
        """Return the leader epoch of the last message; None if it is not known."""
        return None

    def note_leader_epoch(self, partition: int, epoch: int) -> None:  # noqa: B027 -- the default
        """Note the leader epoch of the messages that are applied next."""

    def seen_s(self) -> float | None:
        """Return the time, since 1970, until which no deletion was missed; None if not known."""
        return None

    def note_seen(self, at_s: float) -> None:  # noqa: B027 -- the default
        """Note that the table was read to its end at that time."""

    def flush(self) -> None:  # noqa: B027 -- the default
        """Called once a partition has recovered its rows."""


class MemoryStorage(Storage):
    """Rows in memory: each start of a view reads the whole table."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self._rows = {} if rows is None else rows
        self._offsets: dict[int, int] = {}

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
