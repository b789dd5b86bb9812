"""The order in which a write tries its clusters."""

from __future__ import annotations

from offsetmgr.clusters.link import ALWAYS
from offsetmgr.clusters.writer import ranking

ORDER = ["west", "east", "north"]
FAIL_BACK_S = 60.0


def ranked(west: float | None, east: float | None, north: float | None, now_s: float) -> list[str]:
    return ranking(ORDER, {"west": west, "east": east, "north": north}, now_s, FAIL_BACK_S)


def test_the_primary_is_written_to_while_all_is_well() -> None:
    assert ranked(ALWAYS, ALWAYS, ALWAYS, 0) == ORDER


def test_a_cluster_that_does_not_answer_is_left_at_once() -> None:
    assert ranked(None, ALWAYS, ALWAYS, 0) == ["east", "north", "west"]
    assert ranked(None, None, ALWAYS, 0) == ["north", "west", "east"]


def test_writes_go_back_only_to_a_primary_that_has_answered_for_long_enough() -> None:
    """A primary that fails again and again must not take the writes with it each time."""
    assert ranked(100, ALWAYS, ALWAYS, 159.9)[0] == "east"
    assert ranked(100, ALWAYS, ALWAYS, 160)[0] == "west"


def test_a_backup_that_fails_gives_way_to_a_settled_cluster_first() -> None:
    """A primary that has just come back is tried after it, and before one that is silent."""
    assert ranked(100, None, ALWAYS, 110) == ["north", "west", "east"]
    assert ranked(100, None, None, 110) == ["west", "east", "north"]


def test_after_all_were_down_the_first_that_answers_is_used_until_a_preferred_one_settles() -> None:
    assert ranked(None, None, None, 0) == ORDER
    assert ranked(None, 10, None, 11)[0] == "east"
    assert ranked(20, 10, None, 30)[0] == "east"
    assert ranked(20, 10, None, 80)[0] == "west"
