"""What is told once in a while."""

from __future__ import annotations

from offsetmgr.seldom import INTERVAL_S, KEPT, Seldom


def test_the_same_is_told_once_in_a_while_with_a_count() -> None:
    """What lies in between is counted, and the count begins anew."""
    seldom = Seldom()
    told = [seldom.untold("a", at_s) for at_s in (0.0, 1.0, INTERVAL_S - 1, INTERVAL_S)]
    assert told == [0, None, None, 2]
    assert seldom.untold("a", 2 * INTERVAL_S) == 0
    assert seldom.untold("b", 2 * INTERVAL_S) == 0


def test_what_is_remembered_is_bounded() -> None:
    """Any number of things may be told; the one told longest ago is forgotten."""
    seldom = Seldom()
    for number in range(KEPT + 1):
        assert seldom.untold(number, 0.0) == 0
    assert seldom.untold(1, 1.0) is None
    assert seldom.untold(0, 1.0) == 0
