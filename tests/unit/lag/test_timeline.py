"""Lag in seconds, from the ends a log had before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.lag.measure import POINTS, LogTimeline


def timeline(*points: tuple[int, float]) -> LogTimeline:
    made = LogTimeline()
    for end, at_s in points:
        made.add(end, at_s)
    return made


@pytest.mark.parametrize(
    ("committed", "seconds"),
    [
        (300, 0.0),  # at the end
        (400, 0.0),  # beyond it
        (200, 20.0),  # at a known end
        (150, 25.0),  # between two
        (100, 30.0),  # at the oldest
        (50, 35.0),  # before it: at the rate of all
    ],
)
def test_interpolated(committed: int, seconds: float) -> None:
    """Between two known ends time passes evenly."""
    known = timeline((100, 0.0), (200, 10.0), (300, 20.0))
    assert known.seconds_behind(committed, 30.0) == seconds


def test_a_quiet_topic_is_not_behind_for_its_silence() -> None:
    """A record is as old as it is, however long the log stood still before it."""
    known = timeline((100, 0.0), (100, 3600.0), (101, 3610.0))
    assert known.seconds_behind(100, 3620.0) == 20.0
    assert known.seconds_behind(101, 3620.0) == 0.0


@pytest.mark.parametrize("points", [[], [(100, 0.0)], [(100, 0.0), (100, 9.0)]])
def test_too_little_is_known(points: list[tuple[int, float]]) -> None:
    """With a single end no age is made up."""
    assert timeline(*points).seconds_behind(50, 10.0) is None


def test_a_log_that_was_made_anew() -> None:
    """Ends of the former log do not count."""
    known = timeline((1000, 0.0), (2000, 10.0), (5, 20.0), (15, 30.0))
    assert known.seconds_behind(10, 30.0) == 5.0


def test_bounded() -> None:
    """However long a log is watched: few ends are kept, the oldest and the newest among them."""
    made = LogTimeline()
    for number in range(1_000):
        made.add(number, float(number))
        assert len(made.points) <= POINTS
    assert made.seconds_behind(0, 999.0) == 999.0
    assert made.seconds_behind(998, 999.0) == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100)), min_size=1, max_size=30),
    st.integers(0, 2000),
    st.floats(0, 100),
)
def test_never_negative(steps: list[tuple[int, float]], committed: int, later_s: float) -> None:
    """Whatever the log did: 0 or more, 0 at its end, and no younger for less that is committed."""
    made, end, now_s = LogTimeline(), 0, 0.0
    for written, passed_s in steps:
        end, now_s = end + written, now_s + passed_s
        made.add(end, now_s)
    now_s += later_s
    behind = made.seconds_behind(committed, now_s)
    assert behind is None or behind >= 0
    assert made.seconds_behind(end, now_s) == 0
    further = made.seconds_behind(max(committed - 1, 0), now_s)
    if behind is not None and further is not None and committed <= end:
        assert further >= behind - 1e-6
