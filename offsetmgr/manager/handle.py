"""The handle of one in-process manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from actors import MailboxClosed
from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.types import (
    MAX_OFFSET,
    OffsetAndMetadata,
    StopResult,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors import DropOldest, Mailbox, OneShot
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.partition_state import ManagerStatus, PartitionState
    from offsetmgr.types import ManagerKey

_T = TypeVar("_T")


class ManagerHandle:
    """An in-process ``OffsetManagerHandle``; any number may stand for the same manager."""

    __slots__ = ("_state", "_stop", "_submits")

    def __init__(
        self, state: PartitionState, stop: Callable[[PartitionState, float], StopResult]
    ) -> None:
        self._state = state
        self._submits = state.submits
        self._stop = stop

    def __repr__(self) -> str:
        return f"<ManagerHandle {self.key} {self._state.state.phase.value}>"

    @property
    def key(self) -> ManagerKey:
        """Group, topic and partition."""
        return self._state.key

    @property
    def owner(self) -> str:
        """The name given at the spawn."""
        return self._state.owner

    @property
    def initial(self) -> OneShot[OffsetAndMetadata | None]:
        """The initial-offset mailbox itself."""
        return self._state.initial

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        """Return what was committed when the manager started; None where nothing was.

        Raises OffsetTimeoutError after ``timeout`` seconds (None: never), with Kafka's last answer
        as its cause; ManagerStoppedError where the manager stopped before it was known;
        InvalidValueError.
        """
        try:
            return _get(self._state.initial, timeout)
        except TimeoutError:
            error = self._state.state.last_error
            raise OffsetTimeoutError(
                f"the initial offset of {self.key} did not arrive within {timeout} s: "
                f"{error or 'the coordinator has not answered yet'}"
            ) from error
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
        self._submits.submit(offset, metadata, leader_epoch)

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """As submit, but a lower offset is what the caller wants."""
        self._submits.submit(
            check_offset(offset),
            check_metadata(metadata),
            check_leader_epoch(leader_epoch),
            rewind=True,
        )

    def committed_offsets(self) -> MailboxStream[OffsetAndMetadata]:
        """Return the mailbox of what the coordinator has acknowledged: the newest unread."""
        return MailboxStream(self._state.committed, self.key)

    def errors(self) -> MailboxErrors:
        """Return the mailbox of errors; the oldest unread are dropped and counted."""
        return MailboxErrors(self._state.errors, self.key)

    def status(self) -> ManagerStatus:
        """Return a snapshot, without waiting for anything."""
        return self._state.status()

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        """Commit the newest offset, stop, and return what was committed; within ``timeout`` s.

        Twice is harmless.  Not to be called by an actor.  Raises InvalidValueError.
        """
        return self._stop(self._state, timeout)


class MailboxStream(Generic[_T]):
    """A mailbox as its reader sees it."""

    __slots__ = ("_key", "_mailbox")

    def __init__(self, mailbox: Mailbox[_T], key: ManagerKey) -> None:
        self._mailbox = mailbox
        self._key = key

    @property
    def closed(self) -> bool:
        """True once the manager is stopped; what is unread can still be read."""
        return self._mailbox.closed

    def get(self, timeout: float | None = None) -> _T:
        """Return the oldest unread value, waiting up to ``timeout`` seconds (None: for ever).

        Raises OffsetTimeoutError; ManagerStoppedError once the manager is stopped and all is
        read; InvalidValueError.
        """
        try:
            return _get(self._mailbox, timeout)
        except TimeoutError:
            text = f"{self._key}: nothing came within {timeout} s"
            raise OffsetTimeoutError(text) from None
        except MailboxClosed:
            text = f"{self._key} is stopped; nothing more will come"
            raise ManagerStoppedError(text) from None

    def __iter__(self) -> Iterator[_T]:
        """Yield values, waiting for each, until the manager is stopped."""
        return iter(self._mailbox)


class MailboxErrors(MailboxStream["OffsetManagerError"]):
    """The newest errors that were not read yet, with a count of what was dropped."""

    __slots__ = ("_errors",)

    def __init__(self, mailbox: DropOldest[OffsetManagerError], key: ManagerKey) -> None:
        super().__init__(mailbox, key)
        self._errors = mailbox

    @property
    def dropped(self) -> int:
        """The number of errors that were dropped because they were not read in time."""
        return self._errors.dropped


def _get(mailbox: Mailbox[_T], timeout: float | None) -> _T:
    seconds = check_timeout(timeout, forever=True)
    return mailbox.get(None if timeout is None else seconds)
