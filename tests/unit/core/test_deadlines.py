"""Deadlines of calls that wait."""

from __future__ import annotations

import threading

import pytest

from actors.testing import ManualClock
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError


def test_a_deadline_counts_down_on_the_given_clock() -> None:
    """It never says that a negative time is left."""
    clock = ManualClock()
    deadline = Deadline(5, now=clock.now)
    clock.advance(3)
    assert (deadline.left_s, deadline.over) == (2, False)
    clock.advance(10)
    assert (deadline.left_s, deadline.over) == (0, True)
    assert deadline.within_s() > 0


def test_no_deadline_is_as_long_as_threads_can_wait() -> None:
    """None is a limit only where the caller allows it."""
    assert Deadline(None, forever=True).left_s == threading.TIMEOUT_MAX
    with pytest.raises(InvalidValueError, match="timeout_s None"):
        Deadline(None, "timeout_s")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", 1e300])
def test_an_impossible_timeout_is_refused(timeout: float) -> None:
    """The error names the field."""
    with pytest.raises(InvalidValueError, match="timeout"):
        Deadline(timeout)


def test_a_poll_asks_once_more_when_the_deadline_is_over() -> None:
    """An answer that came during the last pause is not missed; no time asks once."""
    assert list(Deadline(0).polls()) == [None]
    assert len(list(Deadline(0.02).polls(pause_s=10))) == 2
