"""The handle of one in-process manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pykka

from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.manager.offset_manager import shortest
from offsetmgr.types import (
    MAX_OFFSET,
    OffsetAndMetadata,
    OffsetManagerHandle,
    StopResult,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Future
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.mailboxes import Mailbox
    from offsetmgr.manager.offset_manager import ManagerStatus, OffsetManager
    from offsetmgr.types import ManagerKey


class ManagerHandle(OffsetManagerHandle):
    """The handle of an in-process manager; a manager may have any number."""

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
    def former_offset(self) -> int | None:
        """The last offset of a recreated topic's former log; None from the next commit on."""
        former = self._manager.former
        return former if former is not None and former >= 0 else None

    @property
    def initial(self) -> Future[OffsetAndMetadata | None]:
        """The initial offset, or ManagerStoppedError if the manager was stopped before it came."""
        return self._manager.initial

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        seconds = None if timeout is None else check_timeout(timeout, forever=True)
        try:
            return self._manager.initial.get(timeout=seconds)
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

    def committed_offsets(self) -> Mailbox[OffsetAndMetadata]:
        return self._manager.listen()

    def errors(self) -> Mailbox[OffsetManagerError]:
        return self._manager.errors

    def status(self) -> ManagerStatus:
        """Return a snapshot, without waiting for anything."""
        return self._manager.status()

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        return self._stop(self._manager, timeout)


def _checked(offset: int, metadata: object, leader_epoch: object) -> int | OffsetAndMetadata:
    return shortest(offset, check_metadata(metadata), check_leader_epoch(leader_epoch))
