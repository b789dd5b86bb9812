"""Mailboxes by which an actor hands values to threads.

All are safe between threads and light: a hundred thousand of each may exist. No
`put` ever blocks; what does not fit is replaced or dropped, as the class says.
"""

from __future__ import annotations

import abc
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from actors.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

log = get_logger("actors.mailbox")


_NOTHING: Final[Any] = object()
"""Marks an empty place: None is a value like any other."""


class MailboxClosed(Exception):  # noqa: N818 - a state that ends a loop, as StopIteration, no fault
    """The mailbox is closed and everything in it was read."""


class Mailbox(abc.ABC, Generic[T]):
    """Values that an actor hands to threads; the base of the three kinds."""

    __slots__ = ("_closed", "_listeners", "_lock", "_ready")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: threading.Condition | None = None
        self._listeners: tuple[Callable[[], object], ...] = ()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True if nothing more can be put; unread values can still be read."""
        return self._closed

    def put(self, value: T) -> bool:
        """Hand a value over. Ignored after `close`: the answer is then False."""
        with self._lock:
            if self._closed:
                return False
            self._store(value)
            if self._ready is not None:
                self._ready.notify_all()
        if self._listeners:
            self._notify()
        return True

    def get(self, timeout: float | None = None) -> T:
        """Wait for a value, at most `timeout` seconds; 0 looks without waiting.

        Raises TimeoutError; MailboxClosed once it is closed and drained.
        """
        with self._lock:
            if not self._settled():
                if self._ready is None:
                    self._ready = threading.Condition(self._lock)
                if not self._ready.wait_for(self._settled, timeout):
                    raise TimeoutError(f"nothing was put into the mailbox within {timeout} s")
            if self._holds():
                return self._take()
            raise MailboxClosed

    def close(self) -> None:
        """Take nothing more. Readers get what is left, then `MailboxClosed`. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._ready is not None:
                self._ready.notify_all()
        self._notify()

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener()` after each put and after the close; returns what removes it.

        It runs in the putting thread and must not block. What was put before is
        not announced: add the listener first, then look with `get(timeout=0)`.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return remove

    def __iter__(self) -> Iterator[T]:
        """Yield values, waiting for each, until the mailbox is closed and drained."""
        while True:
            try:
                value = self.get()
            except MailboxClosed:
                return
            yield value

    # These three are called under the lock.

    @abc.abstractmethod
    def _store(self, value: T) -> None: ...

    @abc.abstractmethod
    def _take(self) -> T: ...

    @abc.abstractmethod
    def _holds(self) -> bool: ...

    def _settled(self) -> bool:
        return self._closed or self._holds()

    def _notify(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # one bad listener must not silence the next
                log.exception("mailbox_listener_failed", listener=repr(listener))


class OneShot(Mailbox[T]):
    """Exactly one value, then closed. Every reader gets the same value, as often as it asks.

    Closed without a value, it has none for anybody.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self) -> None:
        super().__init__()
        self._value: T = _NOTHING

    def __iter__(self) -> Iterator[T]:
        """Yield the value once, or nothing when there will be none."""
        try:
            value = self.get()
        except MailboxClosed:
            return
        yield value

    def _store(self, value: T) -> None:
        self._value = value
        self._closed = True

    def _take(self) -> T:
        return self._value

    def _holds(self) -> bool:
        return self._value is not _NOTHING


class Latest(Mailbox[T]):
    """Only the newest unread value: a put replaces the one that nobody has read."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        super().__init__()
        self._value: T = _NOTHING

    def _store(self, value: T) -> None:
        self._value = value

    def _take(self) -> T:
        value, self._value = self._value, _NOTHING
        return value

    def _holds(self) -> bool:
        return self._value is not _NOTHING


class DropOldest(Mailbox[T]):
    """The newest `limit` unread values in order; what falls out is counted in `dropped`."""

    __slots__ = ("_dropped", "_items", "_limit")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._dropped = 0
        # Most mailboxes of errors stay empty for life, and a deque weighs 600 bytes.
        self._items: deque[T] | None = None

    @property
    def dropped(self) -> int:
        return self._dropped

    def _store(self, value: T) -> None:
        if self._items is None:
            self._items = deque(maxlen=self._limit)
        if len(self._items) == self._limit:
            self._dropped += 1
        self._items.append(value)

    def _take(self) -> T:
        return cast("deque[T]", self._items).popleft()

    def _holds(self) -> bool:
        return bool(self._items)
