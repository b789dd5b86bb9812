"""The crowd's command counts missed targets."""

from __future__ import annotations

import pytest

from benchmarks.crowd import MOST, Figures, missed


def test_what_meets_its_targets_misses_none() -> None:
    """The bounds themselves are allowed."""
    assert missed(MOST) == []
    assert missed(Figures(6.0, 3.8, 380.0, 64, 1.6)) == []


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (MOST._replace(started_s=15.1), "started: 15.1 s, more than 15"),
        (MOST._replace(stopped_s=300.0), "stopped: 300.0 s, more than 15"),
        (MOST._replace(memory_mb=1_700.5), "resident memory: 1,700.5 MB, more than 700"),
        (MOST._replace(threads=65), "threads, with all clients at work: 65, more than 64"),
        (MOST._replace(idle_percent=5.2), "idle: 5.2 % of a core, more than 5"),
    ],
)
def test_each_missed_target_is_told_with_figure_and_bound(figures: Figures, line: str) -> None:
    """One alone, and beside all the others."""
    assert missed(figures) == [line]
    assert line in missed(figures._replace(threads=65, stopped_s=300.0))
