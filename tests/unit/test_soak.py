"""The soak's judgement: what counts as growth."""

from __future__ import annotations

import pytest

from benchmarks.soak import Sample, SoakError, check_growth


def samples(rss_mb: float, threads: float) -> list[Sample]:
    """A run of a hundred samples; both are how much is gained with each."""
    return [
        Sample(number, number, 0, 60.0 + number * rss_mb, 30 + int(number * threads), 50)
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
