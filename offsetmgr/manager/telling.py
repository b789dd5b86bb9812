"""Who is told what the coordinator answered: those who flush, and managers it concerns."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    OffsetRegressionError,
)
from offsetmgr.manager import state as machine
from offsetmgr.manager.desk import Waiter
from offsetmgr.manager.requests import (
    InitialFailed,
    InitialKnown,
    Noticed,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import Standing
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.plan import CommitPlan
    from offsetmgr.manager.requests import AllCommitted, Notes
    from offsetmgr.manager.slot import Version
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each offset."""

Answers: TypeAlias = "defaultdict[Ticket, list[tuple[Desk, StopResult]]]"

_waiters_of: Final = attrgetter("waiters")


def is_answer(desk: Desk, version: Version) -> bool:
    """Whether that ``version`` is committed says how the manager stands.

    One that is settled goes out to be kept alive; nobody has to wait for that.  Nor is an older one
    the answer, where the newest one's log has to be looked at first.
    """
    slot = desk.slot
    return version[0] > slot.settled and version is slot.seen and desk.result is None


class Flush:
    """Who waits for nothing but what one commit carries, with the answer if that succeeds.

    It is noted down while the coordinator works, so that not much is left to do when it answers.
    The desks know of their waiter as of any other, and what is said here holds only as long as
    theirs is the only one.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._desks: list[Desk] = []
        self._waiters: list[tuple[Waiter, ...]] = []
        self._results: dict[ManagerKey, StopResult] = {}

    def wait(
        self, desks: Iterable[Desk], carried: Mapping[TopicPartition, Version], now: float
    ) -> list[Desk]:
        """Wait for what is ``carried``; returns those for which that is not the answer."""
        others: list[Desk] = []
        last = (Waiter(0, self._ticket),)
        for desk in desks:
            slot = desk.slot
            version = carried.get(slot.where)
            if version is None or not is_answer(desk, version):
                others.append(desk)
            elif desk.waiters:
                desk.wait(version[0], self._ticket, now)
            else:
                if last[0][0] != version[0]:
                    # One for all that have come as far: those of a job mostly have.
                    last = (Waiter(version[0], self._ticket),)
                desk.waiters = last
                self._desks.append(desk)
                self._waiters.append(last)
                self._results[desk.key] = _new(StopResult, (version[1], None, None))
        return others

    def answer(self) -> None:
        """The commit has succeeded; answers nobody where somebody else has come or gone."""
        if all(map(is_, map(_waiters_of, self._desks), self._waiters)):
            for desk in self._desks:
                desk.waiters = ()
            self._ticket.done_all(self._desks, self._results)


class Teller:
    """Passes on what a group's plan made of an answer; its committer's own."""

    def __init__(self, desks: Mapping[TopicPartition, Desk], plan: CommitPlan) -> None:
        self._desks = desks
        self._plan = plan

    def over(self, desk: Desk) -> None:
        """The manager is gone: who flushes it is answered with how it ended."""
        answers: Answers = defaultdict(list)
        self._resolve(desk, inf, desk.left(), answers)
        _answer(answers)

    def tell_all(self, notes: AllCommitted, flushes: Iterable[Flush], now: float) -> None:
        """As ``tell`` for what simply succeeded: hardly a manager has to hear of it."""
        for flush in flushes:
            flush.answer()
        versions = notes.request.versions
        each = zip(map(self._desks.get, versions), versions.values(), notes.clean, strict=True)
        self.tell(
            [
                (desk.slot.where, VersionCommitted(version, clean))
                for desk, version, clean in each
                if desk is not None
                and (desk.waiters or desk.troubled or desk.slot.closed or not clean)
            ],
            now,
        )

    def tell(self, notes: Notes, now: float) -> None:
        """Pass answers on: to whoever flushes, then to the managers whose life they change."""
        if not notes:
            return
        answers: Answers = defaultdict(list)
        told: list[tuple[Desk, machine.Event]] = []
        desks = self._desks
        for partition, note in notes:
            desk = desks.get(partition)
            if desk is None:
                continue
            if isinstance(note, VersionCommitted):
                version, clean = note
                if desk.waiters:
                    result = _new(StopResult, (version.value, None, None))
                    self._resolve(desk, version.number, result, answers)
                if not clean and (desk.waiters or desk.slot.closed):
                    # They wait for a newer one, and their hurry was spent on this.
                    self._plan.mark_dirty(partition, now, urgent=True)
                if desk.troubled or desk.slot.closed:
                    desk.troubled = desk.troubled and not clean
                    told.append((desk, machine.Committed(version.number, clean)))
            else:
                told.append((desk, self._changed(desk, note, answers, now)))
        _answer(answers)
        for desk, event in told:
            if desk.ref is not None:
                desk.ref.try_tell(event)

    def _changed(
        self,
        desk: Desk,
        note: InitialKnown | InitialFailed | VersionFailed | Noticed,
        answers: Answers,
        now: float,
    ) -> machine.Event:
        key = desk.key
        match note:
            case InitialKnown(committed):
                return self._established(desk, committed, answers, now)
            case InitialFailed(failure):
                return machine.FetchFailed(
                    OffsetFetchError(*key, None, failure.info, failure.detail)
                )
            case Noticed(failure, before, committed):
                desk.acknowledged = committed
                offset = before.offset
                return machine.Noticed(
                    OffsetNoticeError(*key, offset, failure.info, failure.detail)
                )
            case VersionFailed(version, failure, final):
                desk.troubled = True
                offset = version.value.offset
                error = OffsetCommitError(*key, offset, failure.info, failure.detail)
                if final:
                    result = StopResult(desk.acknowledged, version.value, error)
                    self._resolve(desk, version.number, result, answers)
                elif not failure.info.retriable and (desk.waiters or desk.slot.closed):
                    # They wait for a newer one, and their hurry was spent on this.
                    self._plan.mark_dirty(desk.slot.where, now, urgent=True)
                return machine.CommitFailed(version.number, error, final)

    def _established(
        self, desk: Desk, committed: OffsetAndMetadata | None, answers: Answers, now: float
    ) -> machine.Fetched:
        """Compare what is committed with what was submitted meanwhile."""
        desk.acknowledged = committed
        standing, submitted = desk.slot.establish(committed)
        if standing is Standing.DIRTY:
            urgent = bool(desk.waiters) or desk.slot.closed
            self._plan.mark_dirty(desk.slot.where, now, urgent=urgent)
            return machine.Fetched(committed, standing, submitted)
        error, result = None, StopResult(committed)
        if standing is Standing.REGRESSED and submitted is not None and committed is not None:
            error = OffsetRegressionError(str(desk.key), submitted.value.offset, committed.offset)
            result = StopResult(committed, submitted.value, error)
        self._resolve(desk, inf, result, answers)
        return machine.Fetched(committed, standing, submitted, error)

    def _resolve(self, desk: Desk, number: float, result: StopResult, answers: Answers) -> None:
        """Who waits for versions up to ``number`` of ``desk`` is answered with ``result``."""
        waiters, desk.waiters = desk.waiters, ()
        if len(waiters) == 1 and waiters[0].number <= number:
            answers[waiters[0].ticket].append((desk, result))
            return
        for waiter in waiters:
            if waiter.number <= number:
                answers[waiter.ticket].append((desk, result))
            else:
                desk.waiters = (*desk.waiters, waiter)


def _answer(answers: Answers) -> None:
    for ticket, results in answers.items():
        ticket.done(results)
