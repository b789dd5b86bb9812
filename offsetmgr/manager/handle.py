"""The handle of one in-process manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pykka

from actors import MailboxClosed
from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.manager.offset_manager import shortest
from offsetmgr.types import (
    MAX_OFFSET,
    OffsetAndMetadata,
    OffsetManagerHandle,
    StopResult,
    Stream,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Future, Mailbox
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.offset_manager import ManagerStatus, OffsetManager
    from offsetmgr.types import ManagerKey

_T = TypeVar("_T")


class ManagerHandle(OffsetManagerHandle):
    """The handle of an in-process manager; any number may stand for the same manager."""

    __slots__ = ("_manager", "_stop")

    def __init__(
        self, manager: OffsetManager, stop: Callable[[OffsetManager, float], StopResult]
    ) -> None:
        self._manager = manager
        self._stop = stop

    def __repr__(self) -> str:
        return f"<ManagerHandle {self.key} {self.status().phase}>"

    @property
    def key(self) -> ManagerKey:
        return self._manager.key

    @property
    def owner(self) -> str:
        """The name given at the spawn."""
        return self._manager.owner

    @property
    def initial(self) -> Future[OffsetAndMetadata | None]:
        """The initial offset, or ManagerStoppedError if the manager was stopped before it came."""
        return self._manager.initial

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        try:
            return self._manager.initial.get(timeout=_seconds(timeout))
        except pykka.Timeout:
            error = self._manager.last_error
            raise OffsetTimeoutError(
                f"the initial offset of {self.key} did not arrive within {timeout} s: "
                f"{error or 'the coordinator has not answered yet'}"
            ) from error

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            offset = check_offset(offset)
        if metadata == "" and leader_epoch is None:
            self._manager.submit(offset)
        else:
            self._manager.submit(_checked(offset, metadata, leader_epoch))

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        self._manager.submit(_checked(check_offset(offset), metadata, leader_epoch), rewind=True)

    def committed_offsets(self) -> MailboxStream[OffsetAndMetadata]:
        return MailboxStream(self._manager.committed_offsets, self.key)

    def errors(self) -> MailboxStream[OffsetManagerError]:
        return MailboxStream(self._manager.errors, self.key)

    def status(self) -> ManagerStatus:
        """Return a snapshot, without waiting for anything."""
        return self._manager.status()

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        return self._stop(self._manager, timeout)


class MailboxStream(Stream[_T]):
    """A mailbox as its reader sees it."""

    __slots__ = ("_key", "_mailbox")

    def __init__(self, mailbox: Mailbox[_T], key: ManagerKey) -> None:
        self._mailbox = mailbox
        self._key = key

    @property
    def closed(self) -> bool:
        """True once the manager is stopped; what is unread can still be read."""
        return self._mailbox.closed

    @property
    def dropped(self) -> int:
        return self._mailbox.dropped

    def get(self, timeout: float | None = None) -> _T:
        try:
            return self._mailbox.get(_seconds(timeout))
        except TimeoutError:
            text = f"{self._key}: nothing came within {timeout} s"
            raise OffsetTimeoutError(text) from None
        except MailboxClosed:
            text = f"{self._key} is stopped; nothing more will come"
            raise ManagerStoppedError(text) from None


def _checked(offset: int, metadata: object, leader_epoch: object) -> int | OffsetAndMetadata:
    return shortest(offset, check_metadata(metadata), check_leader_epoch(leader_epoch))


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else check_timeout(timeout, forever=True)
