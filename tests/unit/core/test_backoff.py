"""Pauses between tries."""

from __future__ import annotations

from random import Random

import pytest

from offsetmgr.backoff import Backoff, pause_s


def test_pauses_double_up_to_the_longest() -> None:
    """A success begins again with the first."""
    backoff = Backoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.succeeded()
    assert backoff.failed() == 0.5


def test_jitter_spreads_pauses_over_the_upper_half() -> None:
    """Callers that failed together do not all try again together."""
    rng = Random(1)  # noqa: S311 -- jitter is not a secret
    pauses = {pause_s(3, 1.0, 30.0, rng) for _ in range(100)}
    assert len(pauses) == 100
    assert 2.0 <= min(pauses) < 2.2
    assert 3.8 < max(pauses) <= 4.0


@pytest.mark.parametrize("failures", [100, 10_000, 10**9])
def test_an_endless_outage_keeps_the_longest_pause(failures: int) -> None:
    """The number of failures overflows nothing."""
    assert pause_s(failures, 0.001, 30.0) == 30.0
