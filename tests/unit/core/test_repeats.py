"""Repeated log lines are limited and counted."""

from __future__ import annotations

from offsetmgr.repeats import INTERVAL_S, REMEMBERED, RepeatLimiter


def test_a_cause_is_logged_once_per_interval_with_the_number_of_its_repeats() -> None:
    """Repeats within the interval are suppressed and counted; the count then begins anew."""
    repeats = RepeatLimiter()
    suppressed = [repeats.suppressed("a", at_s) for at_s in (0.0, 1.0, INTERVAL_S - 1, INTERVAL_S)]
    assert suppressed == [0, None, None, 2]
    assert repeats.suppressed("a", 2 * INTERVAL_S) == 0
    assert repeats.suppressed("b", 2 * INTERVAL_S) == 0


def test_the_number_of_remembered_causes_is_bounded() -> None:
    """Beyond the limit, the cause logged longest ago is forgotten."""
    repeats = RepeatLimiter()
    for number in range(REMEMBERED + 1):
        assert repeats.suppressed(number, 0.0) == 0
    assert repeats.suppressed(1, 1.0) is None
    assert repeats.suppressed(0, 1.0) == 0
