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


@pytest.mark.parametrize(("rss_mb", "threads"), [(0.05, 0.1), (0.5, 0), (0, 1)])
def test_a_soak_that_grows_fails(rss_mb: float, threads: float) -> None:
    """Half a megabyte, or a thread, with every sample is a leak; a little comes and goes."""
    samples = [
        Sample(number, 60.0 + number * rss_mb, 30 + int(number * threads), 50)
        for number in range(100)
    ]
    if rss_mb < 0.5 and threads < 1:
        assert check_growth(samples).startswith("rss_mb 6")
    else:
        with pytest.raises(SoakError, match=r"(rss_mb|threads) grow"):
            check_growth(samples)


def test_ten_minutes_bring_a_day() -> None:
    """A service that commits ever more slowly fails; a shorter run reports its length."""
    for minutes, commits in ((10, DAY), (60, 2 * DAY), (9.9, 0)):
        assert check_days(minutes, commits) == commits / DAY
    for minutes in (10, 60):
        with pytest.raises(SoakError, match=f"0.99 days of commits for each group in {minutes} m"):
            check_days(minutes, int(0.99 * DAY))
