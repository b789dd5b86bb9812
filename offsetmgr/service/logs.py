"""Logs: constant event names with keys; JSON where nobody looks, lines where somebody does.

Records of the standard library's loggers go the same way.  Control characters in names and values
are escaped, since groups, topics and metadata come from others.  What cannot be written at once (a
full disk, a closed pipe, a reader that stands still) is dropped and counted: commits go on.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LEVELS: Final = ("debug", "info", "warning", "error")

_LOUD_BELOW_WARNING: Final = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "asyncio")
"""Libraries whose info lines repeat what the service says itself."""


class _CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records; counts those that could not be written instead of raising or waiting."""

    dropped = 0
    _cut = False
    """The last record was written in part; the next one begins a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or drop it."""
        try:
            text = self.format(record) + self.terminator
            try:
                descriptor = self.stream.fileno()
            except io.UnsupportedOperation:  # in memory, where nothing has to be waited for
                self.stream.write(text)
            else:
                self._write(descriptor, text.encode(errors="backslashreplace"))
        except Exception:  # noqa: BLE001 -- whatever it is, it must not reach who wanted to log
            self.handleError(record)

    def _write(self, descriptor: int, line: bytes) -> None:
        """Raise OSError rather than wait for a reader."""
        writable = select.poll()
        writable.register(descriptor, select.POLLOUT)
        left = b"\n" + line if self._cut else line
        while left:
            # A pipe that is writable takes this much without waiting.
            if not writable.poll(0):
                raise BlockingIOError
            left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]
            self._cut = bool(left)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- the library's name
        """Drop the record."""
        del record
        self.dropped += 1


class Logs:
    """The process's logging as it was set up."""

    def __init__(self, handler: _CountingHandler) -> None:
        self._handler = handler

    @property
    def dropped(self) -> int:
        """Records that could not be written."""
        return self._handler.dropped

    def set_level(self, level: str) -> None:
        """One of ``LEVELS``."""
        logging.getLogger().setLevel(level.upper())


def set_up(level: str, stream: TextIO | None = None) -> Logs:
    """Send all logs of the process to ``stream`` (standard error)."""
    target = sys.stderr if stream is None else stream
    for_people = target.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.UnicodeDecoder(),
        _escape,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = _CountingHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in _LOUD_BELOW_WARNING:
        logging.getLogger(name).setLevel(logging.WARNING)
    logs = Logs(handler)
    logs.set_level(level)
    return logs


def _escape(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make control characters visible: nobody's metadata draws on an operator's terminal."""
    del logger, method
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = visible(value)
    return event


def visible(text: str) -> str:
    """``text`` with unprintable characters as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
