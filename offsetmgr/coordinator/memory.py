"""The coordinator port in memory, with scripted faults: for tests and simulations.

It has no thread of its own.  With ``call_after`` (the timers of an actor system or of a simulation)
everything happens there, in their order and at their time; without it, everything happens before
the call returns, deadlines too, whatever times the script sets.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from actors import Future
from offsetmgr.answers import FenceCounts
from offsetmgr.codes import CLOSED, TIMED_OUT, UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC, error_info
from offsetmgr.coordinator.base import (
    CommitResult,
    Coordinator,
    Failure,
    FetchResult,
    GroupMember,
    PartitionLog,
    TopicLog,
    TopicNames,
    live_members,
)
from offsetmgr.types import (
    MAX_METADATA_CHARS,
    OffsetAndMetadata,
    TopicPartition,
    check_existing_group,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from offsetmgr.codes import ErrorInfo

Operation = Literal["fetch", "commit", "topic_ids", "topic_logs", "topic_names", "check"]
"""A request of the port, by its method's name."""

_UNKNOWN_TOPIC: Final = error_info(UNKNOWN_TOPIC)
_METADATA_TOO_LARGE: Final = error_info(12)


@dataclass(frozen=True)
class Respond:
    """Answered properly, after ``latency_s`` seconds of its own (0: as the coordinator usually is).

    Beyond the deadline the caller gets TIMED_OUT, and a commit lands late.
    """

    latency_s: float = 0.0


@dataclass(frozen=True)
class Refuse:
    """Answered with Kafka's ``code``: no effect on ``partitions`` (all where None).

    The partitions that are not named are dealt with properly, as Kafka does.
    """

    code: int
    partitions: Collection[TopicPartition] | None = None
    detail: str = ""


@dataclass(frozen=True)
class Unknown:
    """No clear answer: a commit did, did not, or will yet take effect.

    ``code`` is what the caller gets: TIMED_OUT at its deadline, any other after the usual
    latency.  ``lands_after_s`` is when a commit takes effect, in seconds after the broker had
    it; None for never.  A commit half applied names the ``partitions`` that take effect.
    """

    code: int = TIMED_OUT
    lands_after_s: float | None = 0.0
    partitions: Collection[TopicPartition] | None = None


Incident = Respond | Refuse | Unknown
"""The scripted outcome of one request."""


CallAfter: TypeAlias = "Callable[[float, Callable[[], object]], Any]"
"""Calls a function once, after so many seconds; what it returns can be cancelled."""


