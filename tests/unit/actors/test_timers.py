"""Timers: order, cancellation, and their thread."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import MonotonicClock, Timers
from actors.testing import ManualClock
from actors.timers import ThreadTimers
from tests.interrupted import interrupted
from tests.logs import capture_logs
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors import TimerHandle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def timers(clock: ManualClock) -> Timers:
    return Timers(clock)


@given(st.lists(st.floats(0, 50), max_size=30))
def test_timers_fire_in_order_of_time(delays_s: list[float]) -> None:
    """Simultaneous ones fire in the order in which they were set."""
    clock = ManualClock()
    timers = Timers(clock)
    fired: list[tuple[float, int]] = []
    for index, delay_s in enumerate(delays_s):
        timers.call_after(delay_s, partial(fired.append, (delay_s, index)))
    clock.advance(50)
    assert timers.fire_due() == len(delays_s)
    assert fired == sorted(fired)


def test_a_cancelled_timer_never_fires(clock: ManualClock, timers: Timers) -> None:
    """The same if a simultaneous timer cancels it; cancelling twice is harmless."""
    fired: list[int] = []
    handles: list[TimerHandle] = []

    def cancel_first() -> None:
        handles[0].cancel()

    timers.call_after(1, cancel_first)
    handles.append(timers.call_after(1, lambda: fired.append(1)))
    handles.append(timers.call_after(2, lambda: fired.append(2)))
    handles[1].cancel()
    handles[1].cancel()
    clock.advance(10)
    assert timers.fire_due() == 1
    assert fired == []


def test_cancelled_timers_do_not_pile_up(clock: ManualClock, timers: Timers) -> None:
    """The heap stays small and keeps the live timers."""
    for number in range(10):
        timers.call_after(1000 + number, int)
    for _ in range(10_000):
        timers.call_after(500, int).cancel()
    assert len(timers) < 200
    assert timers.next_due_s() == 1100
    clock.advance(1010)
    assert timers.fire_due() == 10


def test_a_timer_that_a_signal_handler_sets_is_not_lost(clock: ManualClock) -> None:
    """The kind: it is set in a heap that is replaced by one without cancelled timers."""
    for at in range(1, 100):
        timers, fired = Timers(clock), list[int]()
        for _ in range(64):
            timers.call_after(1, int).cancel()
        set_timer = partial(timers.call_after, 1, partial(fired.append, at))
        was_interrupted = interrupted(
            partial(timers.call_after, 2, int), at, set_timer, "actors/timers.py"
        )
        clock.advance(1)
        timers.fire_due()
        assert fired == [at] * was_interrupted
        if not was_interrupted:
            break
    assert at > 5


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failing_timer_does_not_stop_the_others(
    clock: ManualClock, timers: Timers, error: BaseException
) -> None:
    """The exception is logged."""
    fired: list[int] = []

    def fail() -> None:
        raise error

    timers.call_after(1, fail)
    timers.call_after(2, lambda: fired.append(1))
    clock.advance(2)
    with capture_logs() as logs:
        timers.fire_due()
    assert fired == [1]
    assert ["of a timer failed" in line["event"] for line in logs] == [True]


@pytest.mark.parametrize("delay_s", [-1.0, math.inf, math.nan])
def test_an_impossible_delay_is_refused(timers: Timers, delay_s: float) -> None:
    """The error names it, and nothing is queued."""
    with pytest.raises(ValueError, match=r"-1|inf|nan"):
        timers.call_after(delay_s, int)
    assert len(timers) == 0


@pytest.fixture
def thread_timers() -> Iterator[ThreadTimers]:
    """Timers with a thread, which must end after the test."""
    timers = ThreadTimers(MonotonicClock(), name="test-timers")
    yield timers
    assert timers.close(WAIT_S)


def test_a_sooner_timer_wakes_the_thread(thread_timers: ThreadTimers) -> None:
    """It fires in time though the thread sleeps until a later one."""
    fired = threading.Event()
    thread_timers.call_after(3000, int)
    thread_timers.call_after(0.01, fired.set)
    assert fired.wait(WAIT_S)


def test_close_drops_pending_timers_and_ends_the_thread() -> None:
    """Later ones are dropped as well."""
    timers = ThreadTimers(MonotonicClock(), name="test-timers")
    timers.call_after(3000, int)
    assert timers.close(WAIT_S)
    timers.call_after(0, int)
    assert len(timers) == 0
    assert timers.next_due_s() is None
    assert "test-timers" not in {thread.name for thread in threading.enumerate()}
