"""Logs: event names with keys; JSON, or lines for people on a terminal.

A log that cannot be written (a full disk, a reader that hangs) holds up no commit.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from offsetmgr.text import visible

if TYPE_CHECKING:
    from collections.abc import MutableMapping

QUEUED: Final = 10_000

FLUSH_TIMEOUT_S: Final = 1.0

_LEVELS: Final = {
    # Their info lines repeat what the service says itself.
    **dict.fromkeys(("uvicorn", "uvicorn.asgi", "asyncio"), logging.WARNING),
    # It warns of each request that is not HTTP: anybody could fill the log.
    "uvicorn.error": logging.ERROR,
}
"""Least levels of libraries."""


class Logs(logging.Handler):
    """Hands records to a thread that writes them, so that nobody waits for a reader of the log."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.dropped = 0
        """Records that could not be written."""
        self._descriptor = stream.fileno()
        # Not a Queue: a finalizer may log while this thread is in the middle of a put.
        self._queue: SimpleQueue[str | threading.Event] = SimpleQueue()
        threading.Thread(target=self._write_all, name="offsetmgr-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= QUEUED:
            self.dropped += 1
            return
        try:
            self._queue.put(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 -- whatever it is, it must not reach who wanted to log
            self.dropped += 1

    def flush(self) -> None:
        """Wait until all is written, but not for long; logging calls it when the process ends."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(FLUSH_TIMEOUT_S)

    def _write_all(self) -> None:
        before = b""
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            # Past the stream's buffer, whose lock the interpreter needs when the process ends.
            line = left = before + item.encode(errors="backslashreplace")
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:  # a full disk, a closed pipe
                self.dropped += 1
                before = before if left == line else b"\n"  # behind a part of this line
            else:
                before = b""


def set_up(level: str, stream: TextIO | None = None) -> Logs:
    """Send all logs of the process to ``stream`` (standard error)."""
    target = sys.stderr if stream is None else stream
    first: list[structlog.typing.Processor] = [
        _add_fields,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _escape,
    ]
    last: list[structlog.typing.Processor] = (
        # Not structlog's own tracebacks: they show local variables, such as tokens.
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if target.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    logs = Logs(target)
    logs.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=first,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [logs]
    for name, least in _LEVELS.items():
        logging.getLogger(name).setLevel(least)
    set_level(level)
    return logs


def set_level(level: str) -> None:
    """Log from ``level`` on, such as ``info``."""
    logging.getLogger().setLevel(level.upper())


def _add_fields(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    event.update(getattr(event["_record"], "fields", {}))
    return event


def _escape(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # Nobody's metadata draws on an operator's terminal.
    del logger, method
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = visible(value)
    return event
