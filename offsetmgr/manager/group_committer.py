"""The GroupCommitter actor: one per group; one request to the coordinator in flight, always.

What to ask next is decided in ``plan.py``; this actor asks it, keeps the timer and passes the
answers on to the managers.  What simply succeeds is settled on their desks and answered to whoever
flushes, all managers of a request in one go; a manager itself is told where its life changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from actors import Future, PooledActor
from offsetmgr.manager.idle import Idle
from offsetmgr.manager.offset_manager import Hurry, Leave, Rejoin, Retire
from offsetmgr.manager.plan import CommitPlan
from offsetmgr.manager.requests import (
    AllCommitted,
    CommitRequest,
    FetchRequest,
    broken,
    given_up,
)
from offsetmgr.manager.telling import Flush, Teller, is_answer
from offsetmgr.manager.tray import Rung

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from actors import TimerHandle
    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import CommitResult, Coordinator, FetchResult, TopicLog
    from offsetmgr.manager.bounds import LogsRequest
    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.ledger import Ledger
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.recent_logs import RecentLogs
    from offsetmgr.manager.requests import Notes, Request
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.manager.tray import Tray
    from offsetmgr.types import StopResult, TopicPartition


OVERDUE_S: Final = 2.0
"""An answer that is this long past the deadline does not come any more: the coordinator's client
has broken its contract, and the group must not wait for it for ever."""


class Attach(NamedTuple):
    """New managers of the group; their initial offsets are fetched in one request."""

    tray: Tray
    desks: Mapping[TopicPartition, Desk]


class Tick(NamedTuple):
    """Look whether something is due."""


class Alarm(NamedTuple):
    """The same, told by the timer."""


class Overdue(NamedTuple):
    """Look whether the request in flight is answered by now."""


class LogsRead(NamedTuple):
    """The ends of logs that were asked for."""

    request: LogsRequest
    logs: Mapping[str, TopicLog]


class Answered(NamedTuple):
    """The coordinator's answer to the request in flight."""

    flight: Flight
    result: CommitResult | FetchResult


class Vacant(NamedTuple):
    """Told to the factory: the group has no manager left and nothing in flight."""

    group: str
    attached: object
    """The newest managers that it has heard of."""


@dataclass(frozen=True)
class Flight:
    """A request under way."""

    request: Request
    future: Future[Any]
    started_at: float
    flushes: list[Flush] = field(default_factory=list)
    """Who waits for it."""


@dataclass
class Roster:
    """What survives a restart of the committer, and of its parent."""

    ledger: Ledger
    tray: Tray
    desks: dict[TopicPartition, Desk] = field(default_factory=dict)
    """Whom it serves."""
    flight: Flight | None = None
    attached: object = None
    """The newest managers that it has heard of; a mark, for its parent.  None: not of any yet."""


Message: TypeAlias = (
    "Rung | Attach | Rejoin | Leave | Hurry | Tick | Alarm | Overdue | Answered | LogsRead"
)


