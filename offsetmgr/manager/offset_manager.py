"""The OffsetManager actor: one per group/topic/partition; applies what ``state.py`` decides.

It hears of what changes its life: the initial offset, failures, a stop.  A commit that simply
succeeds is put on its desk by the group's committer, for all managers of the group in one go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from actors import PooledActor
from offsetmgr.manager import state as machine
from offsetmgr.manager.slot import Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import ActorRef
    from offsetmgr.manager.desk import Desk
    from offsetmgr.manager.names import Names
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.types import StopResult


# Messages from the handle.


class Stop(NamedTuple):
    """End, once what is newest is committed; answer ``ticket`` then."""

    ticket: Ticket


class Abandon(NamedTuple):
    """The deadline of a stop has passed: end now, unless another stop gives more time."""


# Message from the group's committer.


class Retire(NamedTuple):
    """Nobody has used it for a while: end, unless something waits to be committed."""


# Messages to the group's committer.


class Hurry(NamedTuple):
    """Commit now what these managers hold."""

    desks: Sequence[Desk]
    ticket: Ticket | None = None
    """Answered with what was committed, where somebody flushes."""


class Rejoin(NamedTuple):
    """The manager was restarted before it learned of its initial offset."""

    desk: Desk


class Leave(NamedTuple):
    """The manager is gone."""

    desk: Desk


Message: TypeAlias = (
    "Stop | Abandon | Retire | machine.Fetched | machine.FetchFailed"
    " | machine.Committed | machine.CommitFailed | machine.Noticed"
)


def deliver(desk: Desk, message: Stop | Abandon) -> bool:
    """Tell a manager; True where it has the message, or has ended.

    Who stops one that has ended is answered with how that was.
    """
    told = desk.ref is not None and desk.ref.try_tell(message)
    # Looked at after telling: the result is there before the actor's end, behind which no
    # message is handled any more.
    if desk.result is None:
        return told
    if isinstance(message, Stop):
        message.ticket.done([(desk, desk.result)])
    return True


class OffsetManager(PooledActor):
    """Owns the committed offset of one partition in one group."""

    def __init__(
        self,
        desk: Desk,
        committer: ActorRef[Any],
        observer: Observer,
        names: Names,
    ) -> None:
        super().__init__()
        self._desk = desk
        self._committer = committer
        self._observer = observer
        self._names = names

    def on_start(self) -> None:
        """Go on from the desk: an earlier instance may have failed over anything."""
        desk = self._desk
        desk.state = machine.restarted(desk.state, told=desk.initial.closed)
        if desk.state.phase is machine.Phase.STOPPED:
            self._finish(None)
        elif desk.slot.closed:
            self._committer.tell(Hurry([desk]))
            self._step(self._stop_asked())
            if desk.stops:
                self._abandon_late()

    def on_restart(self, reason: BaseException) -> None:
        """Ask for the initial offset again, where that is what the failure was about."""
        del reason
        desk = self._desk
        if desk.state.phase in {machine.Phase.FETCHING, machine.Phase.CLOSING}:
            self._committer.tell(Rejoin(desk))

    def on_receive(self, message: Message) -> None:
        """Turn the message into an event and take the step."""
        desk = self._desk
        if isinstance(message, Stop):
            if desk.result is not None:
                message.ticket.done([(desk, desk.result)])
                return
            desk.end_for(message.ticket)
            self._step(self._stop_asked())
        elif isinstance(message, Abandon):
            self._abandon_late()
        elif isinstance(message, Retire):
            if self._names.retire(desk):
                self._step(machine.Abandoned())
        else:
            self._step(self._as_of_now(message))

    def _abandon_late(self) -> None:
        """End now where no stop gives more time."""
        now = self.system.clock.now()
        if all(ticket.deadline <= now for ticket in self._desk.stops):
            self._step(machine.Abandoned())

    def _as_of_now(self, event: machine.Event) -> machine.Event:
        """``event``, unless something newer was submitted after the committer had looked.

        A stop came with it then, and came first: the manager must not end with what is older.
        """
        wanted = self._desk.slot.wanted()
        match event:
            case machine.Committed(number, clean=True) if wanted:
                return machine.Committed(number, clean=False)
            case machine.CommitFailed(number, error, final=True) if (
                wanted and wanted.number > number
            ):
                return machine.CommitFailed(number, error, final=False)
            case machine.Fetched() if wanted:
                return event._replace(standing=Standing.DIRTY)
        return event

    def _stop_asked(self) -> machine.StopAsked:
        slot = self._desk.slot
        dirty = slot.dirty
        # What became of the last submit may be known, while the message of it is on its way.
        untold = slot.established and self._desk.state.phase is machine.Phase.FETCHING
        return machine.StopAsked(dirty or untold)

    def _step(self, event: machine.Event) -> None:
        desk = self._desk
        desk.state, effects = machine.step(desk.state, event)
        for effect in effects:
            match effect:
                case machine.PublishInitial(committed):
                    desk.initial.put(committed)
                case machine.PublishError(error):
                    desk.errors.put(error)
                    self._observer.failed(desk.key, error)
                case machine.Finish(result):
                    self._finish(result)

    def _finish(self, answer: StopResult | None) -> None:
        """End; again where an earlier instance failed over it."""
        desk = self._desk
        first = desk.result is None
        result = desk.result = desk.result or answer or desk.settled()
        desk.slot.close()
        desk.initial.close()
        desk.committed.close()
        desk.errors.close()
        if first:
            # While the name is its own: behind it, this would be told of the next one.  Only who
            # retires has just given it back.
            self._observer.stopped(desk.key, result)
        # The name is free before whoever stops it is answered, so that a new one can start at once.
        self._names.release(desk)
        self._committer.try_tell(Leave(desk))
        stops, desk.stops = desk.stops, ()
        for ticket in stops:
            ticket.done([(desk, result)])
        self.stop()
