"""Times and durations as people type them."""

from __future__ import annotations

import math

import pytest

from offsetmgr.admin.times import parse_duration, parse_since, parse_time, seconds_text, time_text
from offsetmgr.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT2H30M", 9_000), ("2h30m", 9_000), ("P1DT1S", 86_401), ("1d", 86_400), ("PT0.5S", 0.5)],
)
def test_durations_are_read_in_kafkas_form_and_a_shorter_one(text: str, seconds: float) -> None:
    assert parse_duration(text, "d") == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "2 hours", "-1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="give such as PT2H30M"):
        parse_duration(text, "--by-duration")


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-02T00:00:00.500",
        "1970-01-02T00:00:00.500Z",
        "1970-01-02T01:00:00.500+01:00",
        "1970-01-02 00:00:00.500",
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str) -> None:
    """As for Kafka's tool."""
    assert parse_time(text, "t") == 86_400.5
    assert parse_since(text, "t", now_s=0) == 86_400.5


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="--to-history 'yesterday' is no time"):
        parse_time("yesterday", "--to-history")


def test_a_time_may_be_how_long_ago() -> None:
    assert parse_since("2h", "t", now_s=10_000) == 2_800


def test_a_time_that_is_shown_can_be_typed() -> None:
    """To the millisecond, which is all that a commit's time has."""
    assert time_text(1_700_000_000.1235) == "2023-11-14T22:13:20.124Z"
    assert parse_time(time_text(86_400.123), "t") == 86_400.123


def test_lengths_of_time_are_shown_in_the_largest_unit_that_they_have_twice() -> None:
    shown = [seconds_text(s) for s in (None, math.inf, 0, 59.6, 3_700, 200_000)]
    assert shown == [None, None, "0 s", "60 s", "61.7 min", "2.3 d"]