@dataclass(eq=False)
class SentRequest:
    """One request as the coordinator saw it."""

    operation: Operation
    answer: Callable[[Mapping[TopicPartition, Failure]], Any]
    """Carries out the request except for its failed partitions, and returns the answer."""
    failed: Callable[[Failure], Any]
    """Returns the answer if it failed as a whole."""
    group: str = ""
    """Empty for requests that concern no group."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    """The offsets of a commit; empty for other requests."""
    partitions: Collection[TopicPartition] | None = None
    """The partitions of a fetch or a commit; None for the whole group and for other requests."""
    answered: bool = False
    future: Future[Any] = field(default_factory=Future)
    deadline: Any = None
    """A timer."""


class BrokerState:
    """The broker's state: committed offsets, members and topics.  Thread-safe.

    Tests use it to act as others: a member that joins, a tool that commits.
    A topic that was never created or deleted takes commits for any partition, so tests of commits
    need no set-up.  A created topic takes commits for its partitions, a deleted one takes none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._members: dict[str, list[GroupMember]] = {}
        self._logs: dict[str, dict[int, PartitionLog]] = {}
        """By topic; empty if it was deleted."""
        self._times_ms: dict[TopicPartition, dict[int, int]] = {}
        self._ids: dict[str, int] = {}
        """The number of times each topic was created."""

    def join(self, group: str, client_id: str, host: str = "/127.0.0.1") -> None:
        """Make ``client_id`` a live member: commits of others are refused until it leaves."""
        with self._lock:
            self._members.setdefault(group, []).append(GroupMember("", client_id, host))

    def leave(self, group: str, client_id: str) -> None:
        with self._lock:
            left = [m for m in self._members.get(group, ()) if m.client_id != client_id]
            self._members[group] = left

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        with self._lock:
            self._ids[topic] = self._ids.get(topic, 0) + 1
            self._logs[topic] = {
                number: PartitionLog(0, 0, last_stable_offset=0) for number in range(partitions)
            }

    def set_log(
        self,
        partition: TopicPartition,
        log_start_offset: int,
        high_watermark: int,
        times_ms: Mapping[int, int] | None = None,
        last_stable_offset: int | None = None,
    ) -> None:
        """Give a partition of a created topic the ends of its log.

        ``times_ms`` is the time of records: offset to milliseconds since 1970.  Without a
        ``last_stable_offset`` no transaction is open.  Raises KeyError where the topic was not
        created.
        """
        with self._lock:
            stable = high_watermark if last_stable_offset is None else last_stable_offset
            ends = PartitionLog(log_start_offset, high_watermark, last_stable_offset=stable)
            self._logs[partition.topic][partition.partition] = ends
            self._times_ms[partition] = dict(times_ms or {})

    def delete_topic(self, topic: str) -> None:
        """Delete ``topic`` and the offsets that groups have committed for it, as Kafka does."""
        with self._lock:
            self._logs[topic] = {}
            for offsets in self._committed.values():
                for partition in [p for p in offsets if p.topic == topic]:
                    del offsets[partition]

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            return dict(self._committed.get(group, {}))

    def commit_externally(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit as another program would: a member of the group, or a tool."""
        with self._lock:
            self._committed.setdefault(group, {}).update(offsets)

    def forget(self, group: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """Drop committed offsets (of ``partitions``, or all), as if they had expired."""
        with self._lock:
            offsets = self._committed.get(group, {})
            for partition in list(offsets) if partitions is None else partitions:
                offsets.pop(partition, None)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        offsets = self.committed(group)
        if partitions is None:
            return {**offsets}
        return {partition: offsets.get(partition) for partition in partitions}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Failure]:
        """Commit without a membership; return the refused partitions."""
        with self._lock:
            members = self._members.get(group)
            if members:
                held = Failure(error_info(UNKNOWN_MEMBER_ID), live_members(group, members))
                return dict.fromkeys(offsets, held)
            failures = {}
            for partition, value in offsets.items():
                refusal = self._refusal(partition, value)
                if refusal is None:
                    self._committed.setdefault(group, {})[partition] = value
                else:
                    failures[partition] = Failure(refusal)
            return failures

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | Failure]:
        """Return the ids of topics; empty where the topic was never created, and is just there."""
        with self._lock:
            return {
                topic: str(self._ids.get(topic, ""))
                if self._logs.get(topic, True)
                else Failure(_UNKNOWN_TOPIC)
                for topic in topics
            }

    def topic_logs(
        self, topics: Collection[str], at_ms: int | None = None, *, stable: bool = False
    ) -> dict[str, TopicLog]:
        with self._lock:
            return {topic: self._topic_log(topic, at_ms, stable=stable) for topic in topics}

    def topic_names(self) -> list[str]:
        with self._lock:
            return sorted(topic for topic, logs in self._logs.items() if logs)

    def _topic_log(self, topic: str, at_ms: int | None, *, stable: bool) -> TopicLog:
        logs = dict(self._logs.get(topic, {}))
        if not logs:
            return TopicLog({}, Failure(_UNKNOWN_TOPIC))
        for number, log in logs.items():
            times_ms = self._times_ms.get(TopicPartition(topic, number), {})
            later = [] if at_ms is None else [at for at, ms in times_ms.items() if ms >= at_ms]
            logs[number] = log._replace(
                offset_at=min(later, default=None),
                last_stable_offset=log.last_stable_offset if stable else None,
            )
        return TopicLog(logs, topic_id=str(self._ids[topic]))

    def _refusal(self, partition: TopicPartition, value: OffsetAndMetadata) -> ErrorInfo | None:
        logs = self._logs.get(partition.topic)
        if logs is not None and partition.partition not in logs:
            return _UNKNOWN_TOPIC
        units = len(value.metadata.encode("utf-16-le")) // 2
        return _METADATA_TOO_LARGE if units > MAX_METADATA_CHARS else None


class MemoryCoordinator(Coordinator):
    """A coordinator whose Kafka is a few dictionaries, and whose faults are scripted.

    ``broker`` is the state of that Kafka: tests read it, and change it behind the coordinator's
    back.  A request meets the first incident injected for it, else what ``plan`` says, else
    nothing: it is answered properly after ``latency_s`` seconds.
    """

    fence = FenceCounts(0, 0)
    """A test may set it."""

    def __init__(
        self,
        *,
        call_after: CallAfter = lambda _, call: call(),
        latency_s: float = 0.0,
        plan: Callable[[SentRequest], Incident | None] = lambda _: None,
    ) -> None:
        check_timeout(latency_s, "latency_s")
        self.broker = BrokerState()
        self._call_after = call_after
        self._latency_s = latency_s
        self._plan = plan
        self._lock = threading.Lock()
        self._incidents: dict[Operation, list[tuple[str | None, Incident]]] = defaultdict(list)
        self._paused: set[str | None] = set()
        self._held: list[tuple[SentRequest, Incident]] = []
        self._requests: list[SentRequest] = []
        self.released: list[str] = []
        """The groups that were released, in order."""
        self._in_flight: dict[str, int] = defaultdict(int)
        self.most_in_flight: dict[str, int] = defaultdict(int)
        """The most requests of each group that ever waited for their answer at one time."""
        self._closed = False

    # -- the port

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        check_existing_group(group)
        named = None if partitions is None else tuple(partitions)

        def answer(failed: Mapping[TopicPartition, Failure]) -> FetchResult:
            found = self.broker.fetch(group, named)
            failures = {p: failed[p] for p in found if p in failed}
            return FetchResult({p: o for p, o in found.items() if p not in failures}, failures)

        failed = partial(FetchResult.failed, named)
        request = SentRequest("fetch", answer, failed, group, partitions=named)
        return self._start(request, timeout_s)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        check_existing_group(group)
        sent = dict(offsets)

        def answer(failed: Mapping[TopicPartition, Failure]) -> CommitResult:
            refused = {p: f for p, f in failed.items() if p in sent}
            kept = {p: o for p, o in sent.items() if p not in refused}
            return CommitResult({**refused, **self.broker.commit(group, kept)})

        failed = partial(CommitResult.failed, sent)
        return self._start(
            SentRequest("commit", answer, failed, group, sent, tuple(sent)), timeout_s
        )

    def release(self, group: str) -> None:
        self.released.append(group)

    def topic_ids(
        self, topics: Sequence[str], timeout_s: float
    ) -> Future[Mapping[str, str | Failure]]:
        asked = list(topics)
        failed = partial(dict.fromkeys, asked)
        request = SentRequest("topic_ids", lambda _: self.broker.topic_ids(asked), failed)
        return self._start(request, timeout_s)

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        asked = list(topics)

        def answer(_: object) -> Mapping[str, TopicLog]:
            return self.broker.topic_logs(asked, at_ms, stable=stable)

        def failed(failure: Failure) -> Mapping[str, TopicLog]:
            return dict.fromkeys(asked, TopicLog({}, failure))

        return self._start(SentRequest("topic_logs", answer, failed), timeout_s)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        failed = partial(TopicNames, [])
        request = SentRequest(
            "topic_names", lambda _: TopicNames(self.broker.topic_names()), failed
        )
        return self._start(request, timeout_s)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        return self._start(SentRequest("check", lambda _: None, lambda failure: failure), timeout_s)

    def close(self, timeout: float = 10.0) -> None:
        """Refuse further requests; those under way are answered all the same."""
        check_timeout(timeout)
        with self._lock:
            self._closed = True

    # -- the script

    def inject(self, operation: Operation, *incidents: Incident, group: str | None = None) -> None:
        """Let the next requests of ``operation`` (of ``group``) meet ``incidents``, in order."""
        with self._lock:
            self._incidents[operation].extend((group, incident) for incident in incidents)

    def pause(self, group: str | None = None) -> None:
        """Hold every request (of ``group``) unread, as a stopped broker does, until resume.

        Callers are answered at their deadline; held requests take effect on resume all the same.
        """
        with self._lock:
            self._paused.add(group)

    def resume(self, group: str | None = None) -> None:
        """Carry out all requests that ``pause(group)`` has held, in their order."""
        with self._lock:
            self._paused.discard(group)
            held, self._held = self._held, []
        for request, incident in held:
            self._receive(request, incident)

    # -- the record of requests

    @property
    def requests(self) -> tuple[SentRequest, ...]:
        """All requests so far, oldest first."""
        with self._lock:
            return tuple(self._requests)

    def in_flight(self, group: str) -> int:
        """Return how many requests of ``group`` wait for their answer."""
        with self._lock:
            return self._in_flight[group]

    # -- how a request goes

    def _start(self, request: SentRequest, timeout_s: float) -> Future[Any]:
        check_timeout(timeout_s, "timeout_s")
        group = request.group
        with self._lock:
            self._requests.append(request)
            self._in_flight[group] += 1
            self.most_in_flight[group] = max(self.most_in_flight[group], self._in_flight[group])
            injected = self._take_injected(request)
            closed = self._closed
        if closed:
            self._finish(request, Failure(CLOSED))
            return request.future
        incident = injected or self._plan(request) or Respond()
        own = incident.latency_s if isinstance(incident, Respond) else 0.0
        self._call_after(own or self._latency_s, partial(self._receive, request, incident))
        if not request.answered:
            timed_out = partial(self._finish, request, Failure(error_info(TIMED_OUT)))
            request.deadline = self._call_after(timeout_s, timed_out)
        return request.future

    def _receive(self, request: SentRequest, incident: Incident) -> None:
        with self._lock:
            if not self._paused.isdisjoint((None, request.group)):
                self._held.append((request, incident))
                return
        match incident:
            case Refuse(code, named, detail):
                refused = Failure(error_info(code), detail)
                self._finish(request, refused if named is None else dict.fromkeys(named, refused))
            case Unknown(code, lands_after_s, named):
                if request.operation == "commit" and lands_after_s is not None:
                    landing = request.offsets
                    if named is not None:
                        landing = {p: landing[p] for p in landing if p in named}
                    land = partial(self.broker.commit, request.group, landing)
                    if lands_after_s:
                        self._call_after(lands_after_s, land)
                    else:
                        land()
                if code != TIMED_OUT:  # that one comes at the deadline
                    self._finish(request, Failure(error_info(code)))
            case _:
                self._finish(request, {})

    def _finish(
        self, request: SentRequest, failed: Failure | Mapping[TopicPartition, Failure]
    ) -> None:
        """Answer ``request``, unless its deadline has passed."""
        answer = request.failed(failed) if isinstance(failed, Failure) else request.answer(failed)
        with self._lock:
            if request.answered:
                return
            request.answered = True
            self._in_flight[request.group] -= 1
        if request.deadline is not None:
            request.deadline.cancel()
        request.future.set(answer)

    def _take_injected(self, request: SentRequest) -> Incident | None:
        queue = self._incidents[request.operation]
        for place, (group, incident) in enumerate(queue):
            if group is None or group == request.group:
                del queue[place]
                return incident
        return None
