"""Failures in the log of the driver: at once, and never a flood."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from offsetmgr.errors import (
    CoordinatorError,
    OffsetNoticeError,
    ServiceUnavailableError,
    listed,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, Uncommitted

    OnError = Callable[[ManagerKey | None, OffsetManagerError], None]

log = SafeLogger("offsetmgr.client")


class FailureLog:
    """Logs one line for each cause and group, and another one when that is over.

    A cause that comes and goes is logged once in a while.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._repeats = RepeatLimiter()
        self._trouble: str | None = None
        """Code of the service's own error that was logged last, until it is over."""
        self._failing: dict[tuple[str, str], set[ManagerKey]] = {}
        """Group and code → the partitions that fail."""
        self._watchers: dict[object, OnError] = {}

    def watch(self, on_error: OnError) -> Callable[[], None]:
        """Call `on_error` with all that `tell` is given, until the returned function is called."""
        token = object()
        self._watchers[token] = on_error

        def end() -> None:
            self._watchers.pop(token, None)

        return end

    def tell(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        for on_error in list(self._watchers.values()):
            log.guard("a function given to watch_errors has failed", on_error, key, error)

    def failed(self, key: ManagerKey, error: OffsetManagerError, now_s: float) -> None:
        """Log `error`, unless its group is known to fail for that, and tell those that watch."""
        cause = key.group, error.code
        with self._lock:
            failing = self._failing.get(cause)
            suppressed = self._repeats.suppressed(cause, now_s) if failing is None else None
            # A notice is of a moment: nothing fails that could succeed again.
            lasts = not isinstance(error, OffsetNoticeError)
            if lasts and (failing is not None or suppressed is not None):
                self._failing.setdefault(cause, set()).add(key)
        if suppressed is not None:
            more = f" (and {suppressed} more of {key.group} before)" if suppressed else ""
            log.warning("%s%s", error, more)
        self.tell(key, error)

    def warn(self, text: str, *args: object, cause: str = "") -> None:
        """Log a line; the same one for the same `cause` only once in a while."""
        if self._repeats.suppressed((text, cause), time.monotonic()) is not None:
            log.warning(text, *args)

    def unreachable(self, url: str, error: OffsetManagerError, now_s: float) -> None:
        """Log that the service at `url` takes nothing: each cause once, until it is over."""
        if error.code == self._trouble or self._repeats.suppressed(error.code, now_s) is None:
            return
        self._trouble = error.code
        refuses = not isinstance(error, ServiceUnavailableError)
        who = f"the service at {url} refuses requests: " if refuses else ""
        log.warning("%s%s; offsets are kept until it takes them", who, error)

    def reachable(self, url: str) -> None:
        """Log the end of what `unreachable` has logged."""
        if self._trouble is not None:
            self._trouble = None
            log.warning("the service at %s answers again", url)

    def committed(self, key: ManagerKey) -> None:
        """Log the end of what failed for `key` last, if nothing else of its group fails for it."""
        for group, code in self._take(key):
            log.warning("offsets of group %s are committed again: %s is over", group, code)

    def forget(self, keys: Iterable[ManagerKey]) -> None:
        """`keys` are held no more, so that they do not fail either."""
        for key in keys:
            self._take(key)

    def _take(self, key: ManagerKey) -> list[tuple[str, str]]:
        """Remove `key`; return the causes that no key is left of."""
        if not self._failing:
            return []
        with self._lock:
            for cause, keys in self._failing.items():
                if cause[0] == key.group:
                    keys.discard(key)
            over = [cause for cause, keys in self._failing.items() if not keys]
            for cause in over:
                del self._failing[cause]
            return over


def log_uncommitted(who: str, left: Mapping[ManagerKey, Uncommitted]) -> None:
    if left:
        offsets = listed([f"{key} at {each.offset.offset}" for key, each in left.items()])
        reasons = [each.error for each in left.values()]
        # What Kafka says is more than that the time was over.
        kafkas = (each for each in reasons if isinstance(each, CoordinatorError))
        reason = next(kafkas, reasons[0])
        log.warning("%s is closed; not committed: %s; reason: %s", who, offsets, reason)
