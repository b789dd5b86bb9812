"""Errors of the actor runtime, besides pykka's own `ActorDeadError` and `Timeout`."""

from __future__ import annotations

__all__ = ["InboxFullError", "MailboxClosed", "SystemStoppedError"]


class InboxFullError(RuntimeError):
    """The inbox of an actor holds as many messages as it may."""

    def __init__(self, actor: str, limit: int) -> None:
        super().__init__(
            f"the inbox of actor {actor} is full: inbox_limit={limit} messages wait. "
            "The actor is slower than its senders: send less, or spawn it with a higher inbox_limit"
        )


class SystemStoppedError(RuntimeError):
    """The actor system is stopping or stopped, and was asked to start an actor."""


class MailboxClosed(Exception):  # noqa: N818 - a state that ends a loop, as StopIteration, no fault
    """The mailbox is closed and everything in it was read."""
