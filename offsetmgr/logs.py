"""Loggers that never raise; standard library alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SafeLogger:
    """Writes to a logger of the standard library and ignores what its handlers and filters raise.

    They are the application's: a fault in one of them must not end a thread of this package, or
    keep an offset from being committed.  Only KeyboardInterrupt passes, which is Ctrl-C.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: object, exc_info: bool = False) -> None:
        self._log(logging.DEBUG, text, args, exc_info=exc_info)

    def info(self, text: str, *args: object) -> None:
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        self._log(logging.WARNING, text, args)

    def error(self, text: str, *args: object, exc_info: bool = False) -> None:
        self._log(logging.ERROR, text, args, exc_info=exc_info)

    def exception(self, text: str, *args: object) -> None:
        """Log the exception that is being handled."""
        self._log(logging.ERROR, text, args, exc_info=True)

    def guard(self, text: str, call: Callable[..., object], *args: object) -> None:
        """Call a function of the application; what it raises is logged behind ``text``."""
        try:
            call(*args)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 -- SystemExit ends no thread of ours either
            self.exception("%s", text)

    def _log(
        self, level: int, text: str, args: tuple[object, ...], *, exc_info: bool = False
    ) -> None:
        try:
            # The third frame up is the caller.
            self._logger.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S110 -- nowhere is left to report it
            pass
