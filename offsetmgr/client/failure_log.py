"""What goes wrong, in the log of the driver: soon, in words, and never a flood."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from offsetmgr.seldom import Seldom

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey

log = logging.getLogger("offsetmgr.client")


class FailureLog:
    """Tells the driver's owner of failures: those of one group with one code once in a while."""

    def __init__(self) -> None:
        self._seldom = Seldom()

    def failed(self, key: ManagerKey, error: OffsetManagerError, now_s: float) -> None:
        """Tell of it, unless the same was told of this group just now."""
        untold = self._seldom.untold((key.group, error.code), now_s)
        if untold is not None:
            more = f" (and {untold} more of {key.group} before)" if untold else ""
            log.warning("%s%s", error, more)
