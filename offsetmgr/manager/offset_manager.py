"""The OffsetManager actor: one per group/topic/partition; applies what ``lifecycle.py`` decides.

It hears of what changes its life: the initial offset, failures, a stop.  A commit that simply
succeeds is published by the group's committer, for all managers of the group at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from actors import PooledActor
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.manager import lifecycle
from offsetmgr.manager.group_committer import Expedite, Leave, Rejoin

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import ActorRef
    from offsetmgr.manager.observer import Observer
    from offsetmgr.manager.partition_state import PartitionState


class Stop(NamedTuple):
    """End, once the newest offset is committed; who waits for it is in ``PartitionState.stops``."""


class Abandon(NamedTuple):
    """The deadline of a stop has passed: end now, unless another stop gives more time."""


ManagerMessage: TypeAlias = (
    "Stop | Abandon | lifecycle.Fetched | lifecycle.FetchFailed"
    " | lifecycle.Committed | lifecycle.CommitFailed | lifecycle.Noticed"
)


class OffsetManager(PooledActor):
    """Owns the committed offset of one partition in one group."""

    def __init__(
        self,
        state: PartitionState,
        committer: ActorRef[Any],
        observer: Observer,
        release: Callable[[PartitionState], None],
    ) -> None:
        super().__init__()
        self._state = state
        self._committer = committer
        self._observer = observer
        self._release = release

    def on_start(self) -> None:
        """Go on from the state: an earlier instance may have failed over anything."""
        own = self._state
        own.state = lifecycle.restarted(own.state, fetched=own.initial.done())
        if own.state.phase is lifecycle.Phase.STOPPED:
            self._finish()
        elif own.submits.closed:
            self._committer.tell(Expedite([own]))
            self._step(self._stop_asked())
            if own.stops:
                self._abandon_late()

    def on_restart(self, reason: BaseException) -> None:
        """Ask for the initial offset again, where that is what the failure was about."""
        del reason
        if not self._state.state.fetched:
            self._committer.tell(Rejoin(self._state))

    def on_receive(self, message: ManagerMessage) -> None:
        """Turn the message into an event and take the step."""
        if isinstance(message, Stop):
            self._step(self._stop_asked())
        elif isinstance(message, Abandon):
            self._abandon_late()
        else:
            self._step(message)

    def _abandon_late(self) -> None:
        """End now where no stop gives more time."""
        now = self.system.clock.now()
        if all(waiter.deadline <= now for waiter in self._state.stops):
            self._step(lifecycle.Abandoned())

    def _stop_asked(self) -> lifecycle.StopAsked:
        own = self._state
        # The outcome of the last submit may be known while the message of it is on its way.
        pending = own.submits.established and not own.state.fetched
        return lifecycle.StopAsked(own.submits.dirty or pending)

    def _step(self, event: lifecycle.Event) -> None:
        own = self._state
        newest = own.submits.uncommitted
        own.state, effects = lifecycle.step(own.state, event, newest.number if newest else 0)
        for effect in effects:
            match effect:
                case lifecycle.PublishInitial(committed):
                    own.initial.set(committed)
                case lifecycle.PublishError(error):
                    own.errors.put(error)
                    self._observer.failed(own.key, error)
                case lifecycle.Finish():
                    self._finish()

    def _waited_s(self) -> float:
        return max((waiter.timeout for waiter in self._state.stops), default=0.0)

    def _finish(self) -> None:
        """End; again where an earlier instance failed over it."""
        own = self._state
        first = own.result is None
        result = own.result = own.result_after(self._waited_s())
        own.submits.close()
        text = f"{own.key} was stopped before its initial offset arrived"
        own.initial.set_exception(ManagerStoppedError(text))
        own.committed.close()
        own.errors.close()
        if first:
            # Told while the name is its own: later this could be of the next manager's time.
            self._observer.stopped(own.key, result)
        # The name is free before the stops are answered, so that a new manager can start at once.
        self._release(own)
        self._committer.try_tell(Leave(own))
        stops, own.stops = own.stops, ()
        for waiter in stops:
            waiter.answer([(own, result)])
        self.stop()
