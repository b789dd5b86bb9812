"""Mailboxes by which the product hands values to its users' threads; standard library only."""

from __future__ import annotations

import threading
from typing import TypeVar

from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.types import Stream, check_timeout

_T = TypeVar("_T")


class Mailbox(Stream[_T]):
    """The newest ``limit`` unread values; dropped ones are counted.

    It is safe between threads, ``put`` never waits, and an unused one is light: a hundred thousand
    may exist.
    """

    __slots__ = ("_closed", "_dropped", "_limit", "_lock", "_name", "_ready", "_values")

    def __init__(self, name: object, limit: int) -> None:
        """``name`` is the owner, for error messages."""
        self._name = name
        self._limit = limit
        self._lock = threading.RLock()  # a signal handler may put while the frame below it does
        self._ready: threading.Condition | None = None  # made when the first thread waits
        # Most mailboxes stay empty for life, and a deque weighs 600 bytes.
        self._values: tuple[_T, ...] = ()
        self._dropped = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if nothing more can be put; unread values can still be read."""
        return self._closed

    @property
    def dropped(self) -> int:
        return self._dropped

    def put(self, value: _T) -> bool:
        """Hand a value over; the oldest unread one makes room.  False, and no effect, if closed."""
        with self._lock:
            if self._closed:
                return False
            values = self._values
            if len(values) == self._limit:
                self._dropped += 1
                values = values[1:]
            self._values = values + (value,)  # noqa: RUF005 -- in half the time
            if self._ready is not None:
                self._ready.notify_all()
        return True

    def get(self, timeout: float | None = None) -> _T:
        seconds = None if timeout is None else check_timeout(timeout, forever=True)
        with self._lock:
            if not self._settled():
                if self._ready is None:
                    self._ready = threading.Condition(self._lock)
                if not self._ready.wait_for(self._settled, seconds):
                    raise OffsetTimeoutError(f"{self._name}: nothing came within {timeout} s")
            if not self._values:
                raise ManagerStoppedError(f"{self._name} is stopped; nothing more will come")
            value, *left = self._values
            self._values = tuple(left)
            return value

    def close(self) -> None:
        """Take nothing more; unread values can still be read.  Twice is harmless."""
        with self._lock:
            self._closed = True
            if self._ready is not None:
                self._ready.notify_all()

    def _settled(self) -> bool:
        return self._closed or bool(self._values)
