"""How often Python looks for cycles of garbage in a process that is all managers."""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 100_000
"""Objects made before the young ones are looked through; Python's own 700 are made by a commit of a
hundred partitions, none of them garbage, and cost a process of 10,000 managers up to a seventh of
its time.  What may lie about for longer is some megabytes."""


def spare_the_collector() -> None:
    """Never look again at what was loaded by now, and more rarely at what comes; once, at start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
