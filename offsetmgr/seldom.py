"""What is told once in a while and counted in between; standard library alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

INTERVAL_S: Final = 30.0
"""The same is told once in this time; what comes in between is counted."""

KEPT: Final = 1_000
"""Things remembered; beyond, the ones told longest ago are told anew."""


class _Told(NamedTuple):
    at_s: float
    since: int
    """How many came after it and were not told."""


class Seldom:
    """A broker that stands still fails every partition of a group at once: one line says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: OrderedDict[Hashable, _Told] = OrderedDict()

    def untold(self, what: Hashable, now_s: float) -> int | None:
        """None where ``what`` was told just now; else how often it was not told since the last."""
        with self._lock:
            told = self._told.get(what)
            if told is not None and now_s - told.at_s < INTERVAL_S:
                self._told[what] = told._replace(since=told.since + 1)
                return None
            self._told[what] = _Told(now_s, 0)
            self._told.move_to_end(what)
            if len(self._told) > KEPT:
                self._told.popitem(last=False)
        return 0 if told is None else told.since
