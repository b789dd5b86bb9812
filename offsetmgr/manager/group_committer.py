"""The GroupCommitter actor: one per group; one request to the coordinator in flight, always.

``plan.py`` decides what to ask next, ``step.py`` what an answer means for each manager.  This actor
asks, keeps the timer and applies the effects.  It shares a strand with its managers, so it calls
them directly.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from actors import Future, PooledActor
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.errors import ManagerStoppedError, Scope, error_info
from offsetmgr.logs import SafeLogger
from offsetmgr.manager.changes import doubt
from offsetmgr.manager.events import (
    PUBLISH_COMMITTED,
    AnswerFlushes,
    Committed,
    Expired,
    FlushAsked,
    LogRead,
    PublishError,
    PublishInitial,
    Refused,
    StopAsked,
    Unknown,
)
from offsetmgr.manager.group import Collect
from offsetmgr.manager.offset_manager import OffsetManager, Phase
from offsetmgr.manager.plan import CommitPlan, CommitRequest, ReadRequest
from offsetmgr.manager.step import step
from offsetmgr.types import StopResult, new_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.coordinator.logs import LogGuard
    from offsetmgr.manager.events import Effects, Event, Timing
    from offsetmgr.manager.group import Group
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.plan import GroupRequest
    from offsetmgr.manager.waiter import Waiter
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

log = SafeLogger("offsetmgr.manager")


class Flush(NamedTuple):
    """Commit now what these managers hold, and answer ``waiter``."""

    managers: Sequence[OffsetManager]
    waiter: Waiter[OffsetManager]


class Stop(NamedTuple):
    """Commit now what these managers hold, then end them; each has its waiters."""

    managers: Sequence[OffsetManager]


class Expire(NamedTuple):
    """The deadline of a stop of these managers has passed."""

    managers: Sequence[OffsetManager]


class _Pump(NamedTuple):
    """Look whether something is due."""


class _Answered(NamedTuple):
    """The coordinator's answer to the request in flight."""

    flight: Flight
    result: CommitResult | FetchResult


class _LogRead(NamedTuple):
    """The log of the topic of some managers."""

    numbers: Mapping[OffsetManager, int]
    """Of their newest versions when the log was asked for."""
    log: TopicLog


class _Looked(NamedTuple):
    """The ids of the topics of a commit are known."""

    commit: Callable[[], None]


class Flight(NamedTuple):
    """A request under way."""

    request: GroupRequest
    future: Future[Any]
    started_at: float


CommitterMessage: TypeAlias = (
    Collect | Flush | Stop | Expire | _Pump | _Answered | _LogRead | _Looked
)


_Answers: TypeAlias = "defaultdict[Waiter[OffsetManager], list[tuple[OffsetManager, StopResult]]]"


