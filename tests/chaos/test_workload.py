"""The offset from which a life of a client goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.history import EventLog, Key, Tag
from tests.chaos.workload import Life, reached

if TYPE_CHECKING:
    from pathlib import Path


def test_a_life_goes_on_from_the_highest_offset_of_all_lives(tmp_path: Path) -> None:
    """The newest life is not always the last one that submitted, nor the one that came furthest."""
    logs = {number: EventLog(tmp_path, "etl", number) for number in (1, 2)}
    offsets = {1: 5, 2: 6}
    for number, step in ((1, 0), (2, 0), (1, 3)):
        for partition in (0, 1):
            tag, offset = Tag("etl", number, 1), offsets[number] + step
            logs[number].write("invoke", "submit", tag, Key("g", partition), offset)
    logs[2].write("invoke", "lower", Tag("etl", 2, 2), Key("g", 0), 1)
    life = Life(tmp_path, "", "etl", 3, 0, "chaos", (0, 1), ("g",))
    assert reached(life)[Key("g", 0)] == 8
