"""The coordinator port with a fence: what a group commits, its newest service alone commits."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from typing import TYPE_CHECKING, Final

from actors import Future, MonotonicClock
from actors.timers import ThreadTimers
from offsetmgr.coordinator.base import CommitResult, Failure, FenceCounts, FetchResult
from offsetmgr.coordinator.batches import commit_in_batches
from offsetmgr.coordinator.clients import DEFAULTS, ConnectionReports, check_thread_room
from offsetmgr.coordinator.explain import CLOSED, one_line
from offsetmgr.coordinator.fence.group import FencedGroup, Standing
from offsetmgr.coordinator.fence.member import INSTANCE, Member
from offsetmgr.coordinator.kafka import check_numbers
from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.base import TopicLog, TopicNames
    from offsetmgr.coordinator.kafka import KafkaCoordinator
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

SESSION_TIMEOUT_S: Final = 45.0
"""How long Kafka keeps a group for a service that is silent: it died, or is cut off.  Its
successor does not wait for that; ordinary consumers and Kafka's own tools do."""

MOST_GROUPS: Final = 200
"""Groups with a fence: each costs five threads, a connection to its coordinator and 0.5 MB."""

_HEARTBEATS: Final = 9
"""In one session timeout."""

_LEAVE_SHARE: Final = 0.8
"""Of the time to close, what leaving the groups may take."""

TOO_MANY_GROUPS: Final = ErrorInfo(
    81, "TOO_MANY_FENCED_GROUPS", True, Scope.GROUP, Fault.OPERATOR, Verdict.REFUSED,  # noqa: FBT003
    "the service already keeps as many groups with its fence as limits.fenced_groups allows; "
    "raise it, run another service for some of the groups, or switch the fence off",
)  # fmt: skip
"""There is no room for the group until the managers of another one are gone."""


