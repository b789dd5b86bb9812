"""A cluster in memory, for what reads groups and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.answers import GroupMember
from offsetmgr.errors import KafkaRequestError, OffsetManagerError, error_info
from offsetmgr.kafka.cluster import (
    ClusterReader,
    GroupDescription,
    GroupListing,
    GroupListings,
)
from offsetmgr.kafka.log_reader import NextRecord
from offsetmgr.lag.watcher import Watcher
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.lag.burrow import Status
    from offsetmgr.lag.measure import PartitionLag

ORDERS = TopicPartition("orders", 0)
ROUND_S = 30
UNKNOWN_TOPIC = 3
NO_READ = 29
TIMED_OUT = -185


class FakeCluster(ClusterReader):
    """Committed offsets and logs; counts the questions it is asked."""

    def __init__(self) -> None:  # it connects to nothing
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.members: dict[str, tuple[GroupMember, ...]] = {}
        self.times: dict[TopicPartition, list[tuple[float, int]]] = {}
        """The second and the offset of each record; no right to read the logs of others."""
        self.leaderless: set[TopicPartition] = set()
        self.held_at: int | None = None
        """The offset at which an open transaction begins."""
        self.down = False
        self.unlisted = False
        """The list of groups cannot be read."""
        self.asked: list[str] = []

    def commit(self, group: str, where: TopicPartition, offset: int) -> None:
        self.offsets.setdefault(group, {})[where] = OffsetAndMetadata(offset)

    def member(self, group: str, *partitions: TopicPartition) -> GroupMember:
        made = GroupMember("one-1", "one", "/10.0.0.1", "", partitions)
        self.members[group] = (made,)
        return made

    def groups(self) -> GroupListings:
        self.asked.append("groups")
        if self.unlisted:
            return GroupListings([], (failed("list of groups"),))
        return GroupListings([GroupListing("shared", "Stable", "share")])

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        self.asked.append("describe")
        if self.down:
            return {group: failed(group) for group in groups}
        return {group: self._described(group) for group in groups}

    def _described(self, group: str) -> GroupDescription:
        members = self.members.get(group, ())
        state = "Stable" if members else "Empty" if group in self.offsets else "Dead"
        return GroupDescription(state, "classic", "broker:9092 (1)", "range", members)

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        self.asked.append("committed")
        if self.down:
            return {group: failed(group) for group in groups}
        return {group: dict(self.offsets.get(group, {})) for group in groups}

    def log_ranges(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionRange | OffsetManagerError]:
        self.asked.append("log_ranges")
        if self.down:
            return {each: failed(str(each)) for each in partitions}
        return {each: self._range(each) for each in partitions}

    def _range(self, where: TopicPartition) -> PartitionRange | OffsetManagerError:
        end = self.ends.get(where)
        if where in self.leaderless:
            return failed(str(where))
        return no_topic(where) if end is None else PartitionRange(self.starts.get(where, 0), end)

    def next_records(
        self, offsets: Mapping[TopicPartition, Collection[int]]
    ) -> dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError]:
        self.asked += ["next_records"] if offsets else []
        return {
            (where, each): self._next(where, each)
            for where, given in offsets.items()
            for each in given
        }

    def _next(self, where: TopicPartition, offset: int) -> NextRecord | OffsetManagerError:
        if where not in self.times:
            return NO_RIGHT
        if self.held_at is not None:
            return NextRecord(self.held_at, None)
        later = ((at, at_s) for at_s, at in self.times[where] if at >= offset)
        return NextRecord(*next(later, (self.ends[where], None)))


class Watched:
    """A watcher of the group ``etl`` whose cluster and clock the test moves."""

    def __init__(self, allowed_lag: int = 0, min_distance_s: float = 0.0) -> None:
        self.kafka = FakeCluster()
        self.now_s = 1_000_000.0
        self.watcher = Watcher(
            self.kafka,
            lambda: self.now_s,
            allowed_lag=allowed_lag,
            min_distance_s=min_distance_s,
        )

    def round(
        self,
        end: int,
        committed: int | None = None,
        *,
        logged: list[CommitRecord] | None = None,
    ) -> None:
        """Let half a minute pass, in which the log and the group came to these offsets."""
        self.now_s += ROUND_S
        self.kafka.ends[ORDERS] = end
        if committed is not None:
            self.kafka.commit("etl", ORDERS, committed)
        self.watcher.poll(["etl"], logged)

    def status(self) -> Status | None:
        return self.watcher.view["etl"].status

    def partition(self) -> PartitionLag:
        (found,) = self.watcher.view["etl"].partitions
        return found


NO_RIGHT = KafkaRequestError(
    "read of orders", error_info(NO_READ), "this user lacks READ on orders"
)


def failed(what: str) -> KafkaRequestError:
    return KafkaRequestError(what, error_info(TIMED_OUT))


def no_topic(where: TopicPartition) -> KafkaRequestError:
    return KafkaRequestError(f"log of {where}", error_info(UNKNOWN_TOPIC))
