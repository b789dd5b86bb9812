"""The mailboxes of a manager on the client's side; no put ever blocks, and none grows."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from offsetmgr.client.deadline import LONGEST_WAIT_S, Deadline
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

ERROR_LIMIT: Final = 64
"""Unread errors a manager keeps; older ones are dropped and counted."""


class Stream(Generic[T]):
    """The newest `limit` unread values; closed after the manager's stop."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._values: deque[T] = deque(maxlen=limit)
        self._ready = threading.Condition()
        self._closed = False
        self._dropped = 0

    def put(self, value: T) -> None:
        """Hand a value over; the oldest unread one makes room. Ignored after `close`."""
        with self._ready:
            if self._closed:
                return
            self._dropped += len(self._values) == self._values.maxlen
            self._values.append(value)
            self._ready.notify_all()

    def get(self, timeout: float | None = None) -> T:
        """The oldest unread value.

        Raises:
            OffsetTimeoutError: none came within `timeout` seconds.
            ManagerStoppedError: the manager is stopped, and all was read.

        """
        deadline = Deadline(timeout, forever=True)
        with self._ready:
            while not self._values:
                if self._closed:
                    raise ManagerStoppedError(f"{self._name} is stopped; nothing more will come")
                if deadline.over:
                    raise OffsetTimeoutError(f"{self._name}: nothing came within {timeout} s")
                self._ready.wait(deadline.within_s(LONGEST_WAIT_S))
            return self._values.popleft()

    def close(self) -> None:
        """Take nothing more; what is unread can still be read. Twice is harmless."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Yield values, waiting for each, until the manager is stopped."""
        while True:
            try:
                value = self.get()
            except ManagerStoppedError:
                return
            yield value


class CommittedOffsets(Stream[OffsetAndMetadata]):
    """The newest committed offset that was not read yet."""

    def __init__(self, key: ManagerKey) -> None:
        super().__init__(str(key), limit=1)
        self._newest: OffsetAndMetadata | None = None

    def put(self, value: OffsetAndMetadata) -> None:
        """As `Stream.put`; what was told before (a stream that reconnects) is not told again."""
        with self._ready:
            if value != self._newest:
                self._newest = value
                super().put(value)


class ManagerErrors(Stream[OffsetManagerError]):
    """The newest errors that were not read yet, with a count of what was dropped."""

    def __init__(self, name: str) -> None:
        super().__init__(name, limit=ERROR_LIMIT)

    def lose(self, count: int) -> None:
        """The service could not tell so many."""
        with self._ready:
            self._dropped += count

    @property
    def dropped(self) -> int:
        """How many errors were dropped because they were not read, or told, in time."""
        return self._dropped


class Mailboxes:
    """What one manager's handle hands out."""

    def __init__(self, key: ManagerKey) -> None:
        self.committed = CommittedOffsets(key)
        self.errors = ManagerErrors(str(key))
        self.result: StopResult | None = None
        """What the stop ended with; None while the manager lives."""

    def stop(self, result: StopResult) -> None:
        """The manager is stopped."""
        self.result = result
        self.committed.close()
        self.errors.close()
