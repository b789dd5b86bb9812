"""Passes the results of a group's requests on: to flushes that wait, and to managers."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    OffsetRegressionError,
)
from offsetmgr.manager import lifecycle
from offsetmgr.manager.requests import (
    InitialFailed,
    InitialKnown,
    Noticed,
    VersionCommitted,
    VersionFailed,
)
from offsetmgr.manager.submits import SubmitStatus, Version
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.partition_state import PartitionState, Waiter
    from offsetmgr.manager.plan import CommitPlan
    from offsetmgr.manager.requests import Results
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

Answers: TypeAlias = "defaultdict[Waiter, list[tuple[PartitionState, StopResult]]]"


class Notifier:
    """Tells the managers of one group; its committer's own."""

    def __init__(self, states: Mapping[TopicPartition, PartitionState], plan: CommitPlan) -> None:
        self._states = states
        self._plan = plan

    def departed(self, state: PartitionState) -> None:
        """The manager is gone: answer its flushes with how it ended."""
        answers: Answers = defaultdict(list)
        _resolve(state, inf, state.result_without_actor(), answers)
        _send(answers)

    def notify(self, results: Results, now: float) -> None:
        """Answer flushes, then tell the managers whose life a result changes."""
        if not results:
            return
        answers: Answers = defaultdict(list)
        events: list[tuple[PartitionState, lifecycle.Event]] = []
        found = ((self._states.get(partition), result) for partition, result in results)
        for state, result in ((state, result) for state, result in found if state is not None):
            match result:
                case VersionCommitted():
                    self._committed(state, result, answers, events, now)
                case VersionFailed():
                    events.append((state, self._failed(state, result, answers, now)))
                case InitialKnown(committed):
                    events.append((state, self._initial_known(state, committed, answers, now)))
                case InitialFailed(failure):
                    error = OffsetFetchError(*state.key, None, failure.info, failure.detail)
                    events.append((state, lifecycle.FetchFailed(error)))
                case Noticed(failure, before, committed):
                    state.acknowledged = committed
                    notice = OffsetNoticeError(
                        *state.key, before.offset, failure.info, failure.detail
                    )
                    events.append((state, lifecycle.Noticed(notice)))
        _send(answers)
        for state, event in events:
            if state.ref is not None:
                state.ref.try_tell(event)

    def _committed(
        self,
        state: PartitionState,
        result: VersionCommitted,
        answers: Answers,
        events: list[tuple[PartitionState, lifecycle.Event]],
        now: float,
    ) -> None:
        (number, value), clean = result
        if state.flushes:
            _resolve(state, number, StopResult(value), answers)
        stopping = state.submits.closed
        if not clean and (state.flushes or stopping):
            self._expedite_newer(state, now)
        if state.troubled or stopping:
            state.troubled = state.troubled and not clean
            events.append((state, lifecycle.Committed(number, clean)))

    def _failed(
        self, state: PartitionState, result: VersionFailed, answers: Answers, now: float
    ) -> lifecycle.CommitFailed:
        (number, value), failure, final = result
        state.troubled = True
        error = OffsetCommitError(*state.key, value.offset, failure.info, failure.detail)
        if final:
            _resolve(state, number, StopResult(state.acknowledged, value, error), answers)
        elif not failure.info.retriable and (state.flushes or state.submits.closed):
            self._expedite_newer(state, now)
        return lifecycle.CommitFailed(number, error, final)

    def _expedite_newer(self, state: PartitionState, now: float) -> None:
        """Callers wait for a newer version, and their urgency was spent on this one."""
        self._plan.mark_dirty(state.submits.partition, now, urgent=True)

    def _initial_known(
        self,
        state: PartitionState,
        committed: OffsetAndMetadata | None,
        answers: Answers,
        now: float,
    ) -> lifecycle.Fetched:
        """Compare what is committed with what was submitted meanwhile."""
        state.acknowledged = committed
        first = not state.submits.established
        status, dropped = state.submits.establish(committed)
        if status is SubmitStatus.DIRTY:
            urgent = bool(state.flushes) or state.submits.closed
            self._plan.mark_dirty(state.submits.partition, now, urgent=urgent)
            return lifecycle.Fetched(committed, dirty=True)
        settled = state.submits.settled
        if first and settled and dropped is None and committed is not None:
            # The same was submitted: whoever did waits for it.
            state.acknowledge(Version(settled, committed), now)
        error, result = None, StopResult(committed)
        if dropped is not None and committed is not None:
            error = OffsetRegressionError(str(state.key), dropped.offset, committed.offset)
            result = StopResult(committed, dropped, error)
        _resolve(state, inf, result, answers)
        return lifecycle.Fetched(committed, dirty=False, dropped=dropped, error=error)


def _resolve(state: PartitionState, number: float, result: StopResult, answers: Answers) -> None:
    """Answer the flushes that wait for versions up to ``number``."""
    if not state.flushes:
        return
    waiting = []
    for flush in state.flushes:
        if flush.number <= number:
            answers[flush.waiter].append((state, result))
        else:
            waiting.append(flush)
    state.flushes = tuple(waiting)


def _send(answers: Answers) -> None:
    for waiter, results in answers.items():
        waiter.answer(results)
