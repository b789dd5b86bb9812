"""Decides what to commit from the progress of every query; touches nothing.

Within one run a query only goes forward.  A new run may go back: its first position of each
partition is taken as it is, and counted where it is lower.  Where several sources, of one query
or of many, read the same partition for the same group, the lowest of them is committed.  A
query that ends leaves the group where that is until another one goes on: started again without its
checkpoint it begins there, and must not find itself ahead.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.spark.groups import Groups
    from offsetmgr.spark.progress import Snapshot

_MAX_ENDED: Final = 1_000
"""How many ended runs are remembered, so that a late report is known to be late."""


class GroupTopic(NamedTuple):
    """A topic as a group reads it."""

    group: str
    topic: str


class Move(NamedTuple):
    """Where a partition's committed offset is to go."""

    offset: int
    rewind: bool
    """Going back is meant: the query started anew, or another one joined behind."""
    back_from: int | None
    """The higher offset that is known to be given up; None where this goes forward."""


class Refusal(NamedTuple):
    """An offset that is lower than one of the same run."""

    offset: int
    floor: int


class Decision(NamedTuple):
    """What one snapshot comes to."""

    moves: Mapping[ManagerKey, Move] = {}
    refused: Mapping[ManagerKey, Refusal] = {}
    shared: frozenset[GroupTopic] = frozenset()
    """What more than one source reads for the same group."""
    ungrouped: frozenset[str] = frozenset()
    """Topics that no group was named for."""
    released: frozenset[ManagerKey] = frozenset()
    """What the run before this one read and nobody reads any more."""


@dataclass
class _Run:
    run_id: str
    replaced: str | None = None
    """The run before it, of which a late report may come."""
    timestamp: str = ""
    batch_id: int = -1
    positions: dict[ManagerKey, int] = field(default_factory=dict)
    ended: bool = False


class Ledger:
    """Knows every query's run and positions; not safe for several threads."""

    def __init__(self, groups: Groups) -> None:
        """``groups`` says which group each topic belongs to."""
        self._groups = groups
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._readers: dict[ManagerKey, dict[str, int]] = {}
        self._submitted: dict[ManagerKey, int] = {}

    def positions(self, snapshot: Snapshot) -> Iterator[tuple[ManagerKey, int]]:
        """Each offset of the snapshot that has a group."""
        for source in snapshot.sources:
            for (topic, partition), offset in source.offsets.items():
                group = self._groups.group_of(topic)
                if group is not None:
                    yield ManagerKey(group, topic, partition), offset

    def new_groups(self, snapshot: Snapshot) -> set[str]:
        """Groups of which the snapshot names partitions that were never submitted here."""
        return {key.group for key, _ in self.positions(snapshot) if key not in self._submitted}

    def observe(self, snapshot: Snapshot, committed: Mapping[ManagerKey, int]) -> Decision:
        """Take a snapshot in; ``committed`` is what ``new_groups`` had committed, where known.

        A snapshot older than one seen before changes nothing.  The last one of a run that has
        ended is taken too, without a licence to go back; end the run again after it.
        """
        if self._late(snapshot):
            return Decision()
        run, left = self._run_of(snapshot)
        final, run.ended = run.ended, False
        moves: dict[ManagerKey, Move] = {}
        refused: dict[ManagerKey, Refusal] = {}
        positions, shared = self._lowest(snapshot)
        for key, offset in positions.items():
            others = self._readers.get(key, {}).keys() - {snapshot.query_id}
            if others:
                shared.add(GroupTopic(key.group, key.topic))
            if final and others:
                continue  # nothing follows it, so it must not hold back those who read on
            floor = self._submitted.get(key, committed.get(key))
            before = floor if final else run.positions.get(key)
            if before is not None and offset < before:
                refused[key] = Refusal(offset, before)
                continue
            first = key not in run.positions and not final
            run.positions[key] = offset
            self._readers.setdefault(key, {})[snapshot.query_id] = offset
            lowest = self._submitted[key] = min(self._readers[key].values())
            lower = floor is not None and lowest < floor
            moves[key] = Move(lowest, first or lower, floor if lower else None)
        released = self._released(left)
        return Decision(moves, refused, frozenset(shared), self._ungrouped(snapshot), released)

    def end(self, query_id: str, run_id: str) -> frozenset[ManagerKey]:
        """A run ended; return the keys that no query reads any more."""
        run = self._runs.get(query_id)
        if run is None or run.run_id != run_id or run.ended:
            return frozenset()
        return self._released(self._end(query_id, run))

    def end_all(self) -> frozenset[ManagerKey]:
        """End every run; return all keys that were read."""
        live = [(query_id, run) for query_id, run in self._runs.items() if not run.ended]
        return frozenset().union(*(self._released(self._end(*each)) for each in live))

    def _late(self, snapshot: Snapshot) -> bool:
        run = self._runs.get(snapshot.query_id)
        if run is None:
            return False
        if run.run_id == snapshot.run_id:
            return snapshot.batch_id < run.batch_id
        # The clock alone does not say it: it may have been set back between two runs.  A new run
        # goes on from the checkpoint, so its batches are not below those of the run before.
        older = snapshot.timestamp < run.timestamp and snapshot.batch_id < run.batch_id
        return older or snapshot.run_id == run.replaced

    def _run_of(self, snapshot: Snapshot) -> tuple[_Run, list[ManagerKey]]:
        """The snapshot's run, and what the run that it replaces leaves behind."""
        run = self._runs.get(snapshot.query_id)
        left: list[ManagerKey] = []
        if run is None or run.run_id != snapshot.run_id:
            if run is not None and not run.ended:
                left = self._end(snapshot.query_id, run)
            replaced = None if run is None else run.run_id
            run = self._runs[snapshot.query_id] = _Run(snapshot.run_id, replaced)
        run.timestamp = snapshot.timestamp
        run.batch_id = snapshot.batch_id
        return run, left

    def _end(self, query_id: str, run: _Run) -> list[ManagerKey]:
        run.ended = True
        left = list(run.positions)
        for key in left:
            readers = self._readers[key]
            del readers[query_id]
            if not readers:
                del self._readers[key]
        run.positions.clear()
        self._runs.move_to_end(query_id)
        self._forget_ended()
        return left

    def _released(self, left: Iterable[ManagerKey]) -> frozenset[ManagerKey]:
        released = frozenset(key for key in left if key not in self._readers)
        for key in released:
            self._submitted.pop(key, None)
        return released

    def _forget_ended(self) -> None:
        ended = [query_id for query_id, run in self._runs.items() if run.ended]
        for query_id in ended[: max(0, len(ended) - _MAX_ENDED)]:
            del self._runs[query_id]

    def _lowest(self, snapshot: Snapshot) -> tuple[dict[ManagerKey, int], set[GroupTopic]]:
        lowest: dict[ManagerKey, int] = {}
        shared: set[GroupTopic] = set()
        for key, offset in self.positions(snapshot):
            if key in lowest:
                shared.add(GroupTopic(key.group, key.topic))
                offset = min(offset, lowest[key])  # noqa: PLW2901 -- the lower of the two
            lowest[key] = offset
        return lowest, shared

    def _ungrouped(self, snapshot: Snapshot) -> frozenset[str]:
        topics = {place.topic for source in snapshot.sources for place in source.offsets}
        return frozenset(topic for topic in topics if self._groups.group_of(topic) is None)
