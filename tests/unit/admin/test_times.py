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
def test_durations_have_kafkas_form_or_a_shorter_one(text: str, seconds: float) -> None:
    assert parse_duration(text, "d") == seconds
    assert parse_since(text, "t", now_s=100_000) == 100_000 - seconds


@pytest.mark.parametrize(
    ("problem", "texts"),
    [
        # P1M is a month to ISO 8601, and no minute.
        (
            "give such as PT2H30M",
            ["", "P", "PT", "P1DT", "P1M", "P2H", "1T2H", "٣d", "5", "2 hours", "-1h"],
        ),
        ("is too long; give at most 1000000 days", ["P9999999999D", f"PT{'9' * 5_000}S"]),
    ],
)
def test_an_invalid_duration_is_refused(problem: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InvalidValueError, match=problem):
            parse_duration(text, "--by-duration")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02T00:00:00.500", 86_400.5),
        ("1970-01-02T00:00:00.500Z", 86_400.5),
        ("1970-01-02T01:00:00.500+01:00", 86_400.5),
        ("1970-01-02 00:00:00.500", 86_400.5),
        ("1970-01-01T00:00:00+01:00", -3_600),
        ("1969-12-31T23:59:59.999", -0.001),
        ("0001-01-01T00:00:00+14:00", -62_135_647_200),
        ("9999-12-31T23:59:59-14:00", 253_402_351_199),
    ],
)
def test_times_of_every_year_are_read(text: str, seconds: float) -> None:
    """Those without a zone are UTC, as for Kafka's tool."""
    assert parse_time(text, "t") == parse_since(text, "t", now_s=0) == seconds


def test_a_printed_time_can_be_typed() -> None:
    """To the millisecond, which is all that a commit's time has."""
    assert time_text(1_700_000_000.1235) == "2023-11-14T22:13:20.124Z"
    assert parse_time(time_text(86_400.123), "t") == 86_400.123


@pytest.mark.parametrize("at_s", [-1e18, -62_135_596_800.5, 253_402_300_800.0, 2**63 / 1_000])
def test_an_absurd_time_is_printed_as_the_nearest(at_s: float) -> None:
    assert parse_time(time_text(at_s), "t") in {-62_135_596_800.0, 253_402_300_799.0}


def test_durations_are_printed_in_the_largest_unit_of_two_or_more() -> None:
    shown = [seconds_text(s) for s in (None, math.inf, -9, 59.6, 3_700, 200_000)]
    assert shown == [None, None, "0 s", "60 s", "61.7 min", "2.3 d"]
