"""The GroupCommitter actor: one per group; one request to the coordinator in flight, always.

``plan.py`` decides what to ask next, ``step.py`` what an answer means for each manager.  This actor
asks, keeps the timer and applies the effects.  It shares a strand with its managers, so it calls
them directly.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from actors import Future, PooledActor
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.coordinator.logs import LOOK_AGE_S
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, Scope, error_info
from offsetmgr.logs import SafeLogger
from offsetmgr.manager.events import (
    PUBLISH_COMMITTED,
    PUBLISH_END,
    PUBLISH_INITIAL,
    AnswerFlushes,
    Committed,
    LogRead,
    Refused,
    Unknown,
)
from offsetmgr.manager.offset_manager import OffsetManager, Phase, WakeUp
from offsetmgr.manager.plan import CommitPlan, CommitRequest, ReadRequest, forbidden
from offsetmgr.manager.step import step
from offsetmgr.types import StopResult, new_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from offsetmgr.coordinator.base import Coordinator, TopicLog
    from offsetmgr.coordinator.logs import TopicId, TopicLooks
    from offsetmgr.manager.events import Effects, Event
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.offset_manager import Group, Waiter
    from offsetmgr.manager.plan import GroupRequest
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

log = SafeLogger("offsetmgr.manager")

_OBSERVER_FAILED: Final = "the observer failed"


class Steps(NamedTuple):
    """A step of many managers: of a flush, a stop, or a look at logs."""

    managers: Collection[OffsetManager]
    event: Event
    urgent: bool = False
    """True if a caller waits for what these managers hold to be committed."""


class _Looked(NamedTuple):
    """The ids of the topics of a request are known."""

    request: GroupRequest
    ids: Mapping[str, TopicId]


class _Answered(NamedTuple):
    """The coordinator's answer to the request in flight."""

    request: GroupRequest
    ids: Mapping[str, TopicId]
    result: Any
    """A CommitResult or a FetchResult."""


CommitterMessage: TypeAlias = WakeUp | Steps | _Looked | _Answered


