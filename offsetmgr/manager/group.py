"""State that the managers of one group share with each other and with user threads."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from actors import Strand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors import ActorRef, ActorSystem
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.types import TopicPartition

M = TypeVar("M")


class Collect(NamedTuple):
    """Message to the committer: managers wait to be collected."""


class Group(Generic[M]):
    """The live managers of a group, and a queue of those that have something for the committer.

    The committer is woken at once for new managers, and an interval after the first submit; at most
    one wake-up for submits is pending.
    """

    def __init__(self, name: str, system: ActorSystem, commit_interval_s: float) -> None:
        self.name = name
        self.lock = RLock()
        """Guards the submits of all managers; re-entrant, as a signal handler may submit."""
        self.managers: dict[TopicPartition, M] = {}
        """The managers that have their names; changed under the factory's lock."""
        self.strand = Strand(system.dispatcher)
        self.committer: ActorRef[Any]
        """Started with the group."""
        self.last_failure: Failure | None = None
        """The reason why the last request failed for the whole group; None if it did not."""
        self._system = system
        self._interval_s = commit_interval_s
        self._queue: list[M] = []
        self._since: float | None = None  # when the first in the queue was submitted
        self._wake_up_pending = False

    @property
    def has_queued(self) -> bool:
        """True if there is something to collect."""
        return bool(self._queue)

    def queue_submit(self, manager: M) -> None:
        """Have ``manager`` collected an interval from now; with the lock held."""
        self._queue.append(manager)
        if self._since is None:
            if not self._wake_up_pending:
                # In this order a Ctrl-C may cost a second wake-up, but never the only one.
                self._system.timers.call_after(self._interval_s, self._wake)
                self._wake_up_pending = True
            self._since = self._system.clock.now()

    def queue_start(self, managers: Iterable[M]) -> None:
        """Have new or restarted managers collected at once."""
        with self.lock:
            for manager in managers:
                self.queue_submit(manager)
        self.committer.tell_due(Collect())

    def collect(self, now: float) -> tuple[list[M], float]:
        """Empty the queue; return it, and when the first of its submits came."""
        with self.lock:
            queue, since = self._queue, self._since
            self._queue, self._since = [], None
            return queue, now if since is None else since

    def _wake(self) -> None:
        with self.lock:
            self._wake_up_pending = False
        self.committer.tell_due(Collect())
