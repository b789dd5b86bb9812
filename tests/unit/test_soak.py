"""The soak's judgement: what counts as growth, and what as a day."""

from __future__ import annotations

import pytest

from benchmarks.soak import (
    CLIENTS,
    DAY_TICKS,
    PARTITIONS,
    Sample,
    SoakError,
    check_days,
    check_growth,
)

DAY = DAY_TICKS * CLIENTS * PARTITIONS
"""Offsets committed."""


def samples(rss_mb: float, threads: float) -> list[Sample]:
    """A run of a hundred samples; both are how much is gained with each."""
    return [
        Sample(number, 0, 60.0 + number * rss_mb, 30 + int(number * threads), 50)
        for number in range(100)
    ]


def test_what_stays_flat_passes() -> None:
    """With a little that comes and goes."""
    assert "resident memory" in check_growth(samples(0.05, 0.1))


@pytest.mark.parametrize(("rss_mb", "threads"), [(0.5, 0), (0, 1)])
def test_what_grows_fails(rss_mb: float, threads: float) -> None:
    """Half a megabyte, or a thread, with every sample is a leak."""
    with pytest.raises(SoakError, match="grow"):
        check_growth(samples(rss_mb, threads))


@pytest.mark.parametrize(("minutes", "commits"), [(10, DAY), (60, 2 * DAY), (9.9, 0)])
def test_a_day_in_ten_minutes_passes(minutes: float, commits: int) -> None:
    """A shorter run reports its length."""
    assert check_days(minutes, commits) == commits / DAY


@pytest.mark.parametrize("minutes", [10, 60])
def test_less_than_a_day_in_ten_minutes_or_more_fails(minutes: float) -> None:
    """Else a service that commits ever more slowly would pass."""
    with pytest.raises(SoakError, match=f"0.99 days of commits for each group in {minutes} min"):
        check_days(minutes, int(0.99 * DAY))
