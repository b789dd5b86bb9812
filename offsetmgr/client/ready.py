"""Partitions that wait for a request: each once, by group, the group that waits longest first."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.types import ManagerKey


class Ready:
    """A queue of partitions without duplicates."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[ManagerKey, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ManagerKey]:
        """All of them, group by group."""
        return chain.from_iterable(self._groups.values())

    def add(self, key: ManagerKey) -> None:
        """Queue `key`, if it is not queued."""
        keys = self._groups.setdefault(key.group, {})
        self._count += key not in keys
        keys[key] = None

    def discard(self, key: ManagerKey) -> None:
        """Take `key` out, if it is queued."""
        keys = self._groups.get(key.group)
        if keys is None or key not in keys:
            return
        del keys[key]
        self._count -= 1
        if not keys:
            del self._groups[key.group]

    def take(self, limit: int) -> tuple[str, list[ManagerKey]]:
        """Up to `limit` partitions of the group in front, which then goes to the end."""
        group, keys = next(iter(self._groups.items()))
        del self._groups[group]
        taken = list(islice(keys, limit))
        for key in taken:
            del keys[key]
        if keys:
            self._groups[group] = keys
        self._count -= len(taken)
        return group, taken
