"""The partitions of a group that have something to commit, and when each is due."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from offsetmgr.manager.backoff import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.types import TopicPartition


class Dirty(Retry):
    """A partition with something to commit, and its back-off after an error of its own."""

    def __init__(self, since: float, *, recommit: bool = False) -> None:
        self.since = since
        """When it was submitted; ``-inf`` once it was due: after an error only back-off counts."""
        self.recommit = recommit
        """True if the last committed version is to be committed again, not the newest one."""


class DirtySet:
    """Everything dirty of one group; ``due_at`` is never later than the first that is due."""

    def __init__(self, commit_interval_s: float) -> None:
        self._commit_interval_s = commit_interval_s
        self._entries: dict[TopicPartition, Dirty] = {}
        self.group = Retry()
        """Back-off after an error of the whole group."""
        self.due_at = inf
        """When to look for something to commit; ``inf`` for never."""
        self.urgent = False
        """True if a caller waits: due now, whatever ``due_at`` says."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, partition: object) -> bool:
        return partition in self._entries

    def get(self, partition: TopicPartition) -> Dirty | None:
        return self._entries.get(partition)

    def entries(self) -> list[tuple[TopicPartition, Dirty]]:
        """Return all entries as of now; they may be removed while the caller goes through them."""
        return list(self._entries.items())

    def mark(self, partition: TopicPartition, since: float) -> Dirty:
        """The newest version is to be committed; it waits since ``since``."""
        entry = self._entries.get(partition)
        if entry is None:
            entry = self._entries[partition] = Dirty(since)
        else:
            entry.since = min(entry.since, since)
        entry.recommit = False
        self.expect(entry)
        return entry

    def mark_recommit(self, partition: TopicPartition) -> Dirty:
        """Commit the last committed version again, unless something newer is to be anyway."""
        entry = self._entries.get(partition)
        if entry is None:
            entry = self._entries[partition] = Dirty(-inf, recommit=True)
        self.expect(entry)
        return entry

    def requeue(self, partition: TopicPartition, now: float) -> None:
        """Move to the back: where one request cannot carry all, each gets its turn."""
        self._entries.pop(partition, None)
        self.mark(partition, now)

    def remove(self, partition: TopicPartition) -> None:
        self._entries.pop(partition, None)

    def expedite(self) -> None:
        """Make everything due now, past errors forgiven once."""
        for entry in self._entries.values():
            entry.since = -inf
            entry.forgive()
        self.group.forgive()
        # Also for what is in flight now and turns out not to be the newest.
        self.urgent = True

    def expect(self, entry: Dirty | None) -> None:
        """Look again no later than ``entry`` is due."""
        if entry is not None:
            waited = entry.since + self._commit_interval_s
            self.due_at = min(self.due_at, max(waited, entry.not_before, self.group.not_before))

    def expect_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Look again no later than any of these is due that is still dirty."""
        if self._entries:
            for partition in partitions:
                self.expect(self._entries.get(partition))