class GroupCommitter(PooledActor):
    """Fetches and commits for all managers of one group."""

    def __init__(
        self,
        group: Group[OffsetManager],
        logs: LogGuard,
        timeout_s: float,
        timing: Timing,
        observer: Observer,
        release: Callable[[OffsetManager], None],
        vacate: Callable[[Group[OffsetManager]], bool],
    ) -> None:
        """``release`` frees a manager's name, ``vacate`` the group's if no manager has come."""
        super().__init__()
        self._group = group
        self._logs = logs
        self._timeout_s = timeout_s
        self._timing = timing
        self._observer = observer
        self._release = release
        self._vacate = vacate
        self._plan = CommitPlan(timing)
        self._flight: Flight | None = None
        self._lost: GroupRequest | None = None
        """The request whose answer is being handled: it is lost if that fails."""
        self._answers: _Answers = defaultdict(list)

    def on_restart(self, reason: BaseException) -> None:
        """Begin again from the coordinator; an answer that was lost makes commits doubtful."""
        del reason
        now, lost, self._lost = self.system.clock.now(), self._lost, None
        if isinstance(lost, CommitRequest):
            for manager, version in lost.versions.items():
                doubt(self._plan.heir(manager) or manager, version, now, self._timing)
        # Also those that have come meanwhile, but not to the plan.
        for manager in {**self._plan.managers, **self._group.managers}.values():
            self._begin_again(manager)
        self._deliver_answers()
        self._pump(now)

    def on_receive(self, message: CommitterMessage) -> None:
        """Take the steps that a message asks for, then send what is due."""
        now = self.system.clock.now()
        match message:
            case _Answered(flight, result):
                self._answered(flight, result, now)
            case _Looked(commit):
                commit()
            case Flush(managers, waiter):
                self._flush(managers, waiter, now)
            case Stop(managers):
                self._plan.expedite(managers)
                self._take_steps([(manager, StopAsked()) for manager in managers], now)
            case Expire(managers):
                self._take_steps([(manager, Expired()) for manager in managers], now)
            case _LogRead(numbers, topic_log):
                events = [(each, LogRead(topic_log, number)) for each, number in numbers.items()]
                self._take_steps(events, now)
        self._pump(now)
        self._deliver_answers()

    def _flush(
        self, managers: Sequence[OffsetManager], waiter: Waiter[OffsetManager], now: float
    ) -> None:
        topics = {manager.key.topic for manager in managers if manager.number > manager.settled}
        self._logs.look_ahead(topics, self._timeout_s)
        for manager in managers:
            flush = manager.number, waiter
            if manager.flushes:
                # Expired ones must not pile up while the coordinator is away.
                waiting = [earlier for earlier in manager.flushes if earlier[1].deadline_s > now]
                manager.flushes = (*waiting, flush)
            else:
                manager.flushes = (flush,)
        asked = FlushAsked()
        self._take_steps([(manager, asked) for manager in managers], now)
        self._plan.expedite(managers)

    # Requests.

    def _pump(self, now: float) -> None:
        """Send the next request, unless one is in flight; else look again when something is due."""
        plan, group = self._plan, self._group
        if self._flight is not None:
            return
        with group.lock:  # once for all managers
            if group.has_queued:
                plan.collect(*group.collect(now), now)
            request, effects = plan.next_request(now)
        self._apply(effects)
        self._end_managers()
        if look := plan.next_look(now, self._timeout_s):
            self._look(look, shared=False)
        if request is not None:
            self._send(request, now)
        elif not plan.managers and self._vacate(group):
            self.stop()
        elif (wake_at := plan.wake_at()) < inf:
            self.tell_after(max(0.0, wake_at - now), _Pump())

    def _send(self, request: GroupRequest, now: float) -> None:
        name, future, ref = self._group.name, Future[Any](), self.actor_ref
        try:
            if isinstance(request, CommitRequest):
                offsets = {m.topic_partition: v.value for m, v in request.versions.items()}
                topic_ids = self._plan.topic_ids(request)
                future = self._logs.commit(
                    name,
                    offsets,
                    topic_ids,
                    self._timeout_s,
                    lambda commit: ref.tell_due(_Looked(commit)),
                )
            else:
                partitions = tuple(manager.topic_partition for manager in request.managers)
                future = self._logs.fetch(name, partitions, self._timeout_s)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the group must go on
            future.set_exception(error)
        flight = self._flight = Flight(request, future, now)

        def answered(done: Future[Any]) -> None:
            error = done.exception()
            ref.tell_due(
                _Answered(flight, done.get() if error is None else _failed_answer(request, error))
            )

        future.add_done_callback(answered)
        if isinstance(request, ReadRequest) and request.verifies:
            self._look([each for each in request.managers if each.committed], shared=True)

    def _answered(self, flight: Flight, result: Any, now: float) -> None:
        if flight is not self._flight:
            return
        request, plan, failures = flight.request, self._plan, result.failures
        self._flight, self._lost = None, request
        group_wide = (f for f in failures.values() if f.info.scope is Scope.GROUP)
        self._group.last_failure = next(group_wide, None)
        if isinstance(request, CommitRequest):
            kind, events = "commit", plan.committed(request, result, now)
        else:
            kind, events = "fetch", plan.read(request, result, now)
        self._take_steps(events, now)
        self._lost = None
        size, took_s = len(request.managers), now - flight.started_at
        self._call(self._observer.requested, kind, self._group.name, size, len(failures), took_s)

    def _look(self, managers: Iterable[OffsetManager], *, shared: bool) -> None:
        """Ask for the ends of logs; the group's requests do not wait for them."""
        numbers: defaultdict[str, dict[OffsetManager, int]] = defaultdict(dict)
        for manager in managers:
            numbers[manager.key.topic][manager] = manager.number

        def answered(asked: Mapping[OffsetManager, int], done: Future[TopicLog]) -> None:
            error = done.exception()
            if error is None:
                self.actor_ref.tell_due(_LogRead(asked, done.get()))
            else:
                log.error("the ends of a topic's logs could not be asked for", exc_info=error)

        for topic, asked in numbers.items():
            sent = self._logs.topic_log(topic, self._timeout_s, shared=shared)
            sent.add_done_callback(partial(answered, asked))

    # Steps and their effects.

    def _take_steps(self, events: Iterable[tuple[OffsetManager, Event]], now: float) -> None:
        """Take the steps of many managers, with the group's lock held once for all.

        A manager that fails over its step begins again, and the others go on.
        """
        effects: list[tuple[OffsetManager, Effects]] = []
        failed: list[tuple[OffsetManager, Event, Exception]] = []
        try:
            with self._group.lock:
                for manager, event in events:
                    try:
                        own_effects = step(manager, event, now, self._timing)
                    except Exception as error:  # noqa: BLE001 -- it concerns this one alone
                        failed.append((manager, event, error))
                        continue
                    if own_effects:
                        effects.append((manager, own_effects))
                    self._plan.index(manager)
        finally:
            self._apply(effects)
        for manager, event, why in failed:
            text = "%s failed at %s and begins again"
            log.error(text, manager.key, type(event).__name__, exc_info=why)
            if isinstance(event, (Committed, Refused, Unknown)):
                # It may not know of its own commit.
                doubt(manager, event.version, now, self._timing)
            manager.read_failures += 1
            self._begin_again(manager)
            self._plan.index(manager)

    def _begin_again(self, manager: OffsetManager) -> None:
        if manager.phase is not Phase.STOPPED:
            manager.begin_again()
        elif manager.result is None:
            self._finish(manager)

    def _apply(self, effects: Sequence[tuple[OffsetManager, Effects]]) -> None:
        """Do what steps have asked for; what is committed is published once for all managers."""
        committed: list[OffsetManager] = []
        ended: list[OffsetManager] = []
        for manager, own_effects in effects:
            for effect in own_effects:
                if effect is PUBLISH_COMMITTED:
                    committed.append(manager)
                elif isinstance(effect, AnswerFlushes):
                    self._answer(manager, effect.number, effect.result)
                elif isinstance(effect, PublishError):
                    manager.errors.put(effect.error)
                    self._call(self._observer.failed, manager.key, effect.error)
                elif isinstance(effect, PublishInitial):
                    manager.initial.set(manager.acknowledged)
                else:
                    ended.append(manager)
        if committed:
            self._publish(committed)
        for manager in ended:
            self._finish(manager)

    def _publish(self, managers: Sequence[OffsetManager]) -> None:
        """Tell users and the observer what managers have committed, and answer their flushes."""
        offsets: dict[ManagerKey, OffsetAndMetadata] = {}
        with self._group.lock:
            for manager in managers:
                if (committed := manager.acknowledged) is not None:
                    manager.published = offsets[manager.key] = committed
                    if manager.committed_offsets is not None:
                        manager.committed_offsets.put(committed)
        self._call(self._observer.committed, offsets)
        for manager in managers:
            if manager.flushes:
                result = new_tuple(StopResult, (manager.acknowledged, None, None))
                self._answer(manager, manager.settled, result)

    def _call(self, observe: Callable[..., object], *args: object) -> None:
        """Tell the observer; what it raises is its own."""
        try:
            observe(*args)
        except Exception:
            log.exception("the observer failed")

    def _answer(self, manager: OffsetManager, number: float, result: StopResult) -> None:
        """Answer flushes that wait for versions up to ``number``; after the end, stops too."""
        flushes, manager.flushes = manager.flushes, ()
        for flush in flushes:
            if flush[0] <= number:
                self._answers[flush[1]].append((manager, result))
            else:
                manager.flushes = (*manager.flushes, flush)
        if manager.result is not None:
            stops, manager.stops = manager.stops, ()
            for waiter in stops:
                self._answers[waiter].append((manager, result))

    def _deliver_answers(self) -> None:
        answers, self._answers = self._answers, defaultdict(list)
        for waiter, results in answers.items():
            waiter.answer(results)

    def _finish(self, manager: OffsetManager) -> None:
        """Close the mailboxes, free the name, answer everybody who waits."""
        waited_s = max((waiter.timeout_s for waiter in manager.stops), default=0.0)
        result = manager.result = manager.result_after(waited_s)
        text = f"{manager.key} was stopped before its initial offset arrived"
        manager.initial.set_exception(ManagerStoppedError(text))
        if manager.committed_offsets is not None:
            manager.committed_offsets.close()
        manager.errors.close()
        # Reported while the name is its own: later this could be of the next manager's time.
        self._call(self._observer.stopped, manager.key, result)
        # The name is free before the stops are answered, so that a new manager can start at once.
        self._release(manager)
        self._answer(manager, inf, result)

    def _end_managers(self) -> None:
        ended, self._plan.ended = self._plan.ended, []
        for manager in ended:
            manager.stop()


def _failed_answer(request: GroupRequest, error: BaseException) -> CommitResult | FetchResult:
    """Return the answer of a coordinator that raised ``error``."""
    failure = Failure(error_info(-1), f"the coordinator's client failed: {error!r}")
    partitions = [manager.topic_partition for manager in request.managers]
    if isinstance(request, CommitRequest):
        return CommitResult.failed(partitions, failure)
    return FetchResult.failed(partitions, failure)
