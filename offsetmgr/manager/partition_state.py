"""The state one manager shares with its user: submits, mailboxes, and waiting callers.

It outlives the manager's actor: a restarted actor finds its submits and waiters here.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from actors import Future, Mailbox
from offsetmgr.errors import (
    ManagerStoppedError,
    OffsetCommitError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.manager.lifecycle import State
from offsetmgr.manager.submits import SubmitBuffer
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import ActorRef
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.submits import GroupSubmits, Version
    from offsetmgr.types import TopicPartition


class ManagerStatus(NamedTuple):
    """A manager at one moment, for operators."""

    phase: str
    """``fetching``, ``ready``, ``stopping`` or ``stopped``."""
    submitted: OffsetAndMetadata | None
    """Newest submitted offset."""
    committed: OffsetAndMetadata | None
    """Last offset known to be committed."""
    committed_at: float | None
    """Time of the last acknowledged commit, in seconds of the system's clock."""
    dirty: bool
    """True if the newest submitted offset is not known to be committed."""
    last_error: OffsetManagerError | None
    """The last failure; None once a later request succeeded."""
    regressions: int
    """The number of lower offsets that were refused."""


class PartitionState:
    """One manager's state.

    Any thread submits, and adds to ``stops``.  ``state`` and ``result`` are written by its actor,
    ``acknowledged`` and ``troubled`` by its group's committer; all are replaced whole, so that any
    thread may read them.
    """

    __slots__ = (
        "_observer",
        "acknowledged",
        "acknowledged_at",
        "committed",
        "errors",
        "initial",
        "key",
        "owner",
        "ref",
        "result",
        "state",
        "stops",
        "submits",
        "troubled",
    )

    def __init__(
        self,
        group: GroupSubmits,
        partition: TopicPartition,
        owner: str,
        error_limit: int,
        observer: Observer,
    ) -> None:
        self.key = ManagerKey(group.name, *partition)
        self.owner = owner
        self.submits = SubmitBuffer(group, partition)
        self.initial: Future[OffsetAndMetadata | None] = Future()
        self.committed: Mailbox[OffsetAndMetadata] = Mailbox(1)
        self.errors: Mailbox[OffsetManagerError] = Mailbox(error_limit)
        self.ref: ActorRef[Any] | None = None
        """None until the factory's actor has started the manager's."""
        self.state = State()
        self.acknowledged: OffsetAndMetadata | None = None
        """The last known committed offset; None where nothing is committed."""
        self.acknowledged_at: float | None = None
        """Time of the last acknowledged commit, in the clock's seconds."""
        self.troubled = False
        """True if the actor was told of a failure, and of no success since."""
        self.stops: tuple[Waiter, ...] = ()
        self.result: StopResult | None = None
        """The result of its stop; None while it lives."""
        self._observer = observer

    def add_stop(self, waiter: Waiter) -> None:
        """Have ``waiter`` answered at the manager's end."""
        with self.submits.group.lock:
            self.stops = (*self.stops, waiter)

    @property
    def concerned(self) -> bool:
        """True if its actor has to hear of a success: it stops, or had an error."""
        return self.troubled or self.submits.closed

    def acknowledge(self, version: Version, now: float) -> bool:
        """Publish that the coordinator holds ``version``; return True if nothing newer waits.

        Published before it is settled: a stop that finds nothing left closes the mailbox.
        """
        number, value = version
        self.acknowledged = value
        self.acknowledged_at = now
        self.committed.put(value)
        try:
            self._observer.committed(self.key, value)
        finally:
            # What was published must not be committed again over somebody else's offset.
            clean = self.submits.settle(number)
        return clean

    def result_after(self, waited_s: float | None) -> StopResult:
        """Return what is committed and what is not; after its end, how it ended.

        ``waited_s`` is how long Kafka had to answer; None where no actor is left to commit.
        """
        if self.result is not None:
            return self.result
        uncommitted, dropped = self.submits.outlook()
        if uncommitted is None:
            return self.result_clean(dropped)
        reason = self._why_uncommitted(uncommitted.value, waited_s)
        return StopResult(self.acknowledged, uncommitted.value, reason)

    def _why_uncommitted(
        self, value: OffsetAndMetadata, waited_s: float | None
    ) -> OffsetManagerError:
        """Return Kafka's last answer, or that there was none."""
        text = f"{self.key}: offset {value.offset} is not committed: "
        if waited_s is None:
            return ManagerStoppedError(f"{text}the actor system was stopped before")
        error = self.state.last_error
        if error is not None and not isinstance(error, OffsetRegressionError):
            return error
        failure = self.submits.group.last_failure
        if failure is not None:
            return OffsetCommitError(*self.key, value.offset, failure.info, failure.detail)
        return OffsetTimeoutError(f"{text}Kafka has not answered within {waited_s:.3g} s")

    def result_clean(self, dropped: OffsetAndMetadata | None) -> StopResult:
        """Return the result where nothing waits but a dropped regression."""
        if dropped is None:
            return StopResult(self.acknowledged)
        # A closed buffer's floor is above all offsets.
        known = self.acknowledged
        floor = self.submits.floor if known is None else known.offset
        error = OffsetRegressionError(str(self.key), dropped.offset, floor)
        return StopResult(known, dropped, error)

    def status(self) -> ManagerStatus:
        """Return a snapshot."""
        state, submits = self.state, self.submits
        newest = submits.newest
        return ManagerStatus(
            state.phase.value,
            None if newest is None else newest.value,
            self.acknowledged,
            self.acknowledged_at,
            submits.dirty,
            state.last_error,
            submits.regressions,
        )


class Waiter:
    """A flush or stop of many managers; answered when all have answered, or when it expires."""

    def __init__(self, states: Iterable[PartitionState], deadline: float, timeout: float) -> None:
        self._lock = Lock()
        # A dictionary as an ordered set: a simulation must replay in the same order.
        self._open = dict.fromkeys(states)
        self._results: dict[ManagerKey, StopResult] = {}
        self.deadline = deadline
        """Time at which it expires, in the clock's seconds."""
        self.timeout = timeout
        self.future: Future[dict[ManagerKey, StopResult]] = Future()
        if not self._open:
            self.future.set({})

    def answer(self, answers: Iterable[tuple[PartitionState, StopResult]]) -> None:
        """Enter answers of managers; the first one of each counts."""
        with self._lock:
            if not self._open:
                return
            for state, result in answers:
                if state in self._open:
                    del self._open[state]
                    self._results[state.key] = result
            complete = not self._open
        if complete:
            self.future.set(self._results)

    def expire(self) -> list[PartitionState]:
        """Answer for the managers that have not; return them."""
        with self._lock:
            late = list(self._open)
            for state in late:
                self._results[state.key] = state.result_after(self.timeout)
            self._open.clear()
        if late:
            self.future.set(self._results)
        return late


class Flush(NamedTuple):
    """A flush that waits for managers of one group; their committer's own."""

    waiter: Waiter
    awaited: dict[PartitionState, int]
    """The managers that have not answered, each with the number of the version to commit."""

    def answer(self, results: Mapping[PartitionState, StopResult]) -> None:
        for state in results:
            del self.awaited[state]
        self.waiter.answer(results.items())

    def waits(self, now: float) -> bool:
        """Return True if an answer is still awaited."""
        return bool(self.awaited) and self.waiter.deadline > now
