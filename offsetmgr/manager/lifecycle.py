"""The life of an offset manager: ``step(state, event, newest) -> (state, effects)``.

Nothing here knows of actors, threads or Kafka.  The phases::

    FETCHING ──fetched──► READY ──stop, dirty──► STOPPING ──committed / refused / abandoned──┐
       │                    └────stop, clean────────────────────────────────────────────────►│
       ├──stop, dirty──► STOPPING, which waits to be fetched first                           ▼
       └──stop, clean───────────────────────────────────────────────────────────────────► STOPPED
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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
    STOPPING = "stopping"
    """Stop was asked for; the newest offset is being committed."""
    STOPPED = "stopped"
    """The end."""


class State(NamedTuple):
    """All that a manager's actor remembers beside its ``PartitionState``."""

    phase: Phase = Phase.FETCHING
    fetched: bool = False
    """True if the initial offset is known."""
    last_error: OffsetManagerError | None = None
    """The last error; None once a later commit or fetch succeeded."""
    failed: int = 0
    """Number of the version that ``last_error`` speaks of; 0 for a fetch."""


# Events.


class Fetched(NamedTuple):
    """The committed offset at the start is known."""

    committed: OffsetAndMetadata | None
    error: OffsetManagerError | None = None
    """The regression, where a submit was dropped as lower than what is committed."""


class FetchFailed(NamedTuple):
    """The fetch failed; the committer tries again."""

    error: OffsetManagerError


class Committed(NamedTuple):
    """The coordinator holds a version; told to a manager that stops, or had an error."""

    version: Version
    clean: bool
    """True if nothing newer waited then."""


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
    """Answer who waits for the initial offset."""

    committed: OffsetAndMetadata | None


class PublishError(NamedTuple):
    """Put into the errors mailbox."""

    error: OffsetManagerError


class Finish(NamedTuple):
    """Close the mailboxes, answer the stops, end the actor."""


Effect: TypeAlias = PublishInitial | PublishError | Finish
Outcome: TypeAlias = tuple[State, tuple[Effect, ...]]


def _fetched(state: State, event: Fetched) -> Outcome:
    phase = Phase.READY if state.phase is Phase.FETCHING else state.phase
    effects: tuple[Effect, ...] = (PublishInitial(event.committed),)
    if event.error is not None:
        effects = (*effects, PublishError(event.error))
    return State(phase, fetched=True, last_error=event.error), effects


def _fetch_failed(state: State, event: FetchFailed) -> Outcome:
    # Tried again for as long as it takes: reported once, until something else happens.
    reported = state.last_error is not None and state.last_error.code == event.error.code
    return state._replace(last_error=event.error), () if reported else (PublishError(event.error),)


def _committed(state: State, event: Committed) -> Outcome:
    # The error of a newer version stays: it says why that one is not committed.
    if event.version.number >= state.failed:
        state = state._replace(last_error=None, failed=0)
    return state, ()


def _commit_failed(state: State, event: CommitFailed) -> Outcome:
    if event.version.number >= state.failed:
        state = state._replace(last_error=event.error, failed=event.version.number)
    return state, (PublishError(event.error),)


def _noticed(state: State, event: Noticed) -> Outcome:
    return state, (PublishError(event.error),)


def _stopping(state: State, _event: StopAsked | Abandoned) -> Outcome:
    # The committer has been told by whoever asks for the stop.
    return state._replace(phase=Phase.STOPPING), ()


_TRANSITIONS: Final[Mapping[type[Event], Callable[[State, Any], Outcome]]] = {
    Fetched: _fetched,
    FetchFailed: _fetch_failed,
    Committed: _committed,
    CommitFailed: _commit_failed,
    Noticed: _noticed,
    StopAsked: _stopping,
    Abandoned: _stopping,
}


def _ends(state: State, event: Event, newest: int) -> bool:
    """Return True if a manager that stops has nothing more to wait for."""
    match event:
        case Fetched():
            return not newest
        case Committed():
            return state.fetched and not newest
        case CommitFailed(version, _, final):
            return state.fetched and final and newest <= version.number
        case StopAsked(dirty):
            return state.phase is not Phase.STOPPING and not dirty
    return isinstance(event, Abandoned)


def step(state: State, event: Event, newest: int) -> Outcome:
    """Return the next state and the effects, in order; pure.

    ``newest`` is the number of the newest version if that is not committed, else 0.  An event may
    be older than the last submit, whose stop may have come in between: a manager must not end with
    what is older.
    """
    if state.phase is Phase.STOPPED:
        return state, ()
    if state.fetched and isinstance(event, (Fetched, FetchFailed)):
        return state, ()  # a second answer, after a restart
    following, effects = _TRANSITIONS[type(event)](state, event)
    if following.phase is Phase.STOPPING and _ends(state, event, newest):
        return following._replace(phase=Phase.STOPPED), (*effects, Finish())
    return following, effects


def restarted(state: State, *, fetched: bool) -> State:
    """Return the state in which a restarted actor begins; a stop has to be asked for again."""
    if state.phase is Phase.STOPPED:
        return state
    return state._replace(phase=Phase.READY if fetched else Phase.FETCHING, fetched=fetched)
