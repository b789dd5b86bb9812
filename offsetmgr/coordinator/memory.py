"""The coordinator port in memory, with scripted faults: for tests and simulations.

It has no thread of its own.  Given ``call_after`` (the timers of an actor system or of a
simulation) everything happens there, in the order and at the time those decide; given none,
requests are answered before the call returns, and what would need time is refused.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from actors import Future
from offsetmgr.coordinator.base import (
    NO_FENCE,
    CommitResult,
    Failure,
    FetchResult,
    TopicLog,
    TopicNames,
)
from offsetmgr.coordinator.explain import CLOSED, Member
from offsetmgr.coordinator.faults import (
    TIMED_OUT,
    Answer,
    Incident,
    Operation,
    Refuse,
    Request,
    Unknown,
)
from offsetmgr.coordinator.memory_state import BrokerState
from offsetmgr.errors import InvalidValueError, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from actors import Clock
    from offsetmgr.coordinator.faults import Reply
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "TIMED_OUT",
    "Answer",
    "BrokerState",
    "CallAfter",
    "Incident",
    "Member",
    "MemoryCoordinator",
    "Operation",
    "Refuse",
    "Request",
    "Unknown",
]

HISTORY_LIMIT: Final = 100_000
"""Requests remembered; the oldest are forgotten first."""

_T = TypeVar("_T", bound="Reply")
_NO_FAILURES: Final[Mapping[TopicPartition, Failure]] = {}
_TIMED_OUT = Failure(error_info(TIMED_OUT))


class Timer(Protocol):
    """What ``call_after`` returns."""

    def cancel(self) -> object:
        """Make sure that the function is not called, if it was not yet."""


class CallAfter(Protocol):
    """Calls ``fn`` once, ``delay_s`` from now."""

    def __call__(self, delay_s: float, fn: Callable[[], None], /) -> Timer:
        """Return at once."""


@dataclass
class _Call(Generic[_T]):
    """A request under way, or one that was answered."""

    request: Request
    answer: Callable[[Failure | Mapping[TopicPartition, Failure]], _T]
    """Do what was asked but for these partitions, and answer; do nothing where all failed."""
    land: Callable[[Collection[TopicPartition] | None], None]
    """Take effect on these partitions (None: all), with nobody told."""
    future: Future[_T] = field(default_factory=Future)
    deadline: Timer | None = None


def _no_plan(request: Request) -> Incident | None:  # noqa: ARG001 -- the no-op twin of a plan
    return None


def _no_effect(partitions: Collection[TopicPartition] | None) -> None:
    """Stand in for the landing of a request that only reads."""


class MemoryCoordinator:
    """A coordinator whose Kafka is a few dictionaries, and whose faults are scripted.

    ``broker`` is what that Kafka knows: tests look at it and change it behind the coordinator's
    back.  A request meets the first incident injected for it, else what ``plan`` says, else
    nothing: it is answered properly after ``latency_s`` seconds.
    """

    def __init__(
        self,
        *,
        call_after: CallAfter | None = None,
        clock: Clock | None = None,
        latency_s: float = 0.0,
        plan: Callable[[Request], Incident | None] = _no_plan,
    ) -> None:
        """``clock`` dates the requests; without one, all of them happen at 0."""
        self.broker = BrokerState()
        self.fence = NO_FENCE
        """Set it to play a service that keeps groups, or lost some to another one."""
        self._call_after = call_after
        self._clock = clock
        self._latency_s = latency_s
        self._plan = plan
        self._lock = threading.Lock()
        self._incidents: dict[Operation, list[tuple[str | None, Incident]]] = defaultdict(list)
        self._paused: set[str | None] = set()
        self._held: list[tuple[_Call[Any], Incident]] = []
        self._calls: deque[_Call[Any]] = deque(maxlen=HISTORY_LIMIT)
        self._released: deque[str] = deque(maxlen=HISTORY_LIMIT)
        self._number = 0
        self._in_flight: dict[str, int] = defaultdict(int)
        self._most_in_flight: dict[str, int] = defaultdict(int)
        self._closed = False
        self._need_time(latency_s, "latency_s")

    # -- the port

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Committed offsets of ``partitions`` (all of the group's where None)."""

        def answer(failed: Failure | Mapping[TopicPartition, Failure]) -> FetchResult:
            if isinstance(failed, Failure):
                group_failure = failed if partitions is None else None
                return FetchResult({}, dict.fromkeys(partitions or (), failed), group_failure)
            found = self.broker.fetch(group, partitions)
            failures = {p: failed[p] for p in found if p in failed}
            return FetchResult({p: o for p, o in found.items() if p not in failures}, failures)

        named = None if partitions is None else tuple(partitions)
        return self._start("fetch", group, {}, named, timeout_s, answer)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets`` as a simple (memberless) committer."""
        sent = dict(offsets)

        def land(only: Collection[TopicPartition] | None) -> None:
            kept = sent if only is None else {p: o for p, o in sent.items() if p in only}
            self.broker.commit(group, kept)

        def answer(failed: Failure | Mapping[TopicPartition, Failure]) -> CommitResult:
            if isinstance(failed, Failure):
                return CommitResult(dict.fromkeys(sent, failed))
            refused = {p: f for p, f in failed.items() if p in sent}
            kept = {p: o for p, o in sent.items() if p not in refused}
            return CommitResult({**refused, **self.broker.commit(group, kept)})

        return self._start("commit", group, sent, tuple(sent), timeout_s, answer, land)

    @property
    def reader(self) -> MemoryCoordinator:
        """Itself."""
        return self

    def release(self, group: str) -> None:
        """Nothing is kept for a group; it is remembered that it was released."""
        with self._lock:
            self._released.append(group)

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """Partitions of ``topics`` with the ends of their logs, and their offsets at a time."""

        def answer(
            failed: Failure | Mapping[TopicPartition, Failure],
        ) -> Mapping[str, TopicLog]:
            if isinstance(failed, Failure):
                return dict.fromkeys(topics, TopicLog({}, failed))
            return self.broker.topic_logs(topics, at_ms, stable=stable)

        return self._start("topic_logs", "", {}, None, timeout_s, answer)

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """The topics of the cluster, sorted."""

        def answer(failed: Failure | Mapping[TopicPartition, Failure]) -> TopicNames:
            if isinstance(failed, Failure):
                return TopicNames([], failed)
            return TopicNames(self.broker.topic_names())

        return self._start("topic_names", "", {}, None, timeout_s, answer)

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """Whether this Kafka answers: None where it does."""

        def answer(failed: Failure | Mapping[TopicPartition, Failure]) -> Failure | None:
            return failed if isinstance(failed, Failure) else None

        return self._start("check", "", {}, None, timeout_s, answer)

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 -- the port's; nothing to wait for
        """Refuse further requests; those under way are answered all the same."""
        with self._lock:
            self._closed = True

    # -- the script

    def inject(self, operation: Operation, *incidents: Incident, group: str | None = None) -> None:
        """Let the next requests of ``operation`` (of ``group``) meet ``incidents``, in order."""
        for incident in incidents:
            self._check_time(incident)
        with self._lock:
            self._incidents[operation].extend((group, incident) for incident in incidents)

    def pause(self, group: str | None = None) -> None:
        """Hold every request (of ``group``) unread, as a stopped broker does, until resume.

        Callers are answered at their deadline; what is held takes effect on resume all the same.
        """
        self._need_time(float("inf"), "pause")
        with self._lock:
            self._paused.add(group)

    def resume(self, group: str | None = None) -> None:
        """Deal with all that was held by ``pause(group)``, in the order it came."""
        with self._lock:
            self._paused.discard(group)
            held, self._held = self._held, []
        for call, incident in held:
            self._receive(call, incident)

    # -- what was seen

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests so far, oldest first (the last 100,000)."""
        with self._lock:
            return tuple(call.request for call in self._calls)

    @property
    def released(self) -> tuple[str, ...]:
        """The groups that were released, in order (the last 100,000)."""
        with self._lock:
            return tuple(self._released)

    def in_flight(self, group: str) -> int:
        """How many requests of ``group`` wait for their answer."""
        with self._lock:
            return self._in_flight[group]

    def most_in_flight(self, group: str) -> int:
        """How many requests of ``group`` ever waited for their answer at one time."""
        with self._lock:
            return self._most_in_flight[group]

    # -- how a request goes

    def _start(
        self,
        operation: Operation,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        partitions: Collection[TopicPartition] | None,
        timeout_s: float,
        answer: Callable[[Failure | Mapping[TopicPartition, Failure]], _T],
        land: Callable[[Collection[TopicPartition] | None], None] = _no_effect,
    ) -> Future[_T]:
        with self._lock:
            self._number += 1
            now = self._now()
            request = Request(self._number, operation, group, offsets, partitions, now, None, None)
            call = _Call(request, answer, land)
            self._calls.append(call)
            self._in_flight[group] += 1
            self._most_in_flight[group] = max(self._most_in_flight[group], self._in_flight[group])
            injected = self._take_injected(request)
            closed = self._closed
        if closed:
            self._settle(call, answer(Failure(CLOSED)))
            return call.future
        incident = injected or self._plan(request) or Answer()
        self._check_time(incident)
        if self._call_after is None:
            self._receive(call, incident)
        else:
            call.deadline = self._call_after(max(timeout_s, 0.0), partial(self._expire, call))
            own = incident.latency_s if isinstance(incident, Answer) else 0.0
            self._call_after(own or self._latency_s, partial(self._receive, call, incident))
        return call.future

    def _receive(self, call: _Call[_T], incident: Incident) -> None:
        """Read the request, as the broker does, and deal with it."""
        with self._lock:
            if not self._paused.isdisjoint((None, call.request.group)):
                self._held.append((call, incident))
                return
        if isinstance(incident, Unknown):
            self._be_unclear(call, incident)
        elif isinstance(incident, Refuse):
            refused = Failure(error_info(incident.code), incident.detail)
            named = incident.partitions
            failed = refused if named is None else dict.fromkeys(named, refused)
            self._settle(call, call.answer(failed))
        else:
            self._settle(call, call.answer(_NO_FAILURES))

    def _be_unclear(self, call: _Call[_T], incident: Unknown) -> None:
        if incident.lands_after_s is not None:
            land = partial(call.land, incident.partitions)
            if self._call_after is None or incident.lands_after_s == 0:
                land()
            else:
                self._call_after(incident.lands_after_s, land)
        if self._call_after is None or incident.code != TIMED_OUT:
            self._settle(call, call.answer(Failure(error_info(incident.code))))

    def _expire(self, call: _Call[_T]) -> None:
        self._settle(call, call.answer(_TIMED_OUT))

    def _settle(self, call: _Call[_T], answer: _T) -> None:
        """Answer, unless the deadline did before."""
        with self._lock:
            if call.request.ended_s is not None:
                return
            call.request = call.request._replace(ended_s=self._now(), answer=answer)
            self._in_flight[call.request.group] -= 1
        if call.deadline is not None:
            call.deadline.cancel()
        call.future.set(answer)

    def _take_injected(self, request: Request) -> Incident | None:
        queue = self._incidents[request.operation]
        for place, (group, incident) in enumerate(queue):
            if group is None or group == request.group:
                del queue[place]
                return incident
        return None

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock.now()

    def _check_time(self, incident: Incident) -> None:
        if isinstance(incident, Answer):
            self._need_time(incident.latency_s, "latency_s")
        elif isinstance(incident, Unknown):
            self._need_time(incident.lands_after_s or 0.0, "lands_after_s")

    def _need_time(self, delay_s: float, what: str) -> None:
        if delay_s > 0 and self._call_after is None:
            fix = "give MemoryCoordinator a call_after, such as the timers of an actor system"
            raise InvalidValueError(what, delay_s, "needs a scheduler", fix)
