"""The life of an offset manager: ``step(state, event) -> (state, effects)``.

Nothing here knows of actors, threads or Kafka.  The phases::

    FETCHING ──fetched──► READY ──stop, dirty──► STOPPING ──committed / refused / abandoned──┐
       │                    └────stop, clean────────────────────────────────────────────────►│
       ├──stop, dirty──► CLOSING ──fetched──► STOPPING                                       ▼
       └──stop, clean───────────────────────────────────────────────────────────────────► STOPPED
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.types import StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.errors import OffsetCommitError, OffsetManagerError
    from offsetmgr.manager.submits import Version
    from offsetmgr.types import OffsetAndMetadata


class Phase(Enum):
    """The phase of a manager's life."""

    FETCHING = "fetching"
    """Its initial offset is not known yet; submits are kept, nothing is committed."""
    READY = "ready"
    """Submits are committed."""
    CLOSING = "closing"
    """Stop was asked for while fetching; what was submitted still has to be committed."""
    STOPPING = "stopping"
    """Stop was asked for; the newest offset is being committed."""
    STOPPED = "stopped"
    """The end."""


_INITIAL_UNKNOWN = frozenset({Phase.FETCHING, Phase.CLOSING})


class State(NamedTuple):
    """All that a manager's actor remembers beside its ``PartitionState``."""

    phase: Phase = Phase.FETCHING
    last_error: OffsetManagerError | None = None
    """The last error; None once a later commit or fetch succeeded."""
    failed: int = 0
    """Number of the version that ``last_error`` speaks of; 0 for a fetch."""


# Events.


class Fetched(NamedTuple):
    """The committed offset at the start is known."""

    committed: OffsetAndMetadata | None
    dirty: bool
    """True if what was submitted meanwhile has to be committed."""
    dropped: OffsetAndMetadata | None = None
    """The submit that is lower than what is committed."""
    error: OffsetManagerError | None = None
    """The regression, where one was dropped."""


class FetchFailed(NamedTuple):
    """The fetch failed; the committer tries again."""

    error: OffsetManagerError


class Committed(NamedTuple):
    """The coordinator holds a version; told to a manager that stops, or had an error."""

    version: Version
    clean: bool
    """True if nothing newer waits."""


class CommitFailed(NamedTuple):
    """A version was refused, or its outcome is unknown."""

    version: Version
    error: OffsetCommitError
    final: bool
    """True if it is not tried again until something new is submitted."""


class Noticed(NamedTuple):
    """Nothing failed, but the user and an operator should know."""

    error: OffsetManagerError
    committed: OffsetAndMetadata | None
    """The offset that is committed now."""


class StopAsked(NamedTuple):
    """The user wants the newest offset committed, and the manager gone."""

    dirty: bool
    """True if something is left to be committed, or to be reported."""


class Abandoned(NamedTuple):
    """The deadline of the stop has passed."""


Event: TypeAlias = (
    Fetched | FetchFailed | Committed | CommitFailed | Noticed | StopAsked | Abandoned
)


# Effects.


class PublishInitial(NamedTuple):
    """Fill the initial-offset mailbox."""

    committed: OffsetAndMetadata | None


class PublishError(NamedTuple):
    """Put into the errors mailbox."""

    error: OffsetManagerError


class Finish(NamedTuple):
    """Close the mailboxes, answer the stops, end the actor."""

    result: StopResult | None = None
    """The answer; None for what the manager's ``PartitionState`` says."""


Effect: TypeAlias = PublishInitial | PublishError | Finish
Outcome: TypeAlias = tuple[State, tuple[Effect, ...]]


def _fetched(state: State, event: Fetched) -> Outcome:
    if state.phase not in _INITIAL_UNKNOWN:
        return state, ()  # a second answer, after a restart
    stopping = state.phase is Phase.CLOSING
    phase = Phase.STOPPING if stopping else Phase.READY
    effects: tuple[Effect, ...] = (PublishInitial(event.committed),)
    result = None
    if event.error is not None:
        effects = (*effects, PublishError(event.error))
        result = StopResult(event.committed, event.dropped, event.error)
    if stopping and not event.dirty:
        phase, effects = Phase.STOPPED, (*effects, Finish(result))
    return State(phase, event.error), effects


def _fetch_failed(state: State, event: FetchFailed) -> Outcome:
    if state.phase not in _INITIAL_UNKNOWN:
        return state, ()  # a second answer, after a restart
    # Tried again for as long as it takes: reported once, until something else happens.
    reported = state.last_error is not None and state.last_error.code == event.error.code
    return state._replace(last_error=event.error), () if reported else (PublishError(event.error),)


def _committed(state: State, event: Committed) -> Outcome:
    # The error of a newer version stays: it says why that one is not committed.
    known = State(state.phase) if event.version.number >= state.failed else state
    if state.phase is Phase.STOPPING and event.clean:
        return known._replace(phase=Phase.STOPPED), (Finish(),)
    return known, ()


def _commit_failed(state: State, event: CommitFailed) -> Outcome:
    known = state
    if event.version.number >= state.failed:
        known = State(state.phase, event.error, event.version.number)
    if event.final and state.phase is Phase.STOPPING:
        return known._replace(phase=Phase.STOPPED), (PublishError(event.error), Finish())
    return known, (PublishError(event.error),)


def _noticed(state: State, event: Noticed) -> Outcome:
    return state, (PublishError(event.error),)


def _stop_asked(state: State, event: StopAsked) -> Outcome:
    if state.phase in {Phase.CLOSING, Phase.STOPPING}:
        return state, ()
    if not event.dirty:
        return state._replace(phase=Phase.STOPPED), (Finish(),)
    # The committer has been told by whoever asks for the stop.
    fetching = state.phase is Phase.FETCHING
    return state._replace(phase=Phase.CLOSING if fetching else Phase.STOPPING), ()


def _abandoned(state: State, _event: Abandoned) -> Outcome:
    return state._replace(phase=Phase.STOPPED), (Finish(),)


_TRANSITIONS: Final[Mapping[type[Event], Callable[[State, Any], Outcome]]] = {
    Fetched: _fetched,
    FetchFailed: _fetch_failed,
    Committed: _committed,
    CommitFailed: _commit_failed,
    Noticed: _noticed,
    StopAsked: _stop_asked,
    Abandoned: _abandoned,
}


def step(state: State, event: Event) -> Outcome:
    """Return the next state and the effects, in order; pure."""
    if state.phase is Phase.STOPPED:
        return state, ()
    return _TRANSITIONS[type(event)](state, event)


def restarted(state: State, *, initial_known: bool) -> State:
    """Return the state in which a restarted actor begins; a stop has to be asked for again."""
    if state.phase is Phase.STOPPED:
        return state
    return state._replace(phase=Phase.READY if initial_known else Phase.FETCHING)
