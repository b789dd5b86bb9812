"""Failed commits and fetches in the log: soon, in words, and never a flood."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from offsetmgr.errors import OffsetFetchError, OffsetNoticeError, OffsetRegressionError

if TYPE_CHECKING:
    from actors import Clock
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey

INTERVAL_S: Final = 30.0
"""Failures of one group with one code are told once in this time; the others are counted."""

KEPT: Final = 1_000
"""Pairs of group and code remembered; beyond, the ones told longest ago are told anew."""

log = structlog.get_logger("offsetmgr.commits")


class _Told(NamedTuple):
    at_s: float
    since: int
    """How many came after it and were not told."""


class FailureLog:
    """Tells operators of failures; called on the managers' threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Tell of it, unless the same was told of this group just now."""
        now_s, pair = self._clock.now(), (key.group, error.code)
        with self._lock:
            told = self._told.get(pair)
            if told is not None and now_s - told.at_s < INTERVAL_S:
                self._told[pair] = told._replace(since=told.since + 1)
                return
            self._told[pair] = _Told(now_s, 0)
            self._told.move_to_end(pair)
            if len(self._told) > KEPT:
                self._told.popitem(last=False)
        log.warning(
            _event_of(error),
            group=key.group,
            topic=key.topic,
            partition=key.partition,
            code=error.code,
            error=str(error),
            not_shown_before=0 if told is None else told.since,
        )


def _event_of(error: OffsetManagerError) -> str:
    if isinstance(error, OffsetFetchError):
        return "fetch_failed"
    if isinstance(error, OffsetNoticeError):
        return error.code.lower()
    return "offset_regressed" if isinstance(error, OffsetRegressionError) else "commit_failed"
