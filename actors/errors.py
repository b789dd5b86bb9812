"""What can go wrong between actors, as exceptions.

Exception
├── pykka.ActorDeadError    the actor is stopped: raised by tell, given to an ask
├── pykka.Timeout           Future.get waited long enough
├── ActorCrashedError       an ask was answered by SystemExit, KeyboardInterrupt or the like
├── InboxFullError          the actor is slower than those who talk to it
├── SystemStoppedError      the actor system stops: it starts no more actors
└── MailboxClosed           a mailbox will never hold anything again
"""

from __future__ import annotations

__all__ = [
    "ActorCrashedError",
    "InboxFullError",
    "MailboxClosed",
    "SystemStoppedError",
    "for_caller",
]


class ActorCrashedError(RuntimeError):
    """An actor met a `BaseException` that no caller of it may be made to raise.

    A `SystemExit` in a message must end neither the thread that asked nor the
    event loop that awaits the answer. The original is the `__cause__`.
    """


class InboxFullError(RuntimeError):
    """The inbox of an actor holds as many messages as it may."""

    def __init__(self, lineage: str, limit: int) -> None:
        """Name the actor and its limit."""
        super().__init__(
            f"the inbox of actor {lineage} is full: inbox_limit={limit} messages wait. "
            "The actor is slower than its senders: send less, or spawn it with a higher inbox_limit"
        )
        self.lineage = lineage
        self.limit = limit


class SystemStoppedError(RuntimeError):
    """The actor system is stopping or stopped, and was asked to start an actor."""


class MailboxClosed(Exception):  # noqa: N818 - a state that ends a loop, as StopIteration, no fault
    """The mailbox is closed and everything in it was read."""


def for_caller(error: BaseException, lineage: str) -> Exception:
    """Turn what an actor raised into what those who asked it may be made to raise."""
    if isinstance(error, Exception):
        return error
    crash = ActorCrashedError(f"actor {lineage} raised {error!r} instead of an answer")
    crash.__cause__ = error
    return crash
