"""One offset manager as its user sees it, through the service, and its mailboxes."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from offsetmgr.client import waits
from offsetmgr.client.offsets import Deadline, Selection
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError, OffsetTimeoutError
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    OffsetManagerHandle,
    StopResult,
    Stream,
    check_leader_epoch,
    check_metadata,
    check_offset,
)

if TYPE_CHECKING:
    from offsetmgr.client.client import OffsetClient
    from offsetmgr.client.core import Core

T = TypeVar("T")

ERROR_LIMIT: Final = 64
"""Unread errors a manager keeps; older ones are dropped and counted."""


class BoundedStream(Stream[T]):
    """The newest `limit` unread values. No put ever blocks."""

    def __init__(self, name: str, limit: int | None = None) -> None:
        self._name = name
        self._values: deque[T] = deque(maxlen=ERROR_LIMIT if limit is None else limit)
        self._ready = threading.Condition()
        self._closed = False
        self._dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped

    def put(self, value: T) -> None:
        """Hand a value over; the oldest unread one makes room. Ignored after `close`."""
        with self._ready:
            if self._closed:
                return
            self._dropped += len(self._values) == self._values.maxlen
            self._values.append(value)
            self._ready.notify_all()

    def lose(self, count: int) -> None:
        """Count values that the service has dropped."""
        with self._ready:
            self._dropped += count

    def get(self, timeout: float | None = None) -> T:
        deadline = Deadline(timeout, forever=True)
        with self._ready:
            while not self._values:
                if self._closed:
                    raise ManagerStoppedError(f"{self._name} is stopped; nothing more will come")
                if deadline.over:
                    raise OffsetTimeoutError(f"{self._name}: nothing came within {timeout} s")
                self._ready.wait(deadline.within_s())
            return self._values.popleft()

    def close(self) -> None:
        """Take nothing more; what is unread can still be read. Twice is harmless."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()


class Mailboxes:
    """The mailboxes of one manager, and its end."""

    def __init__(self, key: ManagerKey) -> None:
        self.committed = BoundedStream[OffsetAndMetadata](str(key), 1)
        self.errors = BoundedStream[OffsetManagerError](str(key))
        self.result: StopResult | None = None
        """The stop's; None while the manager lives."""
        self._newest: OffsetAndMetadata | None = None

    def tell_committed(self, value: OffsetAndMetadata) -> None:
        if value != self._newest:  # else the stream of events has reconnected
            self._newest = value
            self.committed.put(value)

    def stop(self, result: StopResult) -> None:
        self.result = result
        self.committed.close()
        self.errors.close()


class RemoteManagerHandle(OffsetManagerHandle):
    """A manager of the service for one partition of a group."""

    def __init__(self, key: ManagerKey, mail: Mailboxes, client: OffsetClient) -> None:
        """`client` lives as long as a handle of it."""
        self._key = key
        self._mail = mail
        self._client = client
        self._initial: tuple[OffsetAndMetadata | None] | None = None

    def __repr__(self) -> str:
        return f"RemoteManagerHandle({self._key})"

    @property
    def key(self) -> ManagerKey:
        return self._key

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        deadline = Deadline(timeout, forever=True)
        if self._initial is None:
            core = self._live()
            self._initial = (waits.initial_offset(core, self._key, self._mail, deadline),)
        return self._initial[0]

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        self._submit(offset, metadata, leader_epoch, rewind=False)

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        self._submit(offset, metadata, leader_epoch, rewind=True)

    def _submit(
        self, offset: int, metadata: str, leader_epoch: int | None, *, rewind: bool
    ) -> None:
        value = OffsetAndMetadata(
            check_offset(offset), check_metadata(metadata), check_leader_epoch(leader_epoch)
        )
        for error in self._live().submit({self._key: value}, rewind=rewind).values():
            raise error

    def committed_offsets(self) -> Stream[OffsetAndMetadata]:
        self._client.core.listen()
        return self._mail.committed

    def errors(self) -> Stream[OffsetManagerError]:
        self._client.core.listen()
        return self._mail.errors

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        deadline = Deadline(timeout)
        core, mail = self._client.core, self._mail
        if mail.result is None:
            waits.stop(core, Selection(self._key.group, [self._key.topic_partition]), deadline)
        with core.lock:  # another thread may be at it
            wait_s = deadline.within_s(threading.TIMEOUT_MAX)
            core.changed.wait_for(lambda: mail.result is not None, wait_s)
        if mail.result is not None:
            return mail.result
        error = OffsetTimeoutError(f"{self._key}: another stop of it took longer than {timeout} s")
        return StopResult(None, None, error)

    def _live(self) -> Core:
        core = self._client.core
        if self._mail.result is not None:
            raise ManagerStoppedError(f"{self._key} is stopped; spawn a new manager")
        return core
