"""Decides which offsets to commit from the progress of every query; pure.

Within one run a query only goes forward.  A new run may go back: its first offset of each
partition is taken as it is, and counted where it is lower.

Where several sources, of one query or of many, read the same partition for the same group, the
lowest of their offsets is committed.  A query that stops while others share its partitions keeps
its offsets in that minimum: started again it must not find the group ahead of what it has read.
They leave it when the query runs again, which is known by its id or else by its name, or when it
is released.  A query that has no name and starts with a new checkpoint is another query: what it
had read before stays the minimum until it is released.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.spark.progress import Run
from offsetmgr.types import ManagerKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from offsetmgr.spark.progress import Snapshot

_MAX_ENDED: Final = 1_000
"""Ended runs to remember, so that their late reports are recognised."""


class Groups(NamedTuple):
    """One group for all topics, or each topic's own."""

    group: str | None = None
    by_topic: Mapping[str, str] = {}

    def group_of(self, topic: str) -> str | None:
        """Return the group of ``topic``; None if the topic is to be left alone."""
        return self.group or self.by_topic.get(topic)

    def include(self, group: str) -> bool:
        return group == self.group or group in self.by_topic.values()


class Commit(NamedTuple):
    """The offset that a partition's manager is to commit."""

    offset: int
    rewind: bool = False
    """Going back is meant: the query started anew, or another one joined behind."""
    back_from: int | None = None
    """The higher offset that is known to be given up; None if this goes forward."""


class Lower(NamedTuple):
    """An offset that is not committed because a higher one was reported or committed before."""

    offset: int
    before: int


class Decision(NamedTuple):
    """Offsets to commit, and facts to log."""

    commits: Mapping[ManagerKey, Commit] = {}
    lower: Mapping[ManagerKey, Lower] = {}
    shared: frozenset[tuple[str, str]] = frozenset()
    """Groups, each with a topic that more than one source reads for it."""
    ungrouped: frozenset[str] = frozenset()
    """Topics that no group was named for."""
    unread: frozenset[ManagerKey] = frozenset()
    """No running query reads these any more."""
    held_back: Mapping[str, str] = {}
    """Groups that go no further than what a query that stopped has read → its name, or id."""


@dataclass
class _Query:
    """The newest run of a query."""

    run_id: str
    name: str | None
    timestamp: str = ""
    batch_id: int = -1
    ended: bool = False
    is_released: bool = False
    """Its offsets leave the minimum when it ends."""


