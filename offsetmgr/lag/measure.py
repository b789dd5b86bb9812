"""The lag of groups at one moment, in records; ``ages.py`` adds the seconds."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.acked_ranges import pending_below
from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.cluster import GroupListings
from offsetmgr.kafka.errors import tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.answers import GroupMember
    from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
    from offsetmgr.lag.burrow import ObservedCommit, Status
    from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition


class PartitionLag(NamedTuple):
    """A partition that a group has committed, or that is assigned to one of its members."""

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None = None
    """The offset after the last record; None where it could not be read."""
    lag: int | None = None
    """Records between the two, never below 0; None where one of them is not known."""
    start: int | None = None
    """The offset of the oldest record of the log."""
    seconds: float | None = None
    """Age of the first record that is not committed; None where it is not known."""
    seconds_unknown: str = ""
    """Why it is not known although there is lag."""
    held_back: bool = False
    """True if an open transaction holds these records back."""
    member: GroupMember | None = None
    """The live member it is assigned to."""
    error: OffsetManagerError | None = None
    """Why the end of the log could not be read."""
    status: Status | None = None
    """OK or worse by Burrow's rules; this and what follows is known only of a watched group."""
    commits: tuple[ObservedCommit, ...] = ()
    """The last commits, oldest first."""
    rate_in: float | None = None
    """Records written a second; None after a single round."""
    rate_out: float | None = None
    """Records committed a second."""

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until the lag is gone at these rates; None where it does not shrink."""
        arriving, leaving = self.rate_in, self.rate_out
        if self.status is not None and self.lag == 0:
            return 0.0
        if self.lag is None or arriving is None or leaving is None or leaving <= arriving:
            return None
        return self.lag / (leaving - arriving)

    @property
    def pending_acks(self) -> int | None:
        """The offsets below the highest acknowledged one that are not acknowledged.

        0 for a group that commits no acks, None where the metadata is none of acks.
        """
        if self.committed is None or self.end is None:
            return None
        return pending_below(self.committed.offset, self.committed.metadata, self.end)

    @property
    def out_of_range(self) -> bool:
        """True if the committed offset lies outside its log."""
        if self.committed is None or self.end is None or self.start is None:
            return False
        return not self.start <= self.committed.offset <= self.end

    @property
    def is_beyond_end(self) -> bool:
        """True if the committed offset lies behind the end of its log."""
        return (
            self.out_of_range
            and self.committed is not None
            and (self.committed.offset > (self.end or 0))
        )


class GroupLag(NamedTuple):
    """A group with its partitions, sorted."""

    name: str
    description: GroupDescription | None
    partitions: tuple[PartitionLag, ...]
    error: OffsetManagerError | None = None
    """Why it could not be read; of a watched group all else is then of an earlier round."""
    status: Status | None = None
    """Of a watched group."""
    lag_points: tuple[int | None, ...] = ()
    """Its lag in the last rounds of the watch, oldest first; None where it was not known."""

    @property
    def exists(self) -> bool:
        """True if Kafka knows the group: it has members or committed offsets."""
        dead = self.description is not None and self.description.state == "Dead"
        return self.error is None and not (dead and not self.partitions)

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets."""
        return {
            each.partition: each.committed for each in self.partitions if each.committed is not None
        }

    @property
    def total(self) -> int | None:
        """Records behind in all partitions; None where nothing is committed."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        """The most seconds that a partition is behind; None where none is known."""
        return worst_seconds((each.lag, each.seconds) for each in self.partitions)


def worst_seconds(behind: Iterable[tuple[int | None, float | None]]) -> float | None:
    """Return the worst of some partitions' seconds, each given with its lag in records.

    Those without lag count only where all are without: theirs is not an answer for the others.
    """
    known = [(lag, seconds) for lag, seconds in behind if lag is not None]
    lagging = [seconds for lag, seconds in known if lag]
    if not lagging:
        return 0.0 if known else None
    return max((seconds for seconds in lagging if seconds is not None), default=None)


def read_groups(
    source: ClusterReader, groups: Iterable[str], also: Iterable[TopicPartition] = ()
) -> tuple[dict[str, GroupLag], dict[TopicPartition, PartitionRange | OffsetManagerError]]:
    """Return ``groups`` with their lag in records, and the logs of these and of ``also``."""
    names = list(dict.fromkeys(groups))
    described = source.describe(names)
    # Before the ends: a record that arrives in between makes lag, never a negative one.
    # A coordinator that does not answer is not waited for twice.
    answered = [name for name in names if not isinstance(described[name], OffsetManagerError)]
    committed = source.committed(answered)
    read = [_group(name, described[name], committed.get(name, {})) for name in names]
    partitions = (each.partition for group in read for each in group.partitions)
    logs = source.log_ranges(dict.fromkeys(chain(also, partitions)))
    measured = {group.name: _with_logs(group, logs) for group in read}
    # A log whose records are deleted as soon as they are committed may have moved on meanwhile.
    passed = [name for name, group in measured.items() if any(map(_expired, group.partitions))]
    for name, offsets in source.committed(passed).items() if passed else ():
        measured[name] = _with_logs(_group(name, described[name], offsets), logs)
    return measured, logs


def as_listed(source: ClusterReader, groups: Iterable[GroupLag]) -> dict[str, GroupLag]:
    """Return those of ``groups`` that commit no offsets, with the state and type of Kafka's list.

    Kafka describes share groups, and others of newer types, as if they did not exist.  If the list
    lacks some groups, so that this is not known, the group has the error.
    """
    dead = {each.name: each for each in groups if each.error is None and not each.exists}
    listings = tried(source.groups) if dead else GroupListings([])
    if isinstance(listings, OffsetManagerError):
        listings = GroupListings([], (listings,))
    found = {}
    if listings.errors:
        found = {name: GroupLag(name, None, (), listings.errors[0]) for name in dead}
    for name, state, kind in listings.groups:
        group = dead.get(name)
        if group is not None and group.description is not None:
            described = group.description._replace(state=state, type=kind)
            found[name] = group._replace(description=described)
    return found


def _group(
    name: str,
    described: GroupDescription | OffsetManagerError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | OffsetManagerError,
) -> GroupLag:
    """Return the partitions that a group has committed or that its members read, without ends."""
    if isinstance(committed, OffsetManagerError):
        return GroupLag(name, None, (), committed)
    if isinstance(described, OffsetManagerError):
        return GroupLag(name, None, (), described)
    members = {each: member for member in described.members for each in member.partitions}
    partitions = (
        PartitionLag(each, committed.get(each), member=members.get(each))
        for each in sorted({*committed, *members})
    )
    return GroupLag(name, described, tuple(partitions))


def _with_logs(
    group: GroupLag, logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError]
) -> GroupLag:
    partitions = (_with_log(each, logs.get(each.partition)) for each in group.partitions)
    return group._replace(partitions=tuple(partitions))


def _with_log(lag: PartitionLag, log: PartitionRange | OffsetManagerError | None) -> PartitionLag:
    if isinstance(log, OffsetManagerError):
        return lag._replace(error=log)
    if log is None:
        return lag
    start, end = log
    behind = None if lag.committed is None else max(end - lag.committed.offset, 0)
    seconds = 0.0 if behind == 0 else None
    return lag._replace(start=start, end=end, lag=behind, seconds=seconds)


def _expired(lag: PartitionLag) -> bool:
    return lag.committed is not None and lag.committed.offset < (lag.start or 0)
