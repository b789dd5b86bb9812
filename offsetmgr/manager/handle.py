"""What the user of one in-process manager holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors import MailboxClosed
from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.types import (
    MAX_OFFSET,
    OffsetAndMetadata,
    StopResult,
    check_leader_epoch,
    check_metadata,
    check_offset,
)

if TYPE_CHECKING:
    from actors import DropOldest, Latest, OneShot
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.desk import Desk, ManagerStatus
    from offsetmgr.manager.factory import Factory
    from offsetmgr.types import ManagerKey


class ManagerHandle:
    """An in-process ``OffsetManagerHandle``; any number may stand for the same manager."""

    __slots__ = ("_desk", "_factory", "_slot")

    def __init__(self, desk: Desk, factory: Factory) -> None:
        self._desk = desk
        self._slot = desk.slot
        self._factory = factory

    def __repr__(self) -> str:
        return f"<ManagerHandle {self._desk.key} {self._desk.state.phase.value}>"

    @property
    def key(self) -> ManagerKey:
        """Group, topic and partition."""
        return self._desk.key

    @property
    def owner(self) -> str:
        """Who spawned it."""
        return self._desk.owner

    @property
    def initial(self) -> OneShot[OffsetAndMetadata | None]:
        """The initial-offset mailbox itself."""
        return self._desk.initial

    def initial_offset(self, timeout: float | None = None) -> OffsetAndMetadata | None:
        """What was committed when the manager started; None where nothing was.

        Raises OffsetTimeoutError after ``timeout`` seconds, with Kafka's last answer as its
        cause; ManagerStoppedError where the manager stopped before it was known.
        """
        try:
            return self._desk.initial.get(timeout)
        except TimeoutError:
            raise OffsetTimeoutError(
                f"the initial offset of {self.key} did not arrive within {timeout} s: "
                f"{self._desk.state.last_error or 'the coordinator has not answered yet'}"
            ) from self._desk.state.last_error
        except MailboxClosed:
            raise ManagerStoppedError(
                f"{self.key} was stopped before its initial offset arrived"
            ) from None

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """Make ``offset`` (the next one to read) the newest to commit; never blocks.

        Raises InvalidValueError, OffsetRegressionError, ManagerStoppedError.
        """
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            offset = check_offset(offset)
        if metadata != "" or leader_epoch is not None:
            check_metadata(metadata)
            leader_epoch = check_leader_epoch(leader_epoch)
        self._slot.put(offset, metadata, leader_epoch)

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """As submit, but a lower offset is what the caller wants."""
        value = OffsetAndMetadata(
            check_offset(offset), check_metadata(metadata), check_leader_epoch(leader_epoch)
        )
        self._slot.offer(value, rewind=True)

    def committed_offsets(self) -> Latest[OffsetAndMetadata]:
        """What the coordinator has acknowledged; latest-wins, closed after stop."""
        return self._desk.committed

    def errors(self) -> DropOldest[OffsetManagerError]:
        """What went wrong; the oldest are dropped and counted when nobody reads."""
        return self._desk.errors

    def status(self) -> ManagerStatus:
        """A snapshot, without waiting for anything."""
        return self._desk.status()

    def stop(self, timeout: float = 10.0) -> StopResult:
        """Commit the newest offset, stop, and say what was committed; within ``timeout`` s.

        Twice is harmless.  Not to be called by an actor.
        """
        future = self._factory.stop_desks([self._desk], timeout)
        return self._factory.wait(future, timeout + 1.0)[self.key]
