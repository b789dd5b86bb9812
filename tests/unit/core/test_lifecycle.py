"""The transition table of one manager."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from offsetmgr.errors import (
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    OffsetRegressionError,
    error_info,
)
from offsetmgr.manager.lifecycle import (
    IGNORED,
    TABLE,
    Abandoned,
    CommitFailed,
    Committed,
    Event,
    Fetched,
    FetchFailed,
    Finish,
    Noticed,
    Phase,
    PublishError,
    PublishInitial,
    State,
    StopAsked,
    restarted,
    step,
)
from offsetmgr.types import StopResult
from tests.unit.core.core import at

EVENTS: tuple[type[Event], ...] = get_args(Event)
REFUSED = OffsetCommitError("g", "t", 0, 12, error_info(29))
LOST = OffsetCommitError("g", "t", 0, 12, error_info(-185))
UNREAD = OffsetFetchError("g", "t", 0, None, error_info(14))
NOTICE = OffsetNoticeError("g", "t", 0, 12, error_info(32_001), "it is 40 now")
LOWER = OffsetRegressionError("g/t/0", 5, 10)

SAMPLES: list[Event] = [
    Fetched(at(10), dirty=True),
    FetchFailed(UNREAD),
    Committed(1, clean=True),
    CommitFailed(1, REFUSED, final=True),
    StopAsked(dirty=True),
    Noticed(NOTICE),
    Abandoned(),
]


def test_every_phase_knows_every_event_exactly_once() -> None:
    """Nothing can happen that nobody has thought of."""
    pairs = set(itertools.product(Phase, EVENTS))
    assert TABLE.keys() | IGNORED.keys() == pairs
    assert not TABLE.keys() & IGNORED.keys()


def test_what_is_ignored_says_why() -> None:
    """Each reason is a sentence for people."""
    assert all(len(reason) > 8 for reason in IGNORED.values())


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", SAMPLES, ids=lambda e: type(e).__name__)
def test_ignored_pairs_change_nothing(phase: Phase, event: Event) -> None:
    """An ignored event has no effect and leaves the state as it is; any other is handled."""
    state = State(phase)
    outcome = step(state, event)
    if (phase, type(event)) in IGNORED:
        assert outcome == (state, ())
    else:
        assert outcome[0].phase in Phase


@pytest.mark.parametrize("event", SAMPLES, ids=lambda e: type(e).__name__)
def test_a_stopped_manager_stays_stopped(event: Event) -> None:
    """The end is the end."""
    assert step(State(Phase.STOPPED), event) == (State(Phase.STOPPED), ())


class TestFetched:
    """The initial offset arrives."""

    def test_it_is_published(self) -> None:
        """And past errors are over."""
        event = Fetched(at(10), dirty=False)
        state, effects = step(State(last_error=UNREAD), event)
        assert state == State(Phase.READY)
        assert effects == (PublishInitial(at(10)),)

    def test_nothing_committed(self) -> None:
        """Nothing is its own value."""
        _, effects = step(State(), Fetched(None, dirty=False))
        assert effects == (PublishInitial(None),)

    def test_something_lower_was_submitted(self) -> None:
        """The regression is told."""
        event = Fetched(at(10), dirty=False, dropped=at(5), error=LOWER)
        state, effects = step(State(), event)
        assert effects == (PublishInitial(at(10)), PublishError(LOWER))
        assert state == State(Phase.READY, LOWER)

    def test_a_stop_that_has_nothing_to_wait_for_ends(self) -> None:
        """What was asked for while fetching is done as soon as it can be."""
        event = Fetched(at(10), dirty=False)
        state, effects = step(State(Phase.CLOSING), event)
        assert state.phase is Phase.STOPPED
        assert effects == (PublishInitial(at(10)), Finish(None))

    def test_a_stop_that_has_something_to_commit_waits(self) -> None:
        """The newest offset is committed before the end."""
        event = Fetched(at(10), dirty=True)
        state, effects = step(State(Phase.CLOSING), event)
        assert state.phase is Phase.STOPPING
        assert effects == (PublishInitial(at(10)),)

    def test_a_stop_with_a_regression_says_what_was_dropped(self) -> None:
        """A stop never hides that its last submit was not committed."""
        event = Fetched(at(10), dirty=False, dropped=at(5), error=LOWER)
        _, effects = step(State(Phase.CLOSING), event)
        assert effects[-1] == Finish(StopResult(at(10), at(5), LOWER))


def test_a_failing_fetch_is_told_once_and_again_when_it_fails_differently() -> None:
    """An outage of an hour is one error, not one a second."""
    state, effects = step(State(), FetchFailed(UNREAD))
    assert effects == (PublishError(UNREAD),)
    state, effects = step(state, FetchFailed(UNREAD))
    assert effects == ()
    other = OffsetFetchError("g", "t", 0, None, error_info(30))
    state, effects = step(state, FetchFailed(other))
    assert effects == (PublishError(other),)
    assert (state.phase, state.last_error) == (Phase.FETCHING, other)


class TestCommitted:
    """The coordinator acknowledges a version."""

    def test_ready(self) -> None:
        """Past errors are over."""
        state = State(Phase.READY, LOST, failed=2)
        assert step(state, Committed(2, clean=True)) == (State(Phase.READY), ())

    def test_an_older_version_does_not_hide_the_error_of_a_newer_one(self) -> None:
        """What is stuck stays visible, while what stands is kept from expiring."""
        state = State(Phase.READY, REFUSED, failed=3)
        assert step(state, Committed(2, clean=False)) == (state, ())

    def test_stopping(self) -> None:
        """With the newest committed the manager ends; with an older one it goes on."""
        waiting, effects = step(State(Phase.STOPPING), Committed(1, clean=False))
        assert (waiting.phase, effects) == (Phase.STOPPING, ())
        over, effects = step(waiting, Committed(2, clean=True))
        assert (over.phase, effects) == (Phase.STOPPED, (Finish(),))


class TestCommitFailed:
    """The coordinator refuses a version, or does not answer."""

    @pytest.mark.parametrize("final", [True, False])
    def test_it_is_told(self, *, final: bool) -> None:
        """Once and with its version, whether it is tried again or not."""
        state, effects = step(State(Phase.READY), CommitFailed(1, LOST, final))
        assert effects == (PublishError(LOST),)
        assert state == State(Phase.READY, LOST, failed=1)

    def test_while_stopping_it_is_waited_for_what_is_tried_again(self) -> None:
        """There is still time."""
        state, effects = step(State(Phase.STOPPING), CommitFailed(1, LOST, final=False))
        assert (state.phase, effects) == (Phase.STOPPING, (PublishError(LOST),))

    def test_for_good_while_stopping(self) -> None:
        """There is nothing left to wait for."""
        state, effects = step(State(Phase.STOPPING), CommitFailed(1, REFUSED, final=True))
        assert state == State(Phase.STOPPED, REFUSED, failed=1)
        assert effects == (PublishError(REFUSED), Finish())

    def test_the_error_of_a_newer_version_stays(self) -> None:
        """What went wrong with an older version does not explain the newest."""
        state = State(Phase.READY, REFUSED, failed=3)
        assert step(state, CommitFailed(2, LOST, final=False))[0].last_error is REFUSED


class TestStop:
    """The user wants it to end."""

    @pytest.mark.parametrize("phase", [Phase.FETCHING, Phase.READY])
    def test_with_nothing_to_commit_it_ends_at_once(self, phase: Phase) -> None:
        """Even where the coordinator never answered."""
        state, effects = step(State(phase), StopAsked(dirty=False))
        assert state.phase is Phase.STOPPED
        assert effects == (Finish(),)

    @pytest.mark.parametrize(
        ("phase", "then"), [(Phase.FETCHING, Phase.CLOSING), (Phase.READY, Phase.STOPPING)]
    )
    def test_with_something_to_commit_it_waits(self, phase: Phase, then: Phase) -> None:
        """The newest offset goes first."""
        assert step(State(phase), StopAsked(dirty=True)) == (State(then), ())

    @pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.STOPPED])
    def test_the_deadline_ends_it_in_any_phase(self, phase: Phase) -> None:
        """A stop always returns; also where the actor failed over the stop itself."""
        state, effects = step(State(phase), Abandoned())
        assert state.phase is Phase.STOPPED
        assert effects == (Finish(),)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.STOPPED])
@pytest.mark.parametrize(("told", "then"), [(True, Phase.READY), (False, Phase.FETCHING)])
def test_a_restarted_actor_goes_on_from_what_was_told(
    phase: Phase, then: Phase, *, told: bool
) -> None:
    """It fetches anew only what nobody has learned yet; its last error stays."""
    assert restarted(State(phase, LOST, 3), initial_known=told) == State(then, LOST, 3)


def test_a_restarted_actor_that_was_over_is_over() -> None:
    """A fault at the very end does not raise the dead."""
    over = State(Phase.STOPPED)
    assert restarted(over, initial_known=True) is over


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.STOPPED])
def test_a_notice_is_told_and_fails_nothing(phase: Phase) -> None:
    """No error is called the last one for it."""
    assert step(State(phase), Noticed(NOTICE)) == (State(phase), (PublishError(NOTICE),))
