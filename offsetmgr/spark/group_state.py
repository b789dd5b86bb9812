"""Decides which offsets a group commits from the progress of every query; pure.

Within one run a query goes forward.  A new run may go back: its first offset of each partition is
taken as it is, and counted where it is lower.  A later batch of one run that ends lower was read
from another log, such as of a topic that was recreated: the group follows, as for a rewind.

Where several sources, of one query or of many, read the same partition, the lowest of their offsets
is committed.  A query that stops while others share its partitions keeps its offsets in that
minimum: started again it must not find the group ahead of what it has read.  They leave it when the
query runs again, which is known by its id or else by its name, or when it is released.  A query
that has no name and starts with a new checkpoint is another query: what it had read before stays
the minimum until it is released.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.progress import Run, lowest
from offsetmgr.types import check_group, check_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from offsetmgr.spark.progress import Positions, Snapshot
    from offsetmgr.types import TopicPartition

_MAX_ENDED: Final = 1_000
"""Ended runs to remember, so that their late reports are recognised."""


class Groups(NamedTuple):
    """One group for all topics, or each topic's own."""

    group: str | None = None
    by_topic: Mapping[str, str] = {}
    ignored: Collection[str] = ()
    """Topics that are not meant to have a group."""

    @classmethod
    def of(cls, group: object, by_topic: object) -> Groups:
        """Return the groups as a user has named them, by one of the two; may refuse them."""
        if (group is None) == (by_topic is None):
            problem = "is missing" if group is None else "was given with groups"
            fix = 'give either group="..." or groups={"topic": "group"}'
            raise InvalidValueError("group", group, problem, fix)
        if by_topic is None:
            return cls(check_group(group))
        if not isinstance(by_topic, Mapping) or not by_topic:
            fix = 'give a mapping such as {"orders": "orders-etl"}'
            raise InvalidValueError("groups", by_topic, "is not a mapping of topics to groups", fix)
        return cls(
            None,
            {
                check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
                for topic, name in by_topic.items()
            },
        )

    def group_of(self, topic: str) -> str | None:
        """Return the group of ``topic``; None if the topic is to be left alone."""
        return self.group or self.by_topic.get(topic)

    def names(self) -> set[str]:
        return {self.group} if self.group else set(self.by_topic.values())

    def parts(self, snapshot: Snapshot) -> dict[str, Snapshot]:
        """Return what a snapshot says of each group, by the group's name."""
        parts: dict[str, list[dict[TopicPartition, int]]] = {
            group: [{} for _ in snapshot.sources] for group in sorted(self.names())
        }
        for number, source in enumerate(snapshot.sources):
            for partition, offset in source.items():
                group = self.group_of(partition.topic)
                if group is not None:
                    parts[group][number][partition] = offset
        return {group: snapshot._replace(sources=tuple(each)) for group, each in parts.items()}


class Caller(Protocol):
    """A call of ``commit_offsets``."""

    session: object
    """The name of a running query is unique there."""


class Lower(NamedTuple):
    """An offset that is lower than one reported or committed before."""

    offset: int
    before: int


@dataclass
class Decision:
    """Offsets to commit, and facts to log."""

    submits: dict[TopicPartition, int] = field(default_factory=dict)
    rewinds: dict[TopicPartition, int] = field(default_factory=dict)
    """Going back is meant: the query started anew, or another one joined behind."""
    lower: dict[TopicPartition, Lower] = field(default_factory=dict)
    """Not committed."""
    back: dict[TopicPartition, Lower] = field(default_factory=dict)
    """Committed, as a query started anew or joined."""
    other_log: dict[TopicPartition, Lower] = field(default_factory=dict)
    """Committed, as a running query reads another log than before."""
    shared: set[str] = field(default_factory=set)
    """Topics that more than one source reads."""
    unread: set[TopicPartition] = field(default_factory=set)
    """No running query reads these any more."""
    held_back: str | None = None
    """The name, or id, of a stopped query: the group goes no further than what it has read."""

    @property
    def commits(self) -> dict[TopicPartition, int]:
        return {**self.submits, **self.rewinds}


@dataclass
class _Query:
    """The newest run of a query."""

    run_id: str
    name: str | None
    callers: set[Caller] = field(default_factory=set)
    """Those that commit it."""
    timestamp: str = ""
    batch_id: int = -1
    ended: bool = False
    is_released: bool = False
    """Its offsets leave the minimum when it ends."""

    def end(self) -> None:
        self.ended = True
        self.callers.clear()


