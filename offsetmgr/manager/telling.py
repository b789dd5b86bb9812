"""Who is told what the coordinator answered: those who flush, and managers it concerns."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    OffsetRegressionError,
)
from offsetmgr.manager import state as machine
from offsetmgr.manager.requests import (
    AllCommitted,
    InitialFailed,
    InitialKnown,
    Noticed,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.slot import Standing
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.plan import CommitPlan
    from offsetmgr.manager.requests import Notes
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each offset."""

Answers: TypeAlias = "defaultdict[Ticket, list[tuple[Desk, StopResult]]]"


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

    def tell(self, notes: Notes | AllCommitted, now: float) -> None:
        """Pass answers on: to whoever flushes, then to the managers whose life they change."""
        if isinstance(notes, AllCommitted):
            self._tell_all(notes, now)
        elif notes:
            self._tell_each(notes, now)

    def _tell_all(self, notes: AllCommitted, now: float) -> None:
        """The same for what simply succeeded, where hardly a manager has to hear of it."""
        answers: Answers = defaultdict(list)
        desks = map(self._desks.get, notes.request.versions)
        each = zip(desks, notes.request.versions.values(), notes.clean, strict=True)
        others: Notes = []
        for desk, version, clean in each:
            if desk is None:
                continue
            if desk.troubled or desk.slot.closed or not clean:
                others.append((desk.slot.where, _new(VersionCommitted, (version, clean))))
            elif desk.waiters:
                result = _new(StopResult, (version[1], None, None))
                self._resolve(desk, version[0], result, answers)
        _answer(answers)
        if others:
            self._tell_each(others, now)

    def _tell_each(self, notes: Notes, now: float) -> None:
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
