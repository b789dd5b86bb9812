"""The GroupCommitter actor: one per group; one request to the coordinator in flight, always.

``plan.py`` decides what to ask next, and what an answer means.  This actor asks, keeps the timer,
and passes the results on: to flushes that wait, and to managers whose life they change.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from actors import Future, PooledActor
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.errors import Scope, error_info
from offsetmgr.manager import lifecycle
from offsetmgr.manager.history import CommitHistory
from offsetmgr.manager.partition_state import Flush
from offsetmgr.manager.pending import CommitRequest, ReadRequest
from offsetmgr.manager.plan import CommitPlan, InitialKnown
from offsetmgr.manager.submits import Collect, GroupSubmits, Version
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from actors import ActorRef
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import Coordinator, TopicLog
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.partition_state import PartitionState, Waiter
    from offsetmgr.manager.pending import GroupRequest
    from offsetmgr.manager.plan import Result, Results
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger("offsetmgr.manager")


class Attach(NamedTuple):
    """Serve new managers; their initial offsets are read in one request."""

    states: Mapping[TopicPartition, PartitionState]


class Rejoin(NamedTuple):
    """The manager was restarted before it learned of its initial offset."""

    state: PartitionState


class Leave(NamedTuple):
    """The manager is gone."""

    state: PartitionState


class Expedite(NamedTuple):
    """Commit now what these managers hold."""

    states: Sequence[PartitionState]
    flush: Waiter | None = None
    """Answered with what was committed."""

    def give_up(self) -> None:
        """Answer where there is no committer any more."""
        if self.flush is not None:
            self.flush.answer([(each, each.result_after(None)) for each in self.states])


class Vacant(NamedTuple):
    """Message to the factory: the group has no manager left and nothing in flight."""

    group: Group
    attached: int
    """The number of ``Attach`` messages that the committer had handled."""


class _Pump(NamedTuple):
    """Look whether something is due: at the end of the inbox, or by the timer."""


class _LogsRead(NamedTuple):
    """The ends of the logs of what ``request`` verifies."""

    request: ReadRequest
    logs: Mapping[str, TopicLog]


class _Answered(NamedTuple):
    """The coordinator's answer to the request in flight."""

    flight: Flight
    result: CommitResult | FetchResult


@dataclass(eq=False)
class Flight:
    """A request under way."""

    request: GroupRequest
    future: Future[Any]
    started_at: float
    committer: ActorRef[Any] | None = None
    """The one that is told the answer."""


class Group:
    """A group's managers, and what of its committer outlives a crash."""

    def __init__(self, name: str, settings: CommitSettings) -> None:
        self.submits = GroupSubmits(name)
        self.states: dict[TopicPartition, PartitionState] = {}
        """The live managers, by name; guarded by the registry's lock."""
        self.served: dict[TopicPartition, PartitionState] = {}
        """The managers that the committer knows."""
        self.flushes: list[Flush] = []
        self.history = CommitHistory(settings)
        self.flight: Flight | None = None
        self.attached = 0
        """The number of ``Attach`` messages handled, or lost in a crash of the factory."""
        self.committer: ActorRef[GroupCommitter] | None = None
        """Its parent's, as is the next."""
        self.told = 0
        """The number of ``Attach`` messages sent."""


CommitterMessage: TypeAlias = (
    Collect | Attach | Rejoin | Leave | Expedite | _Pump | _Answered | _LogsRead
)