class FencedCoordinator:
    """Commits as the member of each group; everything else is Kafka's other side as it is.

    Thread-safe; no method but ``close`` blocks.  It is for those who own groups: reading
    partitions through it takes a group over as committing does, so that what is read cannot be
    changed any more by the service that had the group before.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        inner: KafkaCoordinator,
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        most_groups: int = MOST_GROUPS,
    ) -> None:
        """``config`` as for ``inner``, which is closed with this one."""
        self._inner = inner
        self._most_groups = most_groups
        self._client_id = (
            f"{config.get('client.id', 'offsetmgr')}-{socket.gethostname()}-{os.getpid()}-"
            f"{uuid.uuid4().hex[:8]}"
        )
        self._config: dict[str, object] = {
            **DEFAULTS,
            **config,
            "client.id": self._client_id,
            "enable.auto.commit": False,
            "group.instance.id": INSTANCE,
            "group.protocol": "classic",
            "heartbeat.interval.ms": int(session_timeout_s * 1_000 / _HEARTBEATS),
            # Java's consumers do not offer it by default, so Kafka keeps those out.
            "partition.assignment.strategy": "roundrobin",
            "session.timeout.ms": int(session_timeout_s * 1_000),
            # What is written is answered, or its connection ended, within this time.
            "socket.timeout.ms": 10_000,
        }
        self._clock = MonotonicClock()
        self._listener = ConnectionReports(self._clock)
        self._timers = ThreadTimers(self._clock, name="kafka-fence-deadlines")
        self._lock = threading.Lock()
        self._groups: dict[str, FencedGroup] = {}
        self._closed = False

    @property
    def reader(self) -> KafkaCoordinator:
        """The side that takes no group over."""
        return self._inner

    @property
    def fence(self) -> FenceCounts:
        """How many groups are this service's, and how many another one's by now."""
        with self._lock:
            standings = [group.standing for group in self._groups.values()]
        return FenceCounts(standings.count(Standing.HELD), standings.count(Standing.FENCED))

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Take the group over, then fetch; whoever wants all partitions only looks."""
        if not partitions:
            return self._inner.fetch(group, partitions, timeout_s)
        deadline_s = self._clock.now() + timeout_s
        answer: Future[FetchResult] = Future()

        def claimed(kept: FencedGroup | Failure) -> None:
            if isinstance(kept, Failure):
                answer.set(FetchResult({}, dict.fromkeys(partitions, kept)))
                return
            fetched = self._inner.fetch(group, partitions, self._left_s(deadline_s))
            # Taken note of before it is used.
            fetched.add_done_callback(lambda done: kept.read(done.get().offsets))
            fetched.add_done_callback(lambda done: answer.set(done.get()))

        self._claim(group, partitions, timeout_s, claimed)
        return answer

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Take the group over, where that is still to be done, and commit as its member."""
        answer: Future[CommitResult] = Future()
        if not offsets:
            answer.set(CommitResult({}))
            return answer
        offsets = dict(offsets)
        check_numbers(offsets)
        deadline_s = self._clock.now() + timeout_s

        def claimed(kept: FencedGroup | Failure) -> None:
            if isinstance(kept, Failure):
                answer.set(CommitResult(dict.fromkeys(offsets, kept)))
                return

            def send(batch: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
                return kept.commit(batch, self._left_s(deadline_s))

            done = commit_in_batches(group, offsets, send)
            done.add_done_callback(lambda done: answer.set(done.get()))

        self._claim(group, offsets, timeout_s, claimed)
        return answer

    def release(self, group: str) -> None:
        """Leave the group, so that others may commit, join or reset it."""
        with self._lock:
            kept = self._groups.get(group)
        if kept is not None:
            kept.release()

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """As without a fence."""
        return self._inner.topic_logs(topics, timeout_s, at_ms, stable=stable)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """The topics of the cluster, sorted."""
        return self._inner.topic_names(timeout_s)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """As without a fence."""
        return self._inner.check(timeout_s)

    def close(self, timeout: float = 10.0) -> None:
        """Leave all groups, as far as the time allows, then close the other side too."""
        deadline_s = self._clock.now() + timeout
        with self._lock:
            self._closed = True
            groups = list(self._groups.values())
        for group in groups:
            group.release(close=True)
        leave_by_s = self._clock.now() + timeout * _LEAVE_SHARE
        for group in groups:
            group.join(self._left_s(leave_by_s))
        self._timers.close(self._left_s(deadline_s))
        self._inner.close(self._left_s(deadline_s))

    def _claim(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        timeout_s: float,
        then: Callable[[FencedGroup | Failure], None],
    ) -> None:
        """Call ``then`` with the group once this service is its member; else with why not."""
        check_group(group)  # librdkafka ends the process where it is empty
        with self._lock:
            kept = self._kept(group)
            if not isinstance(kept, Failure):
                topics = sorted({each.topic for each in partitions})
                claimed = kept.claim(topics, timeout_s)
        if isinstance(kept, Failure):
            then(kept)
        else:
            claimed.add_done_callback(lambda done: then(done.get() or kept))

    def _kept(self, name: str) -> FencedGroup | Failure:
        """The group, if there is room for it; with the lock held."""
        group = self._groups.get(name)
        if self._closed:
            return Failure(CLOSED)
        if group is not None and (group.active or group.standing is Standing.FENCED):
            return group
        for other in [each for each, found in self._groups.items() if found.forgettable]:
            del self._groups[other]
        if sum(each.active for each in self._groups.values()) >= self._most_groups:
            why = f"group {one_line(name)} is one too many for {self._most_groups} fenced groups"
            return Failure(TOO_MANY_GROUPS, why)
        group = self._groups.get(name)
        if group is None:
            group = FencedGroup(name, self._inner, self._open, self._client_id, self._timers)
            self._groups[name] = group
        return group

    def _open(self, group: str) -> Member:
        check_thread_room()
        return Member({**self._config, "group.id": group}, self._listener)

    def _left_s(self, deadline_s: float) -> float:
        return max(deadline_s - self._clock.now(), 0.0)
