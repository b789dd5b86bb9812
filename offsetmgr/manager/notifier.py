"""Passes the results of a group's requests on: to flushes that wait, and to managers."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager import lifecycle
from offsetmgr.manager.plan import InitialKnown
from offsetmgr.manager.submits import Version
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.partition_state import PartitionState, Waiter
    from offsetmgr.manager.plan import CommitPlan, Result, Results
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
        for partition, result in results:
            state = self._states.get(partition)
            event = None if state is None else self._event(state, result, answers, now)
            if state is not None and event is not None:
                events.append((state, event))
        _send(answers)
        for state, event in events:
            if state.ref is not None:
                state.ref.try_tell(event)

    def _event(
        self, state: PartitionState, result: Result, answers: Answers, now: float
    ) -> lifecycle.Event | None:
        """Return what the manager has to hear, if anything."""
        match result:
            case lifecycle.Committed():
                return result if self._committed(state, result, answers) else None
            case InitialKnown(committed):
                return self._initial_known(state, committed, answers, now)
            case lifecycle.CommitFailed():
                self._failed(state, result, answers)
            case lifecycle.Noticed(_, committed):
                state.acknowledged = committed
        return result

    def _committed(
        self, state: PartitionState, result: lifecycle.Committed, answers: Answers
    ) -> bool:
        """Answer flushes; return True if the manager has to hear of it."""
        (number, value), clean = result
        if state.flushes:
            _resolve(state, number, StopResult(value), answers)
        stopping = state.submits.closed
        if not clean and (state.flushes or stopping):
            self._expedite_newer(state)
        troubled = state.troubled
        state.troubled = troubled and not clean
        return troubled or stopping

    def _failed(
        self, state: PartitionState, result: lifecycle.CommitFailed, answers: Answers
    ) -> None:
        (number, value), error, final = result
        state.troubled = True
        if final:
            _resolve(state, number, StopResult(state.acknowledged, value, error), answers)
        elif not error.retriable and (state.flushes or state.submits.closed):
            self._expedite_newer(state)

    def _expedite_newer(self, state: PartitionState) -> None:
        """Callers wait for a newer version, and their urgency was spent on this one."""
        self._plan.mark_dirty(state.submits.partition, -inf)

    def _initial_known(
        self,
        state: PartitionState,
        committed: OffsetAndMetadata | None,
        answers: Answers,
        now: float,
    ) -> lifecycle.Fetched:
        """Compare what is committed with what was submitted meanwhile."""
        state.acknowledged = committed
        submits = state.submits
        first = not submits.established
        submits.establish(committed)
        uncommitted, dropped = submits.outlook()
        if uncommitted is not None:
            urgent = bool(state.flushes) or submits.closed
            self._plan.mark_dirty(submits.partition, -inf if urgent else now)
            return lifecycle.Fetched(committed, dirty=True)
        if first and submits.settled and dropped is None and committed is not None:
            # The same was submitted: whoever did waits for it.
            state.acknowledge(Version(submits.settled, committed), now)
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
