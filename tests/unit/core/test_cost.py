"""An interval costs as much as is dirty, however many managers there are."""

from __future__ import annotations

from collections import Counter

from tests.unit.core.core import Core, at, tp

DIRTY = 5
INTERVALS = 10
SIZE = 2_000


def resting(size: int) -> Core:
    """A group of managers that have committed 1 and rest, with no verification in sight."""
    core = Core(verify_interval_s=0)
    core.factory.spawn_many("g", [tp(each) for each in range(size)])
    core.advance(1.0)
    core.factory.submit("g", {tp(each): 1 for each in range(size)})
    core.advance(120.0)  # first commits are repeated after a minute
    assert core.holds(size - 1) == at(1)
    return core


def steps_of(size: int) -> Counter[str]:
    """Return what actors of a group are told in ten intervals in which five are dirty."""
    core = resting(size)
    begun, asked = len(core.system.trace), len(core.commits())
    for offset in range(2, 2 + INTERVALS):
        core.factory.submit("g", {tp(each): offset for each in range(DIRTY)})
        core.advance(2.0)
    assert [len(commit) for commit in core.commits()[asked:]] == [DIRTY] * INTERVALS
    return Counter(step.message_type for step in list(core.system.trace)[begun:])


def test_the_cost_of_an_interval_follows_the_dirty_managers() -> None:
    """The same messages and requests, whether the others are five or two thousand."""
    assert steps_of(SIZE) == steps_of(2 * DIRTY)


def test_a_clean_manager_costs_nothing() -> None:
    """If nothing is dirty, no interval wakes anybody."""
    core = resting(SIZE)
    steps, asked = len(core.system.trace), len(core.coordinator.requests)
    core.advance(1_000.0)
    assert len(core.system.trace) == steps
    assert len(core.coordinator.requests) == asked
