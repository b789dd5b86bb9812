"""What one manager and its user share: the slot, the mailboxes, those who wait.

The desk outlives its actor: a restarted actor finds here what was submitted and who waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors import DropOldest, Latest, OneShot
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager.slot import SubmitSlot
from offsetmgr.manager.state import Phase, State
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult

if TYPE_CHECKING:
    from actors import ActorRef
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.slot import Version
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.manager.tray import Tray
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
    """When the coordinator last acknowledged a commit, in seconds of the system's clock."""
    dirty: bool
    """Whether the newest submitted offset is not known to be committed."""
    last_error: OffsetManagerError | None
    """What went wrong last; None once a later request succeeded."""
    regressions: int
    """How many lower offsets were refused."""


class Waiter(NamedTuple):
    """Somebody who flushes, and for what."""

    number: int
    """The version that has to be committed."""
    ticket: Ticket


_BORN = State()
_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each manager that is flushed."""


class Desk:
    """One manager.

    Any thread fills its slot, and adds to ``stops``.  ``state`` and ``result`` are written by its
    actor, which answers ``stops`` once it has a result; what was acknowledged, ``waiters`` and
    ``troubled`` by its group's committer; all are replaced whole, so that any thread may read them.
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
        "slot",
        "state",
        "stops",
        "troubled",
        "waiters",
    )

    def __init__(
        self, tray: Tray, where: TopicPartition, owner: str, error_limit: int, observer: Observer
    ) -> None:
        self.key = ManagerKey(tray.group, *where)
        self.owner = owner
        self.slot = SubmitSlot(tray, where)
        self.initial: OneShot[OffsetAndMetadata | None] = OneShot()
        self.committed: Latest[OffsetAndMetadata] = Latest()
        self.errors: DropOldest[OffsetManagerError] = DropOldest(error_limit)
        self.ref: ActorRef[Any] | None = None
        """None until the factory's actor has started the manager's."""
        self.state = _BORN
        self.acknowledged: OffsetAndMetadata | None = None
        """What the coordinator was last known to hold; None where that is nothing."""
        self.acknowledged_at: float | None = None
        """When it last acknowledged a commit, in the clock's seconds."""
        self.troubled = False
        """Whether the actor was told of a failure, and of no success since."""
        self.waiters: tuple[Waiter, ...] = ()
        self.stops: tuple[Ticket, ...] = ()
        """Who waits for its end."""
        self.result: StopResult | None = None
        """How it ended; None while it lives."""
        self._observer = observer

    def end_for(self, ticket: Ticket) -> None:
        """``ticket`` waits for its end; told twice is harmless."""
        with self.slot.tray.lock:
            if ticket not in self.stops:
                self.stops = (*self.stops, ticket)

    def wait(self, number: int, ticket: Ticket, now: float) -> None:
        """``ticket`` waits until version ``number`` is committed."""
        waiter = _new(Waiter, (number, ticket))
        if self.waiters:
            # Impatient callers must not pile up while the coordinator is away.
            waiting = [each for each in self.waiters if each.ticket.deadline > now]
            self.waiters = (*waiting, waiter)
        else:
            self.waiters = (waiter,)

    def acknowledge(self, version: Version, now: float) -> None:
        """Tell that the coordinator holds ``version``.

        It is told before it is settled: a stop that finds nothing left closes the mailbox.
        """
        value = version.value
        self.acknowledged = value
        self.acknowledged_at = now
        self.committed.put(value)
        self._observer.committed(self.key, value)

    def left(self) -> StopResult:
        """What is committed and what is not, now; once it has ended, how it ended."""
        if self.result is not None:
            return self.result
        wanted = self.slot.wanted()
        if wanted is None:
            return StopResult(self.acknowledged)
        return StopResult(self.acknowledged, wanted.value, self.state.last_error)

    def settled(self) -> StopResult:
        """The same where nothing is under way; also tells that the last submit was dropped."""
        if self.result is not None:
            return self.result
        wanted, dropped = self.slot.outlook()
        if wanted is not None:
            return StopResult(self.acknowledged, wanted.value, self.state.last_error)
        return self.clean(dropped)

    def clean(self, dropped: OffsetAndMetadata | None) -> StopResult:
        """What is committed, where nothing was left but ``dropped``; newer submits do not count."""
        if dropped is None:
            return StopResult(self.acknowledged)
        # A slot that is closed has a floor above all offsets.
        floor = self.slot.floor if self.acknowledged is None else self.acknowledged.offset
        error = OffsetRegressionError(str(self.key), dropped.offset, floor)
        return StopResult(self.acknowledged, dropped, error)

    def status(self) -> ManagerStatus:
        """A snapshot."""
        state, slot = self.state, self.slot
        phase = Phase.STOPPING if state.phase is Phase.CLOSING else state.phase
        newest = slot.newest
        return ManagerStatus(
            phase.value,
            None if newest is None else newest.value,
            self.acknowledged,
            self.acknowledged_at,
            slot.dirty,
            state.last_error,
            slot.regressions,
        )
