"""Failed commits and fetches in the log: soon, in words, and never a flood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from offsetmgr.errors import OffsetFetchError, OffsetNoticeError, OffsetRegressionError
from offsetmgr.seldom import Seldom

if TYPE_CHECKING:
    from actors import Clock
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey

log = structlog.get_logger("offsetmgr.commits")


class FailureLog:
    """Tells operators of failures: those of one group with one code once in a while.

    Called on the managers' threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seldom = Seldom()

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """Tell of it, unless the same was told of this group just now."""
        untold = self._seldom.untold((key.group, error.code), self._clock.now())
        if untold is None:
            return
        log.warning(
            _event_of(error),
            group=key.group,
            topic=key.topic,
            partition=key.partition,
            code=error.code,
            error=str(error),
            not_shown_before=untold,
        )


def _event_of(error: OffsetManagerError) -> str:
    if isinstance(error, OffsetFetchError):
        return "fetch_failed"
    if isinstance(error, OffsetNoticeError):
        return error.code.lower()
    return "offset_regressed" if isinstance(error, OffsetRegressionError) else "commit_failed"
