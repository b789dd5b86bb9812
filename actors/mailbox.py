"""A mailbox by which an actor hands values to threads."""

from __future__ import annotations

from threading import Condition, RLock
from typing import Generic, TypeVar

T = TypeVar("T")


class MailboxClosed(Exception):  # noqa: N818 - a state that ends a loop, as StopIteration, no fault
    """The mailbox is closed and everything in it was read."""


class Mailbox(Generic[T]):
    """The newest `limit` values that nobody has read; what falls out is counted in `dropped`.

    It is safe between threads and light: a hundred thousand may exist.
    """

    __slots__ = ("_closed", "_dropped", "_items", "_limit", "_lock", "_ready")

    def __init__(self, limit: int) -> None:
        self._lock = RLock()
        self._ready: Condition | None = None  # made when the first thread waits
        # Most mailboxes stay empty for life, and a deque weighs 600 bytes.
        self._items: tuple[T, ...] = ()
        self._limit = limit
        self._dropped = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if nothing more can be put; unread values can still be read."""
        return self._closed

    @property
    def dropped(self) -> int:
        return self._dropped

    def put(self, value: T) -> bool:
        """Hand a value over, without waiting. Ignored after `close`: the answer is then False."""
        with self._lock:
            if self._closed:
                return False
            kept = self._items
            if len(kept) == self._limit:
                self._dropped += 1
                kept = kept[1:]
            self._items = (*kept, value)
            if self._ready is not None:
                self._ready.notify_all()
        return True

    def get(self, timeout: float | None = None) -> T:
        """Wait for the oldest value, at most `timeout` seconds; 0 looks without waiting.

        Raises TimeoutError; MailboxClosed once it is closed and drained.
        """
        with self._lock:
            if not self._settled():
                if self._ready is None:
                    self._ready = Condition(self._lock)
                if not self._ready.wait_for(self._settled, timeout):
                    raise TimeoutError(f"nothing was put into the mailbox within {timeout} s")
            if not self._items:
                raise MailboxClosed
            value, *left = self._items
            self._items = tuple(left)
            return value

    def close(self) -> None:
        """Take nothing more. Readers get what is left, then `MailboxClosed`. Twice is harmless."""
        with self._lock:
            self._closed = True
            if self._ready is not None:
                self._ready.notify_all()

    def _settled(self) -> bool:
        return self._closed or bool(self._items)
