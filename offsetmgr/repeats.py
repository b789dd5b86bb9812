"""Limit repeated log lines; standard library alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

INTERVAL_S: Final = 30.0
"""The same cause is logged once in this time; repeats in between are counted."""

REMEMBERED: Final = 1_000
"""Causes remembered; beyond, the one logged longest ago counts as new."""


class _Logged(NamedTuple):
    at_s: float
    suppressed: int


class RepeatLimiter:
    """Passes one line per cause and interval: a hung broker fails all partitions at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # for signal handlers
        self._logged: OrderedDict[Hashable, _Logged] = OrderedDict()

    def suppressed(self, cause: Hashable, now_s: float) -> int | None:
        """Return None if ``cause`` must not be logged now, else its repeats since it was."""
        with self._lock:
            last = self._logged.get(cause)
            if last is not None and now_s - last.at_s < INTERVAL_S:
                self._logged[cause] = last._replace(suppressed=last.suppressed + 1)
                return None
            self._logged[cause] = _Logged(now_s, 0)
            self._logged.move_to_end(cause)
            if len(self._logged) > REMEMBERED:
                self._logged.popitem(last=False)
        return 0 if last is None else last.suppressed
