"""Checkpoints that the service follows: their offsets go to the same managers as any client's."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct
from prometheus_client.registry import Collector

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import OffsetManagerError
from offsetmgr.lag.metrics import Series, labels_of
from offsetmgr.local import LocalOffsets
from offsetmgr.spark.follow import FollowedQuery, Follower
from offsetmgr.spark.logs import read_logs
from offsetmgr.types import FlushResult, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.client.offsets import LogEnds
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.manager import Factory
    from offsetmgr.service.access import Requester
    from offsetmgr.service.settings import Settings

OWNER: Final = "follow"
"""The name that owns the managers of followed checkpoints."""

ENDS_S: Final = 5.0
"""The ends of logs are read again after so long, if somebody looks."""

State = Literal["running", "idle", "stopped", "quiet", "waiting", "failing"]


class FollowedCheckpoint(Struct, frozen=True):
    """A checkpoint that the service follows."""

    follow: Annotated[str, Meta(description="Of the setting [follow.NAME].")]
    name: str
    checkpoint: str
    groups: list[str]
    state: Annotated[
        State,
        Meta(
            description="running: a batch was finished within keep_alive_s; else idle (nothing to "
            "read), stopped (records wait) or quiet (not known which). waiting: no batch yet. "
            "failing: see problem."
        ),
    ]
    query_id: str | None
    batch_id: int | None
    batch_at: Annotated[float | None, Meta(description="When the batch began; since 1970.")]
    records: int | None
    lag: int | None
    problem: str | None
    looked_at: float | None


class ServiceOffsets(LocalOffsets):
    """The managers of the service, for one owner in its process."""

    def __init__(self, factory: Factory, coordinator: Coordinator, url: str) -> None:
        self._use(coordinator, url, OWNER, factory=factory)

    def _close(self, deadline: Deadline) -> None:
        # Managers and coordinator are the service's.
        del deadline
        self._ended.set()
        self._closed_with(FlushResult({}, {}))


class Follows(Collector):
    """The followed checkpoints of the service, and what it says of them."""

    def __init__(
        self,
        settings: Settings,
        factory: Factory,
        coordinator: Coordinator,
        wall: Callable[[], float],
    ) -> None:
        self._cluster = settings.cluster_name
        self._offsets = ServiceOffsets(factory, coordinator, str(settings.address))
        self._follower = Follower(settings.follow, self._offsets, wall=wall)
        self._ends: Mapping[TopicPartition, LogEnds] = {}
        self._ends_s = -ENDS_S

    def start(self) -> None:
        self._follower.start()

    def close(self) -> None:
        self._follower.close()
        self._offsets.close()

    def views(self, by: Requester) -> list[FollowedCheckpoint]:
        """Return the checkpoints that ``by`` may see; it may wait for Kafka."""
        found = self._follower.queries()
        ends = self._read_ends({place.topic for each in found for place in _offsets(each)})
        return [
            _view(each, ends)
            for each in found
            if (all(map(by.sees, each.groups)) if each.groups else by.sees_everything)
        ]

    def _read_ends(self, topics: set[str]) -> Mapping[TopicPartition, LogEnds]:
        if topics and time.monotonic() - self._ends_s >= ENDS_S:
            try:
                self._ends, _ = read_logs(self._offsets, topics, Deadline(ENDS_S))
            except OffsetManagerError:
                self._ends = {}
            self._ends_s = time.monotonic()
        return self._ends

    def collect(self) -> Iterable[Series]:
        if not self._follower.searches:
            return
        state = Series("offsetmgr_followed_checkpoints", "Followed checkpoints, by state.")
        text = "When the last finished batch of a followed query began."
        at = Series("offsetmgr_followed_batch_timestamp_seconds", text)
        text = "Looks at checkpoints that failed."
        failures = Series("offsetmgr_follow_failures", text, "counter")
        text = "Requests to the file systems of checkpoints."
        requests = Series("offsetmgr_follow_requests", text, "counter")

        def labels(**values: str) -> str:
            return labels_of(("cluster_name", *values), (self._cluster, *values.values()))

        queries = self._follower.queries()
        for (follow, name), count in Counter((q.follow, _state(q, None)) for q in queries).items():
            state.set(labels(follow=follow, state=name), count)
        # The newest first: two may have one name, and the first value of a series counts.
        for each in sorted(queries, key=lambda query: -(query.batch_at_s or 0.0)):
            at.set(labels(follow=each.follow, name=each.name), each.batch_at_s)
        for follow, count in self._follower.failures.items():
            failures.set(labels(follow=follow), count)
        for kind, count in self._follower.requests.items():
            requests.set(labels(kind=kind), count)
        yield from (state, at, failures, requests)


def _offsets(query: FollowedQuery) -> dict[TopicPartition, int]:
    return {place: at for each in query.offsets.values() for place, at in each.items()}


def _view(query: FollowedQuery, ends: Mapping[TopicPartition, LogEnds]) -> FollowedCheckpoint:
    offsets = _offsets(query)
    lag: int | None = None
    if offsets and ends.keys() >= offsets.keys():
        lag = sum(max(0, ends[place].high_watermark - at) for place, at in offsets.items())
    return FollowedCheckpoint(
        query.follow,
        query.name,
        query.location,
        list(query.groups),
        _state(query, lag),
        query.query_id,
        query.batch_id,
        query.batch_at_s,
        query.records,
        lag,
        query.problem,
        query.looked_at_s,
    )


def _state(query: FollowedQuery, lag: int | None) -> State:
    if query.problem is not None:
        return "failing"
    if query.batch_id is None:
        return "waiting"
    if query.is_running:
        return "running"
    if lag is None:
        return "quiet"
    return "stopped" if lag else "idle"