class GroupState:
    """The position of every query in one group.  Not thread-safe."""

    def __init__(self) -> None:
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        self._offsets: dict[TopicPartition, dict[str, int]] = {}
        """Of each partition the offsets that count, by the query's id."""
        self._submitted: dict[TopicPartition, int] = {}

    def is_new(self, snapshot: Snapshot) -> bool:
        """Return True if the snapshot names partitions that were not submitted yet."""
        return any(place not in self._submitted for source in snapshot.sources for place in source)

    def running(self) -> dict[Run, set[Caller]]:
        """Return the runs that have not ended, each with those that commit it."""
        return {
            Run(query_id, query.run_id): query.callers
            for query_id, query in self._queries.items()
            if not query.ended
        }

    def is_running(self, run: Run) -> bool:
        query = self._queries.get(run.query_id)
        return query is not None and query.run_id == run.run_id and not query.ended

    def progress(self, snapshot: Snapshot, committed: Positions, by: Caller) -> Decision:
        """Take in a snapshot; ``committed`` is what the group had committed, where known.

        A snapshot older than one seen before changes nothing.  The last one of a run that has
        ended is taken too, but it cannot go back; end the run again after it.
        """
        if self._is_late(snapshot):
            return Decision()
        query_id = snapshot.run.query_id
        left, is_next = self._begin(snapshot, by.session)
        query = self._queries[query_id]
        query.callers.add(by)
        is_last, query.ended = query.ended, False
        sources = Counter(chain.from_iterable(snapshot.sources))
        decision = Decision(shared={each.topic for each, count in sources.items() if count > 1})
        for partition, offset in lowest(snapshot.sources).items():
            counting = self._offsets.get(partition, {})
            if counting.keys() - {query_id}:
                decision.shared.add(partition.topic)
                if is_last and query.is_released:
                    continue
            floor = self._submitted.get(partition, committed.get(partition))
            before = counting.get(query_id, floor if is_last else None)
            if before is not None and offset < before:
                if not is_next or is_last:
                    decision.lower[partition] = Lower(offset, before)
                    continue
                decision.other_log[partition] = Lower(offset, before)
            is_first = query_id not in counting and not is_last
            self._offsets.setdefault(partition, {})[query_id] = offset
            least = self._submitted[partition] = min(self._offsets[partition].values())
            if floor is not None and least < floor:
                decision.rewinds[partition] = least
                if partition not in decision.other_log:
                    decision.back[partition] = Lower(least, floor)
            elif is_first:
                decision.rewinds[partition] = least
            else:
                decision.submits[partition] = least
        after = self._after([each for each in left if each not in decision.commits])
        decision.submits.update(after.submits)
        decision.unread = after.unread
        return decision

    def end(self, run: Run) -> Decision:
        if not self.is_running(run):
            return Decision()
        query = self._queries[run.query_id]
        query.end()
        read = self.read_by(run.query_id)
        held = {each for each in read if len(self._offsets[each]) > 1 and not query.is_released}
        self._leave(run.query_id, [each for each in read if each not in held])
        self._queries.move_to_end(run.query_id)
        self._forget_ended()
        decision = self._after(read)
        decision.held_back = (query.name or run.query_id) if held else None
        return decision

    def release(self, name: str) -> Decision | None:
        """Let the group go on without a query, at its end if it runs; None if there is none."""
        found = [each for each, query in self._queries.items() if name in {each, query.name}]
        left: list[TopicPartition] = []
        for query_id in found:
            query = self._queries[query_id]
            query.is_released = True
            if query.ended:
                left += self._leave(query_id, self.read_by(query_id))
        return self._after(left) if found else None

    def _is_late(self, snapshot: Snapshot) -> bool:
        query = self._queries.get(snapshot.run.query_id)
        if query is None:
            return False
        if query.run_id == snapshot.run.run_id:
            return snapshot.batch_id < query.batch_id
        # The clock alone does not say it: it may have been set back between two runs.  A new run
        # goes on from the checkpoint, so its batches are not below those of the run before.
        return snapshot.timestamp < query.timestamp and snapshot.batch_id < query.batch_id

    def _begin(self, snapshot: Snapshot, session: object) -> tuple[list[TopicPartition], bool]:
        """Note the snapshot's run.

        Returns what it, and the runs that it replaces, read no longer, and True for a later batch
        of a known run.
        """
        (query_id, run_id), name = snapshot.run, snapshot.name
        query = self._queries.get(query_id)
        left: list[TopicPartition] = []
        is_next = False
        if query is not None and query.run_id == run_id:
            # While it is idle, Spark's reports have the number of the batch to come.
            is_next = (snapshot.batch_id, snapshot.timestamp) > (query.batch_id, query.timestamp)
        else:
            for each, before in self._queries.items():
                has_name = name is not None and before.name == name
                is_free = before.ended or session in {by.session for by in before.callers}
                if each == query_id or (has_name and is_free):
                    before.is_released = True
                    before.end()
                    left += self._leave(each, self.read_by(each))
            query = self._queries[query_id] = _Query(run_id, name)
        query.timestamp = snapshot.timestamp
        query.batch_id = snapshot.batch_id
        if snapshot.is_whole:
            named = {*chain.from_iterable(snapshot.sources)}
            gone = [each for each in self.read_by(query_id) if each not in named]
            left += self._leave(query_id, gone)
        return left, is_next

    def read_by(self, query_id: str) -> list[TopicPartition]:
        """Return the partitions whose minimum the query counts in."""
        return [each for each, counting in self._offsets.items() if query_id in counting]

    def _leave(self, query_id: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        for partition in partitions:
            del self._offsets[partition][query_id]
            if not self._offsets[partition]:
                del self._offsets[partition]
        return partitions

    def _after(self, partitions: Iterable[TopicPartition]) -> Decision:
        """Return what may go on, and what nobody reads any more, as a query has left or ended."""
        decision = Decision()
        for partition in partitions:
            counting = self._offsets.get(partition, {})
            least = min(counting.values(), default=-1)
            if least > self._submitted.get(partition, -1):
                self._submitted[partition] = decision.submits[partition] = least
            if all(self._queries[each].ended for each in counting):
                self._submitted.pop(partition, None)
                decision.unread.add(partition)
        return decision

    def _forget_ended(self) -> None:
        if len(self._queries) > _MAX_ENDED:
            counting = set().union(*self._offsets.values())
            ended = [e for e, query in self._queries.items() if query.ended and e not in counting]
            for query_id in ended[:-_MAX_ENDED]:
                del self._queries[query_id]
