"""Which partitions of a group have something to commit, and when each is due."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from offsetmgr.manager.backoff import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.types import TopicPartition


class Entry(Retry):
    """A partition with something to commit, and the pause after an error of its own.

    What is submitted together shares an entry for as long as nothing happens to one of them alone.
    """

    since: float = -inf
    """``-inf`` once it was due: after an error only the pause counts."""
    refresh: bool = False
    """Whether not the newest version is to be committed, but the last committed one again."""
    shared: bool = False
    """Whether it may be that of several; then it has no pause, and is no refresh."""


def different(entries: Mapping[TopicPartition, Entry]) -> list[Entry]:
    """Those of ``entries``, a shared one once."""
    every = list(entries.values())
    if every and every.count(every[0]) == len(every):
        return every[:1]  # as a rule; found out without a look into them
    return list(dict.fromkeys(every))


class DirtyBook:
    """Everything dirty of one group; ``due_at`` is never later than the first that is due."""

    def __init__(self, commit_interval_s: float) -> None:
        self._commit_interval_s = commit_interval_s
        self._entries: dict[TopicPartition, Entry] = {}
        self.group = Retry()
        """The pause after an error of the whole group."""
        self.due_at = inf
        """When to look for something to commit; ``inf`` for never."""
        self.urgent = False
        """Whether somebody waits: due now, whatever ``due_at`` says."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, partition: object) -> bool:
        return partition in self._entries

    def get(self, partition: TopicPartition) -> Entry | None:
        """The entry of ``partition``, if it is dirty; from now on its own."""
        entry = self._entries.get(partition)
        if entry is not None and entry.shared:
            since = entry.since
            entry = self._entries[partition] = Entry()
            entry.since = since
        return entry

    def entries(self) -> dict[TopicPartition, Entry]:
        """All entries as of now; they may be removed while the caller goes through them."""
        return self._entries.copy()

    def different(self) -> list[Entry]:
        """All entries, a shared one once."""
        return different(self._entries)

    def mark(self, partition: TopicPartition, now: float, *, urgent: bool = False) -> None:
        """The newest version is to be committed; at once where ``urgent``."""
        entry = self.get(partition)
        if entry is None:
            entry = self._entries[partition] = Entry()
            entry.since = now
        entry.refresh = False
        if urgent:
            entry.since = -inf
        self.expect(entry)

    def mark_all(self, partitions: Iterable[TopicPartition], since: float) -> None:
        """The newest versions are to be committed; the first of them was submitted at ``since``."""
        fresh = Entry()
        fresh.since, fresh.shared = since, True
        self.expect(fresh)
        if not self._entries:
            self._entries = dict.fromkeys(partitions, fresh)
            return
        for partition in partitions:
            entry = self._entries.setdefault(partition, fresh)
            if entry.refresh:
                entry.refresh = False

    def mark_due(self, partition: TopicPartition) -> Entry:
        """The newest version is to be committed, as soon as pauses allow, unless it waits so."""
        entry = self.get(partition)
        if entry is None:
            entry = self._entries[partition] = Entry()
        return entry

    def refresh(self, partition: TopicPartition) -> Entry:
        """Commit the last committed version again, unless something newer is to be anyway."""
        entry = self.get(partition)
        if entry is None:
            entry = self._entries[partition] = Entry()
            entry.refresh = True
        self.expect(entry)
        return entry

    def requeue(self, partition: TopicPartition, now: float) -> None:
        """To the back: where there are more than one request can carry, all get their turn."""
        self._entries.pop(partition, None)
        self.mark(partition, now)

    def remove(self, partition: TopicPartition) -> None:
        """Nothing is to be committed there any more."""
        self._entries.pop(partition, None)

    def remove_all(self, partitions: Mapping[TopicPartition, object]) -> None:
        """Nothing is to be committed in all of these any more."""
        if list(self._entries) == list(partitions):  # nothing is looked up for that
            self._entries.clear()
        else:
            for partition in partitions:
                self._entries.pop(partition, None)

    def hurry(self) -> None:
        """Everything is due now, past errors forgiven once."""
        for entry in self.different():
            entry.since = -inf
            if entry.attempts:
                entry.forgive()
        self.group.forgive()
        # Also for what is in flight now and turns out to be not the newest.
        self.urgent = True

    def due(self, entry: Entry) -> float:
        """When ``entry`` may be committed."""
        waited = entry.since + self._commit_interval_s
        return max(waited, entry.not_before, self.group.not_before)

    def expect(self, entry: Entry | None) -> None:
        """Look again no later than ``entry`` is due."""
        if entry is not None:
            self.due_at = min(self.due_at, self.due(entry))

    def expect_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Look again no later than any of these is due that is still dirty."""
        if self._entries:
            for entry in dict.fromkeys(map(self._entries.get, partitions)):
                self.expect(entry)
