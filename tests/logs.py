"""Captures log lines in tests."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGERS = ("actors", "offsetmgr")


class _Capture(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {"event": record.getMessage()})
        self.lines.append({**fields, "log_level": record.levelname.lower()})


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Yield the product's log lines as they come, from any thread and of any level.

    Each has its ``event`` (its text if it has no keys), its ``log_level`` and its keys.
    """
    capture = _Capture()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(capture)
        logger.setLevel(logging.DEBUG)
    try:
        yield capture.lines
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(capture)
            logger.setLevel(level)
