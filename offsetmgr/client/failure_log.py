"""What goes wrong, in the log of the driver: soon, in words, and never a flood."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey

INTERVAL_S: Final = 30.0
"""Errors of one group with one code are told once in this time; the others are counted."""

KEPT: Final = 1_000
"""Pairs of group and code remembered; beyond, the ones told longest ago are told anew."""

log = logging.getLogger("offsetmgr.client")


class _Told(NamedTuple):
    at_s: float
    since: int
    """How many came after it and were not told."""


class FailureLog:
    """A broker that stands still fails every partition of a group at once: one line says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def failed(self, key: ManagerKey, error: OffsetManagerError, now_s: float) -> None:
        """Tell of it, unless the same was told of this group just now."""
        pair = (key.group, error.code)
        with self._lock:
            told = self._told.get(pair)
            if told is not None and now_s - told.at_s < INTERVAL_S:
                self._told[pair] = told._replace(since=told.since + 1)
                return
            self._told[pair] = _Told(now_s, 0)
            self._told.move_to_end(pair)
            if len(self._told) > KEPT:
                self._told.popitem(last=False)
        since = 0 if told is None else told.since
        log.warning("%s%s", error, f" (and {since} more of {key.group} before)" if since else "")