class GroupCommitter(PooledActor):
    """Fetches and commits for all managers of one group."""

    def __init__(
        self,
        group: Group,
        coordinator: Coordinator,
        settings: CommitSettings,
        rng: Random,
        observer: Observer,
    ) -> None:
        super().__init__()
        self._name = group.submits.name
        self._group = group
        self._coordinator = coordinator
        self._timeout_s = settings.request_timeout_s
        self._observer = observer
        self._plan = CommitPlan(self._name, settings, rng, group.history)
        self._pumping = False

    def on_restart(self, reason: BaseException) -> None:
        """Begin again from the managers' states."""
        del reason
        states = self._group.served
        self._plan.attach(states)
        if self._group.flushes or any(state.submits.closed for state in states.values()):
            self._plan.expedite(states)
        self._pump()

    def on_receive(self, message: CommitterMessage) -> None:
        """Tell the plan, then send what it wants sent."""
        now = self.system.clock.now()
        match message:
            case _Answered(flight, result):
                self._answered(flight, result, now)
            case _LogsRead(request, logs):
                self._notify(self._plan.logs_read(request, logs), now)
                self._pump()
            case Collect():
                self._group.submits.woken()
                self._pump()
            case Expedite(states, flush):
                self._expedite(states, flush, now)
            case Attach() | Rejoin() | Leave():
                self._serve(message, now)
            case _Pump():
                self._pumping = False
                self._pump()

    # Managers come and go.

    def _serve(self, message: Attach | Rejoin | Leave, now: float) -> None:
        group = self._group
        match message:
            case Attach(states):
                group.attached += 1
                # One that has ended by now may have said so already.
                live = {where: state for where, state in states.items() if state.result is None}
                for partition in live:
                    if partition in group.served:  # its predecessor has not said yet that it left
                        self._plan.detach(partition, now)
                self._join(live)
                self._await_flight()
            case Rejoin(state):
                self._join({state.submits.partition: state})
            case Leave(state):
                partition = state.submits.partition
                # A new manager may have taken the name already.
                if group.served.get(partition) is state:
                    del group.served[partition]
                    self._plan.detach(partition, now)
                self._answer(state, inf, state.result_after(None))
        # At the end of the inbox, so that one request carries all that come and go.
        if not self._pumping and group.flight is None:
            self._pumping = True
            self.actor_ref.tell(_Pump())

    def _join(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        self._group.served.update(states)
        self._plan.attach(states)

    # Submits and flushes.

    def _expedite(self, states: Iterable[PartitionState], flush: Waiter | None, now: float) -> None:
        """Commit what these hold at once; ``flush`` waits for what is newest in them now."""
        clean: list[tuple[PartitionState, StopResult]] = []
        awaited: dict[PartitionState, int] = {}
        for state in states:
            submits = state.submits
            if not submits.dirty or state.result is not None:
                clean.append((state, state.result or state.result_clean(submits.dropped)))
                continue
            awaited[state] = submits.number
            if submits.established and not submits.queued:
                # It was suspended: a flush asks for one more try.
                self._plan.mark_dirty([submits.partition], now)
        if flush is not None and awaited:
            # Expired ones must not pile up while the coordinator is away.
            waiting = [each for each in self._group.flushes if each.waits(now)]
            self._group.flushes = [*waiting, Flush(flush, awaited)]
        self._plan.expedite(state.submits.partition for state in states)
        self._pump()
        if flush is not None:
            flush.answer(clean)

    def _pump(self) -> None:
        """Send the next request, unless one is in flight; else look again when something is due."""
        if self._group.flight is not None:
            return
        now = self.system.clock.now()
        if self._group.submits.waiting:
            dirty, since = self._group.submits.collect(now)
            known = [submits.partition for submits in dirty if submits.established]
            self._plan.mark_dirty(known, since)
        request, results = self._plan.next_request(now)
        self._notify(results, now)
        if request is not None:
            self._send(request, now)
        elif self._plan.over and self.parent is not None:
            self.parent.try_tell(Vacant(self._group, self._group.attached))
        elif (wake_at := self._plan.wake_at()) < inf:
            self.tell_after(max(0.0, wake_at - now), _Pump())

    # Requests.

    def _send(self, request: GroupRequest, now: float) -> None:
        future: Future[Any]
        try:
            if isinstance(request, CommitRequest):
                offsets = {where: version.value for where, version in request.versions.items()}
                future = self._coordinator.commit(self._name, offsets, self._timeout_s)
            else:
                future = self._coordinator.fetch(
                    self._name, tuple(request.members), self._timeout_s
                )
        except Exception as error:  # noqa: BLE001 -- whatever it is, the group must go on
            future = Future()
            future.set_exception(error)
        self._group.flight = Flight(request, future, now)
        self._await_flight()
        if isinstance(request, ReadRequest) and request.verified:
            self._read_logs(request)

    def _await_flight(self) -> None:
        """Hear the answer; that of a committer before this one too, once its managers are known."""
        flight, ref = self._group.flight, self.actor_ref
        if flight is None or flight.committer is ref:
            return
        flight.committer = ref

        def answered(done: Future[Any]) -> None:
            error = done.exception()
            result = done.get() if error is None else _failed_answer(flight.request, error)
            ref.try_tell(_Answered(flight, result))

        flight.future.add_done_callback(answered)

    def _answered(self, flight: Flight, result: Any, now: float) -> None:
        if flight is not self._group.flight:
            return
        self._group.flight = None
        request = flight.request
        group_wide = (f for f in result.failures.values() if f.info.scope is Scope.GROUP)
        self._group.submits.last_failure = next(group_wide, None)
        kind: Literal["commit", "fetch"] = "fetch"
        if isinstance(request, CommitRequest):
            kind = "commit"
            results = self._plan.committed(request, result, now)
        else:
            results = self._plan.read(request, result, now)
        self._notify(results, now)
        size, failed = len(request.members), len(result.failures)
        self._observer.requested(kind, self._name, size, failed, now - flight.started_at)
        self._pump()

    def _read_logs(self, request: ReadRequest) -> None:
        """Ask for the ends of logs; the group's requests do not wait for them."""
        ref = self.actor_ref

        def answered(done: Future[Mapping[str, TopicLog]]) -> None:
            if done.exception() is None:
                ref.try_tell(_LogsRead(request, done.get()))

        topics = tuple(sorted({each.topic for each in request.verified}))
        try:
            self._coordinator.topic_logs(topics, self._timeout_s).add_done_callback(answered)
        except Exception:  # as for any other request
            log.exception("the ends of logs could not be asked for")

    # Results, for flushes that wait and for managers.

    def _notify(self, results: Results, now: float) -> None:
        """Answer flushes, then tell the managers whose life a result changes."""
        events: list[tuple[PartitionState, lifecycle.Event]] = []
        for partition, result in results:
            state = self._group.served.get(partition)
            event = None if state is None else self._event(state, result, now)
            if state is not None and event is not None:
                events.append((state, event))
        self._answer_committed(now)
        for state, event in events:
            if state.ref is not None:
                state.ref.try_tell(event)

    def _event(self, state: PartitionState, result: Result, now: float) -> lifecycle.Event | None:
        """Return what the manager has to hear, if anything."""
        match result:
            case lifecycle.Committed(_, clean):
                if not clean and self._awaited(state):
                    self._expedite_newer(state)
                concerned = state.concerned
                state.troubled = state.troubled and not clean
                return result if concerned else None
            case InitialKnown(committed):
                return self._initial_known(state, committed, now)
            case lifecycle.CommitFailed():
                self._failed(state, result)
            case lifecycle.Noticed(_, committed):
                state.acknowledged = committed
        return result

    def _failed(self, state: PartitionState, result: lifecycle.CommitFailed) -> None:
        (number, value), error, final = result
        state.troubled = True
        if final:
            self._answer(state, number, StopResult(state.acknowledged, value, error))
        elif not error.retriable and self._awaited(state):
            self._expedite_newer(state)

    def _awaited(self, state: PartitionState) -> bool:
        """Return True if a caller waits for what is newest."""
        return state.submits.closed or any(state in flush.awaited for flush in self._group.flushes)

    def _expedite_newer(self, state: PartitionState) -> None:
        """Callers wait for a newer version, and their urgency was spent on this one."""
        self._plan.mark_dirty([state.submits.partition], -inf)

    def _initial_known(
        self, state: PartitionState, committed: OffsetAndMetadata | None, now: float
    ) -> lifecycle.Fetched:
        """Compare what is committed with what was submitted meanwhile."""
        state.acknowledged = committed
        submits = state.submits
        first = not submits.established
        submits.establish(committed)
        uncommitted, dropped = submits.outlook()
        if uncommitted is not None:
            self._plan.mark_dirty([submits.partition], -inf if self._awaited(state) else now)
            return lifecycle.Fetched(committed)
        if first and submits.settled and dropped is None and committed is not None:
            # The same was submitted: whoever did waits for it.
            state.acknowledge(Version(submits.settled, committed), now)
        result = state.result_clean(dropped)
        self._answer(state, inf, result)
        return lifecycle.Fetched(committed, result.error)

    def _answer(self, state: PartitionState, number: float, result: StopResult) -> None:
        """Answer the flushes that wait for versions of ``state`` up to ``number``."""
        for flush in self._group.flushes:
            if state in flush.awaited and flush.awaited[state] <= number:
                flush.answer({state: result})

    def _answer_committed(self, now: float) -> None:
        """Answer the flushes whose versions are committed, and drop those that are over."""
        for flush in self._group.flushes:
            flush.answer(
                {
                    state: StopResult(state.acknowledged)
                    for state, number in flush.awaited.items()
                    if state.submits.settled >= number
                }
            )
        self._group.flushes = [each for each in self._group.flushes if each.waits(now)]


def _failed_answer(request: GroupRequest, error: BaseException) -> CommitResult | FetchResult:
    """Return the answer of a coordinator that raised ``error``."""
    failure = Failure(error_info(-1), f"the coordinator's client failed: {error!r}")
    if isinstance(request, CommitRequest):
        return CommitResult(dict.fromkeys(request.versions, failure))
    return FetchResult({}, dict.fromkeys(request.members, failure))
