"""What a tick costs: as much as is dirty, however much there is."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.unit.core.core import Core, at, tp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from offsetmgr.manager import ManagerHandle

DIRTY = 5
TICKS = 10
INTERVAL_S = 1.0
SLACK = 1.2
"""What differs is by how much, and when, dictionaries and timers move: a hundredth or two."""


class Cost(NamedTuple):
    """What happened meanwhile."""

    steps: Counter[str]
    """Of actors, by what they were told."""
    requests: list[tuple[str, str, int]]
    """To the coordinator, sorted: operation, group and number of partitions."""
    instructions: int
    """Of Python's own code; what it leaves to C is not seen."""


def crowd(groups: int, size: int) -> tuple[Core, list[ManagerHandle]]:
    """``groups`` times ``size`` managers that have committed and rest, with no look in sight."""
    core = Core(commit_interval_s=INTERVAL_S, verify_interval_s=0)
    names = [f"g{number}" for number in range(groups)]
    made = [core.factory.spawn_many(name, [tp(each) for each in range(size)]) for name in names]
    core.advance(INTERVAL_S)
    for name in names:
        core.factory.submit(name, {tp(each): 1 for each in range(size)})
    core.advance(10 * INTERVAL_S)
    handles: list[Any] = [handle for group in made for handle in group.values()]
    assert all(handle.status().committed.offset == 1 for handle in handles)
    return core, handles


def cost(core: Core, run: Callable[[], object]) -> Cost:
    """What ``run`` makes happen."""
    instructions, steps, asked = 0, len(core.system.trace), len(core.coordinator.requests)

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal instructions
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        instructions += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        run()
    finally:
        sys.settrace(before)
    return Cost(
        Counter(step.message_type for step in list(core.system.trace)[steps:]),
        sorted((r.operation, r.group, len(r.offsets)) for r in core.coordinator.requests[asked:]),
        instructions,
    )


def committing(groups: int, size: int, *, spread: bool, groupwise: bool) -> Cost:
    """What ten ticks cost in which ``DIRTY`` managers have something new.

    They are of as many groups, or of one.
    """
    core, handles = crowd(groups, size)
    keys = [handle.key for handle in (handles[::size] if spread else handles)[:DIRTY]]
    dirty = [handle for handle in handles if handle.key in keys]

    def tick() -> None:
        for offset in range(2, 2 + TICKS):
            if groupwise:
                offsets = {key.topic_partition: offset for key in keys}
                assert core.factory.submit(keys[0].group, offsets) == {}
            else:
                for handle in dirty:
                    handle.submit(offset)
            core.advance(2 * INTERVAL_S)

    spent = cost(core, tick)
    assert {core.holds(key.partition, key.group) for key in keys} == {at(1 + TICKS)}
    return spent


@pytest.mark.parametrize(
    ("few", "many", "spread", "groupwise"),
    [
        pytest.param((1, 10), (1, 5_000), False, False, id="a-large-group"),
        pytest.param((1, 10), (1, 5_000), False, True, id="a-large-group-at-once"),
        pytest.param((5, 2), (500, 10), True, False, id="many-groups"),
    ],
)
def test_a_tick_costs_what_is_dirty_not_what_exists(
    few: tuple[int, int], many: tuple[int, int], *, spread: bool, groupwise: bool
) -> None:
    """Five dirty of ten or of 5,000: the same messages and requests, and no more Python run."""
    small = committing(*few, spread=spread, groupwise=groupwise)
    large = committing(*many, spread=spread, groupwise=groupwise)
    groups = DIRTY if spread else 1
    assert large.steps == small.steps
    assert small.steps["_Answered"] == groups * TICKS
    assert large.requests == small.requests
    assert len(small.requests) == groups * TICKS
    assert {partitions for _, _, partitions in small.requests} == {DIRTY // groups}
    assert large.instructions <= SLACK * small.instructions


def test_who_rests_costs_nothing() -> None:
    """Where nothing is dirty no interval wakes anybody: 5,000 managers of 500 groups."""
    core, _ = crowd(500, 10)
    core.advance(120.0)  # first commits are repeated after a minute
    spent = cost(core, lambda: core.advance(100 * INTERVAL_S))
    assert spent.steps == Counter()
    assert spent.requests == []
    assert spent.instructions < 1_000
