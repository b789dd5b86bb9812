"""Passes the results of a group's requests on: to flushes that wait, and to managers."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager import lifecycle
from offsetmgr.manager.plan import InitialKnown
from offsetmgr.manager.submits import Version
from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.manager.partition_state import Flush, PartitionState
    from offsetmgr.manager.plan import CommitPlan, Result, Results
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class Notifier:
    """Tells the managers of one group; its committer's own."""

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        flushes: list[Flush],
        plan: CommitPlan,
    ) -> None:
        self._states = states
        self._flushes = flushes
        self._plan = plan

    def departed(self, state: PartitionState) -> None:
        """The manager is gone: answer its flushes with how it ended."""
        self._answer(state, inf, state.result_without_actor())

    def notify(self, results: Results, now: float) -> None:
        """Answer flushes, then tell the managers whose life a result changes."""
        events: list[tuple[PartitionState, lifecycle.Event]] = []
        for partition, result in results:
            state = self._states.get(partition)
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
        return state.submits.closed or any(state in flush.awaited for flush in self._flushes)

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
            return lifecycle.Fetched(committed, dirty=True)
        if first and submits.settled and dropped is None and committed is not None:
            # The same was submitted: whoever did waits for it.
            state.acknowledge(Version(submits.settled, committed), now)
        error, result = None, StopResult(committed)
        if dropped is not None and committed is not None:
            error = OffsetRegressionError(str(state.key), dropped.offset, committed.offset)
            result = StopResult(committed, dropped, error)
        self._answer(state, inf, result)
        return lifecycle.Fetched(committed, dirty=False, dropped=dropped, error=error)

    def _answer(self, state: PartitionState, number: float, result: StopResult) -> None:
        """Answer the flushes that wait for versions of ``state`` up to ``number``."""
        for flush in self._flushes:
            if state in flush.awaited and flush.awaited[state] <= number:
                flush.answer({state: result})

    def _answer_committed(self, now: float) -> None:
        """Answer the flushes whose versions are committed, and drop those that are over."""
        for flush in self._flushes:
            flush.answer(
                {
                    state: StopResult(state.acknowledged)
                    for state, number in flush.awaited.items()
                    if state.submits.settled >= number
                }
            )
        self._flushes[:] = [each for each in self._flushes if each.waits(now)]
