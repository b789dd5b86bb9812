"""The audit log: one line of JSON for each change, with who made it."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.logs import SafeLogger
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.service.access import Requester

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
_MODE: Final = 0o600

QUEUED_BYTES: Final = 16 * 1024 * 1024
"""Of lines that wait for a file system which does not answer; the service's log has later ones."""

WRITTEN_S: Final = 1.0
"""Longest wait for a line to be in the file, so that it is there before the change is answered."""

log = SafeLogger("offsetmgr.audit")


class AuditLog:
    """Writes a line for each change: to its file, or to the service's log without one.

    A line that cannot be written is counted, and written to the service's log instead, at any log
    level.  The file is written by a thread, so that nobody waits for a file system that hangs.
    """

    def __init__(self, path: str, wall: Callable[[], float]) -> None:
        """``wall`` is the wall clock.  Raises InvalidValueError if the file cannot be written."""
        self.dropped = 0
        """Lines that are not in the file."""
        self._path = path
        self._wall = wall
        self._lines: deque[tuple[bytes, dict[str, Any]]] = deque()
        """Those that are not in the file yet; each as text, and as the service's log has it."""
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._writer = Worker("offsetmgr-audit", self._write_all)
        logging.getLogger("offsetmgr.audit").setLevel(logging.INFO)
        if path:
            try:
                self._write(b"")
            except OSError as error:
                fix = "give a regular file of the service's user, in a folder that it may write"
                problem = f"cannot be written ({error.strerror})"
                raise InvalidValueError("audit_log", path, problem, fix) from None

    def record(self, by: Requester | None, operation: str, outcome: str, **facts: Any) -> None:
        """Write that ``by`` has done ``operation``; None is the service itself."""
        line = {
            "operation": operation,
            "outcome": outcome,
            "identity": (by.identity or None) if by else None,
            "client": by.client if by else "",
            "peer": by.peer if by else "",
            **facts,
        }
        if not self._path:
            log.info("audit", **line)
            return
        time = datetime.fromtimestamp(self._wall(), timezone.utc).isoformat()
        text = (json.dumps({"time": time, **line}) + "\n").encode()
        self._writer.ensure()
        with self._changed:
            waits = not self._lines  # else its file system hangs
            fits = waits or self._queued_bytes + len(text) <= QUEUED_BYTES
            if fits:
                self._lines.append((text, line))
                self._queued_bytes += len(text)
                self._changed.notify_all()
            if waits:
                self._changed.wait_for(lambda: not self._lines, WRITTEN_S)
        if not fits:
            self._log_instead(line, "too many lines wait for its file system")

    def close(self, timeout_s: float) -> None:
        """Wait until all lines are in the file; the service's log has those that are not then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, timeout_s)
            left = list(self._lines)
        for _, line in left:
            self._log_instead(line, "its file system does not answer")

    def _log_instead(self, line: dict[str, Any], reason: str | None) -> None:
        self.dropped += 1
        log.error("audit", not_in_file=reason, **line)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                text, line = self._lines[0]
            try:
                self._write(text)
            except OSError as error:
                self._log_instead(line, error.strerror)
            with self._changed:
                self._lines.popleft()
                self._queued_bytes -= len(text)
                self._changed.notify_all()

    def _write(self, line: bytes) -> None:
        # Opened for each line, so that logrotate may move it away.
        file = os.open(self._path, _FLAGS, _MODE)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(0, "it is not a regular file")
            if stat.S_IMODE(found.st_mode) & ~_MODE:
                os.fchmod(file, _MODE)
            if found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
                line = b"\n" + line  # after a line that was not written to its end
            if line and os.write(file, line) != len(line):
                raise OSError(0, "the line was not written to its end")
        finally:
            os.close(file)