class GroupCommitter(PooledActor):
    """Fetches and commits for all managers of one group."""

    def __init__(
        self,
        group: Group,
        coordinator: Coordinator,
        looks: TopicLooks,
        observer: Observer,
        release: Callable[[OffsetManager], None],
        vacate: Callable[[Group], bool],
    ) -> None:
        """``release`` frees a manager's name, ``vacate`` the group's if no manager has come."""
        super().__init__()
        self._group = group
        self._coordinator = coordinator
        self._looks = looks
        self._observer = observer
        self._release = release
        self._vacate = vacate
        self._plan = CommitPlan(group.timing)
        self._sent_at = 0.0
        """Time of the request in flight, or of the last one."""
        self._wake_at = inf
        """Time of the timer; when it fires too early, it is set again."""
        self._lost: GroupRequest | None = None
        """The request whose answer is being handled: it is lost if that fails."""
        self._answers: defaultdict[Waiter, list[tuple[OffsetManager, StopResult]]]
        self._answers = defaultdict(list)

    def on_restart(self, reason: BaseException) -> None:
        """Begin again from the coordinator; an answer that was lost makes commits doubtful."""
        del reason
        now, lost, self._lost = self.system.clock.now(), self._lost, None
        self._wake_at = inf
        if isinstance(lost, CommitRequest):
            for manager, version in lost.managers.items():
                heir = self._plan.heir(manager) or manager
                heir.doubt(version, now)
        self._plan.clear()
        # Also those that have come meanwhile, but not to the plan.
        for manager in {**self._plan.managers, **self._group.managers}.values():
            self._begin_again(manager)
        self._deliver_answers()
        self._pump(now)

    def on_stop(self) -> None:
        """End the managers that are left, and answer their callers: no timer will do so."""
        for manager in {**self._plan.managers, **self._group.managers}.values():
            if manager.result is None:
                manager.close()
                manager.phase = Phase.STOPPED
                self._end(manager, manager.result_after(None))
        self._deliver_answers()

    def on_receive(self, message: CommitterMessage) -> None:
        """Take the steps that a message asks for, then send what is due."""
        now = self.system.clock.now()
        match message:
            case Steps(managers, event, urgent):
                if urgent:
                    self._expedite(managers)
                self._take_steps(((manager, event) for manager in managers), now)
            case _Looked(request, ids):
                self._ask(request, ids, now)
            case _Answered():
                self._answered(message, now)
            case WakeUp(timed=True):
                self._wake_at = inf
        self._pump(now)
        if self._answers:
            self._deliver_answers()

    def _expedite(self, managers: Iterable[OffsetManager]) -> None:
        self._plan.expedite(managers)
        # Their commit will find the ids, which come while it is put together.
        topics = {manager.key.topic for manager in managers if manager.number > manager.settled}
        self._looks.ids(topics, LOOK_AGE_S)

    # Requests.

    def _pump(self, now: float) -> None:
        """Send the next request, unless one is in flight; else look again when something is due."""
        plan, group = self._plan, self._group
        if plan.in_flight is not None:
            return
        with group.lock:  # once for all managers
            if group.queue:
                plan.collect(group, now)
            request, effects = plan.next_request(now)
        if effects:
            self._apply(effects)
        if plan.to_look:
            self._look(plan.next_look(now), shared=False)
        if request is not None:
            self._send(request, now)
        elif not plan.managers and self._vacate(group):
            self.stop()
        elif (wake_at := plan.wake_at()) < self._wake_at:
            self._wake_at = wake_at
            self.tell_after(max(0.0, wake_at - now), WakeUp(timed=True))

    def _send(self, request: GroupRequest, now: float) -> None:
        """Look at the topics' ids, then ask: an offset that is read is never older than the id."""
        commits, managers = isinstance(request, CommitRequest), request.managers
        # Before a commit, brokers before 2.8 have no ids to look at.
        topics = {each.key.topic for each in managers if not commits or each.topic_id != ""}
        looked = self._looks.ids(topics, LOOK_AGE_S if commits else -1.0)
        self._plan.in_flight, self._sent_at = request, now
        if isinstance(looked, Future):
            # In a turn of its own: the one thread that gets all answers has no time for it.
            tell = self._group.committer.tell_due
            looked.add_done_callback(lambda ids: tell(_Looked(request, ids.get())))
        else:
            self._ask(request, looked, now)

    def _ask(self, request: GroupRequest, ids: Mapping[str, TopicId], now: float) -> None:
        """Ask the coordinator, but for the partitions of topics whose id forbids it."""
        failures = forbidden(request, ids)
        group = self._group
        left_s = max(self._sent_at + group.timing.request_timeout_s - now, 0.001)
        result_type = CommitResult if isinstance(request, CommitRequest) else FetchResult

        def answered(done: Future[Any]) -> None:
            error = done.exception()
            result = done.get() if error is None else None
            if not isinstance(result, result_type):
                why = f"the coordinator's client failed: {error or result!r}"
                lost = Failure(error_info(-1), why)
                result = result_type.failed((m.topic_partition for m in request.managers), lost)
            if failures:
                result = result._replace(failures={**result.failures, **failures})
            group.committer.tell_due(_Answered(request, ids, result))

        sent: Future[Any]
        try:
            if len(failures) == len(request.managers):
                sent = Future()
                sent.set(result_type.failed((), next(iter(failures.values()))))
            elif isinstance(request, CommitRequest):
                offsets = {m.topic_partition: v.value for m, v in request.managers.items()}
                for partition in failures:
                    del offsets[partition]
                sent = self._coordinator.commit(group.name, offsets, left_s)
            else:
                partitions = [manager.topic_partition for manager in request.managers]
                asked = [partition for partition in partitions if partition not in failures]
                sent = self._coordinator.fetch(group.name, asked, left_s)
            sent.add_done_callback(answered)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the group must go on
            sent = Future()
            sent.set_exception(error)
            answered(sent)
        if isinstance(request, ReadRequest) and request.verifies:
            self._look([each for each in request.managers if each.committed], shared=True)

    def _answered(self, answer: _Answered, now: float) -> None:
        request, ids, result = answer
        plan, failures = self._plan, result.failures
        plan.in_flight, self._lost = None, request
        group_wide = (f for f in failures.values() if f.info.scope is Scope.GROUP)
        self._group.last_failure = next(group_wide, None)
        failed = self._group.last_failure is not None
        if isinstance(request, CommitRequest):
            kind, events = "commit", plan.committed(request, result, now, failed=failed)
        else:
            kind, events = "fetch", plan.read(request, result, ids, now, failed=failed)
        self._take_steps(events, now)
        self._lost = None
        size, took_s = len(request.managers), now - self._sent_at
        requested = self._observer.requested
        log.guard(_OBSERVER_FAILED, requested, kind, self._group.name, size, len(failures), took_s)

    def _look(self, managers: Iterable[OffsetManager], *, shared: bool) -> None:
        """Ask for the ends of logs; the group's requests do not wait for them."""
        numbers: defaultdict[str, dict[OffsetManager, int]] = defaultdict(dict)
        for manager in managers:
            numbers[manager.key.topic][manager] = manager.number

        def answered(asked: Mapping[OffsetManager, int], done: Future[TopicLog]) -> None:
            error = done.exception()
            if error is None:
                self._group.committer.tell_due(Steps(asked, LogRead(done.get(), asked)))
            else:
                log.error("the ends of a topic's logs could not be asked for", exc_info=error)

        for topic, asked in numbers.items():
            sent = self._looks.ends(topic, shared=shared)
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
                        own_effects = step(manager, event, now)
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
                manager.doubt(event.version, now)
            manager.read_failures += 1
            self._begin_again(manager)

    def _begin_again(self, manager: OffsetManager) -> None:
        manager.begin_again()
        if manager.phase is Phase.STOPPED and manager.result is None:
            self._finish(manager)
        # A step may have failed before its manager was entered.
        self._plan.index(manager)

    def _apply(self, effects: Sequence[tuple[OffsetManager, Effects]]) -> None:
        """Do what steps have asked for; what is committed is published once for all managers."""
        committed: list[OffsetManager] = []
        ended: list[OffsetManager] = []
        for manager, own_effects in effects:
            for effect in own_effects:
                if effect is PUBLISH_COMMITTED:
                    committed.append(manager)
                elif effect is PUBLISH_END:
                    ended.append(manager)
                elif effect is PUBLISH_INITIAL:
                    manager.initial.set(manager.acknowledged)
                elif isinstance(effect, AnswerFlushes):
                    self._answer(manager, effect.number, effect.result)
                elif isinstance(effect, OffsetManagerError):
                    manager.errors.put(effect)
                    log.guard(_OBSERVER_FAILED, self._observer.failed, manager.key, effect)
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
                if manager.flushes:
                    result = new_tuple(StopResult, (committed, None, None))
                    self._answer(manager, manager.settled, result)
        log.guard(_OBSERVER_FAILED, self._observer.committed, offsets)

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
        waited_s = max((waiter.timeout_s for waiter in manager.stops), default=0.0)
        self._end(manager, manager.result_after(waited_s))
        # The name is free before the stops are answered, so that a new manager can start at once.
        self._release(manager)

    def _end(self, manager: OffsetManager, result: StopResult) -> None:
        """End the actor, close the mailboxes, and note the answers to everybody who waits."""
        manager.stop()
        manager.result = result
        text = f"{manager.key} was stopped before its initial offset arrived"
        manager.initial.set_exception(ManagerStoppedError(text))
        if manager.committed_offsets is not None:
            manager.committed_offsets.close()
        manager.errors.close()
        # Reported while the name is its own: later this could be of the next manager's time.
        log.guard(_OBSERVER_FAILED, self._observer.stopped, manager.key, result)
        self._answer(manager, inf, result)
