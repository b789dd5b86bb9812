"""One offset manager as its user sees it, through the service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from offsetmgr.client import blocking, flush
from offsetmgr.client.deadline import Deadline
from offsetmgr.client.flush import Scope
from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    StopResult,
    check_leader_epoch,
    check_metadata,
    check_offset,
)

if TYPE_CHECKING:
    from offsetmgr.client.core import Core
    from offsetmgr.client.streams import CommittedOffsets, Mailboxes, ManagerErrors


class ManagerHandle:
    """A manager of the service for one partition of a group; an `OffsetManagerHandle`.

    Nothing but `initial_offset` and `stop` waits for the service.  Safe between threads.
    """

    def __init__(self, key: ManagerKey, mail: Mailboxes, core: Core, client: object) -> None:
        """`client` lives as long as a handle of it."""
        self._key = key
        self._mail = mail
        self._core = core
        self._client = client
        self._initial: tuple[OffsetAndMetadata | None] | None = None

    def __repr__(self) -> str:
        return f"ManagerHandle({self._key})"

    @property
    def key(self) -> ManagerKey:
        """Group, topic and partition."""
        return self._key

    def initial_offset(self, *, timeout: float | None = None) -> OffsetAndMetadata | None:
        """What was committed when the manager started; None where nothing was.

        Waits up to `timeout` seconds, with None for as long as it takes.  The answer never changes;
        what was answered once is answered after a stop too.

        Raises:
            OffsetTimeoutError: it was not known in time; with Kafka's last error as its cause.
            ManagerStoppedError: the manager is stopped.
            ClientFencedError: a newer incarnation of the client has taken over.

        """
        deadline = Deadline(timeout, forever=True)
        core = self._core
        if self._initial is None:
            self._live()
            found = blocking.initial_offset(core, self._key, self._mail, deadline)
            self._initial = (found,)
        return self._initial[0]

    def submit(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """Make `offset` (the next one to read) the newest to commit; never blocks.

        Raises:
            InvalidValueError: bad input; nothing was done with it.
            OffsetRegressionError: lower than what this client has submitted before.
            ManagerStoppedError: the manager is stopped.
            ClientFencedError: a newer incarnation of the client has taken over.

        """
        self._submit(offset, metadata, leader_epoch, rewind=False)

    def rewind(self, offset: int, metadata: str = "", leader_epoch: int | None = None) -> None:
        """As submit, but a lower offset is what the caller wants."""
        self._submit(offset, metadata, leader_epoch, rewind=True)

    def _submit(
        self, offset: int, metadata: str, leader_epoch: int | None, *, rewind: bool
    ) -> None:
        value = OffsetAndMetadata(
            check_offset(offset), check_metadata(metadata), check_leader_epoch(leader_epoch)
        )
        for error in self._live().submit({self._key: value}, rewind=rewind).values():
            raise error

    def committed_offsets(self) -> CommittedOffsets:
        """What the coordinator has acknowledged: the newest that was not read yet."""
        core = self._core
        core.listen()
        return self._mail.committed

    def errors(self) -> ManagerErrors:
        """What went wrong while committing or fetching."""
        core = self._core
        core.listen()
        return self._mail.errors

    def stop(self, *, timeout: float = 10.0) -> StopResult:
        """Commit the newest offset, stop, and say what was committed; within `timeout` s.

        Twice is harmless: the answer is the same.
        """
        deadline = Deadline(timeout)
        core, mail = self._core, self._mail
        core.check_process()
        if mail.result is None:
            flush.stop(core, Scope(self._key.group, [self._key.topic_partition]), deadline)
        with core.lock:  # another thread may be at it
            wait_s = deadline.within_s(threading.TIMEOUT_MAX)
            core.changed.wait_for(lambda: mail.result is not None, wait_s)
        if mail.result is not None:
            return mail.result
        error = OffsetTimeoutError(f"{self._key}: another stop of it took longer than {timeout} s")
        return StopResult(None, None, error)

    def _live(self) -> Core:
        core = self._core
        core.check_process()
        if self._mail.result is not None:
            raise ManagerStoppedError(f"{self._key} is stopped; spawn a new manager")
        return core
