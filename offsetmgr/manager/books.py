"""What is known of one group: who is served, what is dirty, what is to be read, what stands.

The plan decides from these books what to ask next; the answers are entered in ``outcomes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offsetmgr.manager.backoff import Backoff
from offsetmgr.manager.bounds import Bounds
from offsetmgr.manager.dirty import DirtyBook
from offsetmgr.manager.reads import Reads
from offsetmgr.manager.rounds import Rounds
from offsetmgr.manager.slot import SubmitSlot
from offsetmgr.manager.tray import Tray
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from offsetmgr.config import CommitSettings
    from offsetmgr.manager.ledger import Ledger
    from offsetmgr.manager.requests import Member
    from offsetmgr.manager.slot import Version


_NOWHERE: Final = TopicPartition("gone", 0)


@dataclass(frozen=True, slots=True)
class Watched:
    """Stands in for a manager that is gone."""

    slot: SubmitSlot = field(default_factory=lambda: SubmitSlot(Tray("gone"), _NOWHERE))

    def acknowledge(self, version: Version, now: float) -> None:
        """Nobody is there to be told."""


class Books:
    """The state of one group's plan; see each part for its rules."""

    def __init__(self, settings: CommitSettings, rng: Random, ledger: Ledger) -> None:
        self.settings = settings
        self.backoff = Backoff(settings, rng)
        self.ledger = ledger
        self.members: dict[TopicPartition, Member] = {}
        self.watched: dict[TopicPartition, Watched] = {}
        """Of managers that are gone: what they committed last is still watched."""
        self.reads = Reads(self.backoff)
        self.dirty = DirtyBook(settings.commit_interval_s)
        self.rounds = Rounds(settings, rng, ledger)
        self.bounds = Bounds(settings)
        for partition in ledger.doubted():
            self.watch(partition)
        # After a crash: what was to be read, and so looked at again, is not known any more.
        self.reads.awaiting.update(self.watched)

    def expect(self, members: Mapping[TopicPartition, Member]) -> None:
        """Serve these; their initial offsets are wanted."""
        for partition in members:
            self.watched.pop(partition, None)
        self.members.update(members)
        self.reads.awaiting.update(members)

    def forget(self, partition: TopicPartition) -> None:
        """Nothing of what a former manager wanted is wanted any more."""
        self.dirty.remove(partition)
        self.reads.forget(partition)
        self.bounds.forget(partition)

    def watch(self, partition: TopicPartition) -> None:
        """Nobody is there any more; a lost commit may yet land on what was committed last."""
        self.members[partition] = self.watched[partition] = Watched()
        self.bury(partition)

    def bury(self, partition: TopicPartition) -> None:
        """End the watch where nothing can land any more."""
        doubted = self.ledger.doubts(partition) and self.ledger.kept(partition) is not None
        if not doubted and partition not in self.dirty and partition not in self.reads.unknown:
            del self.watched[partition]
            del self.members[partition]
            self.reads.forget(partition)
            self.bounds.forget(partition)
            self.ledger.drop(partition)