class GroupCommitter(PooledActor):
    """Fetches and commits for all managers of one group."""

    def __init__(
        self,
        group: str,
        roster: Roster,
        coordinator: Coordinator,
        settings: CommitSettings,
        rng: Random,
        observer: Observer,
        recent: RecentLogs,
    ) -> None:
        super().__init__()
        self._group = group
        self._roster = roster
        self._coordinator = coordinator
        self._settings = settings
        self._observer = observer
        self._recent = recent
        self._plan = CommitPlan(settings, rng, roster.ledger)
        self._teller = Teller(roster.desks, self._plan)
        self._idle = Idle(settings.idle_timeout_s)
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self._pumping = False
        self._watching = False

    def on_start(self) -> None:
        """Wait for the answer that an earlier committer of the group has asked for.

        Not before it is known whom the answer is about.
        """
        if self._roster.flight is not None and self._roster.attached is not None:
            self._await(self._roster.flight)

    def on_restart(self, reason: BaseException) -> None:
        """Begin again from the desks; an answer still under way is waited for."""
        del reason
        now = self.system.clock.now()
        self._plan.recover(self._roster.desks, now)
        if any(desk.waiters or desk.slot.closed for desk in self._roster.desks.values()):
            self._plan.hurry()
        self._pump()

    def on_receive(self, message: Message) -> None:
        """Tell the plan, then send what it wants sent."""
        now = self.system.clock.now()
        match message:
            case Answered() | LogsRead():
                self._heard(message, now)
                self._pump()
            case Rung():
                if self._roster.tray.heard(now):
                    self._pump()
            case Hurry(desks, ticket):
                self._hurry(desks, ticket, now)
            case Attach() | Rejoin() | Leave():
                self._serve(message, now)
                # At the end of the inbox, so that one request carries all that come and go.
                if not self._pumping and self._roster.flight is None:
                    self._pumping = True
                    self.actor_ref.tell(Tick())
            case Tick():
                self._pumping = False
                self._pump()
            case Alarm():
                self._timer = None
                self._pump()
            case Overdue():
                self._watching = False
                self._watch(now)
                self._pump()

    def _heard(self, message: Answered | LogsRead, now: float) -> None:
        if isinstance(message, Answered):
            self._answered(message.flight, message.result, now)
        else:
            notes = self._plan.logs_read(message.request, message.logs, now)
            self._teller.tell(notes, now)
            self._read_logs(now)

    def _serve(self, message: Attach | Rejoin | Leave, now: float) -> None:
        match message:
            case Attach(tray, desks):
                first = self._roster.attached is None
                self._roster.tray, self._roster.attached = tray, desks
                # One that has ended by now may have said so already.
                desks = {where: desk for where, desk in desks.items() if desk.result is None}
                self._replace(desks, now)
                self._join(desks)
                if first and self._roster.flight is not None:
                    self._await(self._roster.flight)
            case Rejoin(desk):
                self._join({desk.key.topic_partition: desk})
            case Leave(desk):
                self._leave(desk, now)

    def _replace(self, desks: Mapping[TopicPartition, Desk], now: float) -> None:
        """Forget predecessors that have not said yet that they are gone."""
        for partition in desks:
            if partition in self._roster.desks:
                self._plan.detach(partition, now)

    def _join(self, desks: Mapping[TopicPartition, Desk]) -> None:
        self._roster.desks.update(desks)
        self._plan.attach(desks)

    def _leave(self, desk: Desk, now: float) -> None:
        partition = desk.key.topic_partition
        # A new manager may have taken the name already.
        if self._roster.desks.get(partition) is desk:
            del self._roster.desks[partition]
            self._plan.detach(partition, now)
        self._teller.over(desk)

    def _hurry(self, desks: Sequence[Desk], ticket: Ticket | None, now: float) -> None:
        """Commit what these hold at once; ``ticket`` waits for what is newest in them now."""
        # Sent first: who waits is noted down while the coordinator works.
        before = self._roster.flight
        self._collect(now)
        self._plan.hurry(desk.slot.where for desk in desks)
        self._pump()
        if self._roster.flight is not before:
            desks = self._wait_for_flight(desks, ticket, now)
        if desks:
            self._wait_for_newest(desks, ticket, now)

    def _wait_for_flight(
        self, desks: Sequence[Desk], ticket: Ticket | None, now: float
    ) -> list[Desk]:
        """``ticket`` waits for what was sent just now; returns those it does not answer for."""
        flight = self._roster.flight
        if flight is None or not isinstance(flight.request, CommitRequest):
            return list(desks)
        versions = flight.request.versions
        if ticket is None:
            sent = ((desk, versions.get(desk.slot.where)) for desk in desks)
            return [desk for desk, v in sent if v is None or not is_answer(desk, v)]
        flush = Flush(ticket)
        flight.flushes.append(flush)
        return flush.wait(desks, versions, now)

    def _wait_for_newest(self, desks: Sequence[Desk], ticket: Ticket | None, now: float) -> None:
        """``ticket`` waits for what is newest in these, or is answered with how they are."""
        left: list[tuple[Desk, StopResult]] = []
        dirty: list[TopicPartition] = []
        for desk in desks:
            version, dropped = desk.slot.outlook()
            if version is None or desk.result is not None:
                left.append((desk, desk.result or desk.clean(dropped)))
                continue
            if ticket is not None:
                desk.wait(version.number, ticket, now)
            if desk.slot.established:
                # Also where it was parked: who asks for a flush wants one more try.
                dirty.append(desk.slot.where)
        self._plan.mark_all_dirty(dirty, now)
        self._plan.hurry(desk.slot.where for desk in desks)
        self._pump()
        if ticket is not None:
            ticket.done(left)

    def _collect(self, now: float) -> None:
        """Tell the plan what was submitted; it is due an interval after the first of it."""
        touched, since = self._roster.tray.collect(now)
        self._plan.mark_all_dirty([slot.where for slot in touched if slot.established], since)

    def _pump(self) -> None:
        if self._roster.flight is not None:
            return
        now = self.system.clock.now()
        if self._roster.tray.filled:
            self._collect(now)
        if now >= self._idle.at:
            self._reap(now)
        request, notes = self._plan.next_request(now)
        self._teller.tell(notes, now)
        self._read_logs(now)
        if request is not None:
            self._send(request, now)
        elif self._plan.over and self.parent is not None:
            self.parent.try_tell(Vacant(self._group, self._roster.attached))
        else:
            self._wake_by(min(self._plan.wake_at(), self._idle.at), now)

    def _reap(self, now: float) -> None:
        """Let managers end that nobody uses; a submit that comes first keeps them."""
        foreign = self._roster.ledger.foreign
        for desk in self._idle.look(self._roster.desks, now):
            # With its manager a pause would end, though nobody has decided that.
            if desk.ref is not None and not foreign.pauses(desk.slot.where):
                desk.ref.try_tell(Retire())

    def _wake_by(self, at: float, now: float) -> None:
        """Look again at ``at``; a timer that comes earlier is left to come and look again."""
        if self._timer is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at < inf:
            # It may come a rounding error too early, and is set anew then.
            self._timer = self.tell_after(max(0.0, at - now), Alarm())

    def _send(self, request: Request, now: float) -> None:
        try:
            future = self._ask(request)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the group must go on
            future = Future()
            future.set_exception(error)
        flight = self._roster.flight = Flight(request, future, now)
        self._await(flight)

    def _ask(self, request: Request) -> Future[Any]:
        timeout_s = self._settings.request_timeout_s
        if isinstance(request, CommitRequest):
            offsets = {partition: v.value for partition, v in request.versions.items()}
            return self._coordinator.commit(self._group, offsets, timeout_s)
        return self._coordinator.fetch(self._group, tuple(request.members), timeout_s)

    def _read_logs(self, now: float) -> None:
        """Ask for the ends of logs; this is not about the group, and waits for nothing."""
        request = self._plan.logs_to_read(now)
        if request is None:
            return
        ref, recent, clock = self.actor_ref, self._recent, self.system.clock
        known = recent.get(request.topics, now)
        if self._plan.lies_within(known):
            ref.try_tell(LogsRead(request, known))
            return

        def answered(done: Future[Mapping[str, TopicLog]]) -> None:
            logs = {} if done.exception() is not None else done.get()
            recent.put(logs, clock.now())
            ref.try_tell(LogsRead(request, logs))

        timeout_s = self._settings.request_timeout_s
        try:
            future = self._coordinator.topic_logs(request.topics, timeout_s)
        except Exception as error:  # noqa: BLE001 -- as for any other request
            future = Future()
            future.set_exception(error)
        future.add_done_callback(answered)

    def _await(self, flight: Flight) -> None:
        ref = self.actor_ref

        def answered(done: Future[Any]) -> None:
            error = done.exception()
            result = done.get() if error is None else broken(flight.request, error)
            ref.try_tell(Answered(flight, result))

        flight.future.add_done_callback(answered)
        self._watch(self.system.clock.now())

    def _watch(self, now: float) -> None:
        """Give the request in flight up where its answer is long overdue; else look again then."""
        flight = self._roster.flight
        if flight is None or self._watching:
            return
        left_s = flight.started_at + self._settings.request_timeout_s + OVERDUE_S - now
        if left_s > 0:
            # One timer for many requests: it comes, finds a younger one, and waits for that.
            self._watching = True
            self.tell_after(left_s, Overdue())
        else:
            self._answered(flight, given_up(flight.request), now)

    def _answered(self, flight: Flight, result: Any, now: float) -> None:
        if flight is not self._roster.flight:
            return
        self._roster.flight = None
        request = flight.request
        kind: Literal["commit", "fetch"] = "fetch"
        notes: Notes | AllCommitted
        if isinstance(request, CommitRequest):
            kind = "commit"
            notes = self._plan.committed(request, result, now)
        elif isinstance(request, FetchRequest):
            notes = self._plan.fetched(request, result, now)
        else:
            notes = self._plan.read_back(request, result, now)
        if isinstance(notes, AllCommitted):
            self._teller.tell_all(notes, flight.flushes, now)
        else:
            self._teller.tell(notes, now)
        size, failed = len(request.members), len(result.failures)
        self._observer.requested(kind, self._group, size, failed, now - flight.started_at)
