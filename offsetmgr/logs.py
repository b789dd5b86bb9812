"""The product's one way to log; standard library alone."""

from __future__ import annotations

import logging
import threading
from functools import partialmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SafeLogger:
    """Writes to a logger of the standard library and ignores what its handlers and filters raise.

    They are the application's: a fault in one of them must not end a thread of this package, or
    keep an offset from being committed.  Only Ctrl-C passes.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def log(
        self,
        level: int,
        text: str,
        /,
        *args: object,
        exc_info: bool | BaseException | None = None,
        **keys: object,
    ) -> None:
        """Log a sentence with ``args`` for its placeholders, or the name of an event with ``keys``.

        The service's log has the keys as fields; elsewhere they follow the name.
        """
        extra = None
        try:
            if keys and self._logger.isEnabledFor(level):
                extra = {"fields": {"event": text, **keys}}
                line = " ".join([text, *(f"{key}={value}" for key, value in keys.items())])
                text, args = "%s", (line,)
            # The second frame up is the caller.
            self._logger.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=2)
        except BaseException as error:  # noqa: BLE001 -- nowhere is left to report it
            _raise_ctrl_c(error)

    debug = partialmethod(log, logging.DEBUG)
    info = partialmethod(log, logging.INFO)
    warning = partialmethod(log, logging.WARNING)
    error = partialmethod(log, logging.ERROR)
    exception = partialmethod(log, logging.ERROR, exc_info=True)
    """Logs the exception that is being handled."""

    def guard(self, text: str, call: Callable[..., object], *args: object) -> None:
        """Call a function of the application; what it raises is logged behind ``text``."""
        try:
            call(*args)
        except BaseException as error:  # noqa: BLE001 -- SystemExit ends no thread of ours either
            _raise_ctrl_c(error)
            self.exception("%s", text)


def _raise_ctrl_c(error: BaseException) -> None:
    """Raise Ctrl-C; in another thread than the main one an application has raised it."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and isinstance(error, KeyboardInterrupt):
        raise error