class GroupState:
    """The position of every query in its groups.  Not thread-safe."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        self._offsets: dict[ManagerKey, dict[str, int]] = {}
        """Of each partition the offsets that count, by the query's id."""
        self._submitted: dict[ManagerKey, int] = {}

    def offsets(self, snapshot: Snapshot) -> Iterator[tuple[ManagerKey, int]]:
        for source in snapshot.sources:
            for (topic, partition), offset in source.items():
                group = self._groups.group_of(topic)
                if group is not None:
                    yield ManagerKey(group, topic, partition), offset

    def new_groups(self, snapshot: Snapshot) -> set[str]:
        """Return the groups of which the snapshot names partitions that were not submitted yet."""
        return {key.group for key, _ in self.offsets(snapshot) if key not in self._submitted}

    def running(self) -> list[Run]:
        return [Run(each, query.run_id) for each, query in self._queries.items() if not query.ended]

    def progress(self, snapshot: Snapshot, committed: Mapping[ManagerKey, int]) -> Decision:
        """Take a snapshot in; ``committed`` is what ``new_groups`` had committed, where known.

        A snapshot older than one seen before changes nothing.  The last one of a run that has
        ended is taken too, but it cannot go back; end the run again after it.
        """
        if self._is_late(snapshot):
            return Decision()
        query_id = snapshot.run.query_id
        left = self._begin(snapshot)
        query = self._queries[query_id]
        is_last, query.ended = query.ended, False
        commits: dict[ManagerKey, Commit] = {}
        lower: dict[ManagerKey, Lower] = {}
        lowest: dict[ManagerKey, int] = {}
        shared: set[tuple[str, str]] = set()
        for key, offset in self.offsets(snapshot):
            if key in lowest:
                shared.add((key.group, key.topic))
            lowest[key] = min(offset, lowest.get(key, offset))
        for key, offset in lowest.items():
            counting = self._offsets.get(key, {})
            if counting.keys() - {query_id}:
                shared.add((key.group, key.topic))
                if is_last and query.is_released:
                    continue
            floor = self._submitted.get(key, committed.get(key))
            before = counting.get(query_id, floor if is_last else None)
            if before is not None and offset < before:
                lower[key] = Lower(offset, before)
                continue
            is_first = query_id not in counting and not is_last
            self._offsets.setdefault(key, {})[query_id] = offset
            least = self._submitted[key] = min(self._offsets[key].values())
            goes_back = floor is not None and least < floor
            commits[key] = Commit(least, is_first or goes_back, floor if goes_back else None)
        commits.update(self._raised(key for key in left if key not in commits))
        topics = {partition.topic for source in snapshot.sources for partition in source}
        ungrouped = frozenset(t for t in topics if self._groups.group_of(t) is None)
        return Decision(commits, lower, frozenset(shared), ungrouped, self._unread(left))

    def end(self, run: Run) -> Decision:
        query = self._queries.get(run.query_id)
        if query is None or query.run_id != run.run_id or query.ended:
            return Decision()
        query.ended = True
        keys = self._keys_of(run.query_id)
        held = {key for key in keys if len(self._offsets[key]) > 1 and not query.is_released}
        self._leave(run.query_id, [key for key in keys if key not in held])
        self._queries.move_to_end(run.query_id)
        self._forget_ended()
        held_back = dict.fromkeys((key.group for key in held), query.name or run.query_id)
        return Decision(self._raised(keys), unread=self._unread(keys), held_back=held_back)

    def release(self, name: str) -> Decision | None:
        """Let groups go on without the query of this id or name; None if there is none.

        One that runs is released when it ends.
        """
        found = [each for each, query in self._queries.items() if name in {each, query.name}]
        left: list[ManagerKey] = []
        for query_id in found:
            query = self._queries[query_id]
            query.is_released = True
            if query.ended:
                left += self._leave(query_id, self._keys_of(query_id))
        return Decision(self._raised(left), unread=self._unread(left)) if found else None

    def _is_late(self, snapshot: Snapshot) -> bool:
        query = self._queries.get(snapshot.run.query_id)
        if query is None:
            return False
        if query.run_id == snapshot.run.run_id:
            return snapshot.batch_id < query.batch_id
        # The clock alone does not say it: it may have been set back between two runs.  A new run
        # goes on from the checkpoint, so its batches are not below those of the run before.
        return snapshot.timestamp < query.timestamp and snapshot.batch_id < query.batch_id

    def _begin(self, snapshot: Snapshot) -> list[ManagerKey]:
        """Note the snapshot's run; return what the runs that it replaces had read."""
        (query_id, run_id), name = snapshot.run, snapshot.name
        query = self._queries.get(query_id)
        left: list[ManagerKey] = []
        if query is None or query.run_id != run_id:
            # Of all that run in a session at once, one alone has this name.
            for each, before in self._queries.items():
                if each == query_id or (name is not None and before.name == name):
                    before.ended = before.is_released = True
                    left += self._leave(each, self._keys_of(each))
            query = self._queries[query_id] = _Query(run_id, name)
        query.timestamp = snapshot.timestamp
        query.batch_id = snapshot.batch_id
        return left

    def _keys_of(self, query_id: str) -> list[ManagerKey]:
        return [key for key, counting in self._offsets.items() if query_id in counting]

    def _leave(self, query_id: str, keys: list[ManagerKey]) -> list[ManagerKey]:
        """Take the query's offsets of ``keys`` out of the minimum."""
        for key in keys:
            del self._offsets[key][query_id]
            if not self._offsets[key]:
                del self._offsets[key]
        return keys

    def _raised(self, keys: Iterable[ManagerKey]) -> dict[ManagerKey, Commit]:
        """Return what may go on, because somebody behind has left."""
        commits: dict[ManagerKey, Commit] = {}
        for key in keys:
            least = min(self._offsets.get(key, {}).values(), default=-1)
            if least > self._submitted.get(key, -1):
                self._submitted[key] = least
                commits[key] = Commit(least)
        return commits

    def _unread(self, keys: Iterable[ManagerKey]) -> frozenset[ManagerKey]:
        unread = frozenset(
            key
            for key in keys
            if all(self._queries[each].ended for each in self._offsets.get(key, ()))
        )
        for key in unread:
            self._submitted.pop(key, None)
        return unread

    def _forget_ended(self) -> None:
        if len(self._queries) > _MAX_ENDED:
            counting = set().union(*self._offsets.values())
            ended = [e for e, query in self._queries.items() if query.ended and e not in counting]
            for query_id in ended[:-_MAX_ENDED]:
                del self._queries[query_id]
