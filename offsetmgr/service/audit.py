"""The audit log: one line of JSON for each change, with who, what, from and to.

A line that cannot be written is counted, and stands in the service's own log instead.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import structlog

from offsetmgr.errors import InvalidValueError
from offsetmgr.service.access import asker

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger("offsetmgr.audit")


class AuditLog:
    """Writes to its file, or to the service's log where there is no file."""

    def __init__(self, path: str, wall: Callable[[], float]) -> None:
        """``wall`` is the wall clock.  Raises InvalidValueError if the file cannot be written."""
        self.dropped = 0
        """Lines that are not in the file."""
        self._path = path
        self._wall = wall
        self._lock = threading.Lock()
        if path:
            try:
                os.close(self._open())
            except OSError as error:
                fix = "give a file in a folder that the service may write"
                problem = f"cannot be written ({error.strerror})"
                raise InvalidValueError("audit_log", path, problem, fix) from None

    def record(self, operation: str, outcome: str, **what: Any) -> None:
        """Write that whoever asks now has done ``operation``."""
        by = asker()
        line = {
            "operation": operation,
            "outcome": outcome,
            "identity": by.identity,
            "client": by.client,
            "peer": by.peer,
            **what,
        }
        if not self._path:
            log.info("audit", **line)
            return
        time = datetime.fromtimestamp(self._wall(), timezone.utc).isoformat()
        text = json.dumps({"time": time, **line}) + "\n"
        try:
            self._write(text.encode())
        except OSError as error:
            self.dropped += 1
            reason = error.strerror
            log.error("audit", not_in_file=reason, **line)  # noqa: TRY400 -- the line matters

    def _write(self, line: bytes) -> None:
        # Opened for each line, so that logrotate may move it away.
        with self._lock:
            descriptor = self._open()
            try:
                if os.write(descriptor, line) < len(line):
                    raise OSError(0, "only a part of the line was written")
            finally:
                os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)
