"""The reference by which an actor is told, asked and stopped."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import pykka

from actors.errors import InboxFullError
from actors.future import Future

if TYPE_CHECKING:
    from actors.actor import PooledActor
    from actors.cell import Cell

__all__ = ["ActorRef"]

A = TypeVar("A", bound="PooledActor")


class ActorRef(pykka.ActorRef[A]):
    """A pykka `ActorRef` that stays valid when the actor behind it is restarted.

    `actor_urn` is the lineage: for people and logs, not a key, since an actor
    that stopped may be followed by one of the same lineage.
    """

    def __init__(self, cell: Cell, actor_class: type[A]) -> None:
        # pykka's constructor wants a live actor, with an inbox and an Event that weigh 2 KB.
        self.cell = cell
        self.actor_class = actor_class
        self.actor_urn = cell.lineage

    @property
    def lineage(self) -> str:
        """The names from the root down: `/factory/orders-etl/orders/3`."""
        return self.cell.lineage

    @property
    def actor_stopped(self) -> threading.Event:  # type: ignore[override]  # made on demand
        """An Event that is set once the actor is dead."""
        event = threading.Event()
        self.cell.when_stopped().add_done_callback(lambda _: event.set())
        return event

    def attach(self, actor: A) -> None:
        """Let pykka's proxy look at this instance of the actor."""
        self._actor_weakref = weakref.ref(actor)

    def is_alive(self) -> bool:
        """Whether the actor takes messages: until its stop has come up in the inbox."""
        return self.cell.alive

    def tell(self, message: Any) -> None:
        """Send a message without an answer. Never blocks.

        Raises:
            pykka.ActorDeadError: the actor is stopped.
            InboxFullError: its inbox is at the limit.

        """
        self.cell.post(message, None)

    def try_tell(self, message: Any) -> bool:
        """Send a message; False when the actor is stopped or its inbox full."""
        try:
            self.cell.post(message, None)
        except (pykka.ActorDeadError, InboxFullError):
            return False
        return True

    @overload
    def ask(
        self, message: Any, *, block: Literal[False], timeout: float | None = None
    ) -> Future[Any]: ...

    @overload
    def ask(
        self, message: Any, *, block: Literal[True] = ..., timeout: float | None = None
    ) -> Any: ...

    @overload
    def ask(
        self, message: Any, *, block: bool = ..., timeout: float | None = None
    ) -> Any | Future[Any]: ...

    def ask(
        self, message: Any, *, block: bool = True, timeout: float | None = None
    ) -> Any | Future[Any]:
        """Send a message and wait at most `timeout` seconds for the answer, or get its future.

        Inside an actor, ask with `block=False`: a blocked actor holds a thread of the pool.

        Raises:
            pykka.ActorDeadError: the actor is stopped, or stopped before it handled the message.
            InboxFullError: its inbox is at the limit.
            pykka.Timeout: the time passed first.
            Exception: what the actor raised.

        """
        future: Future[Any] = Future()
        try:
            self.cell.post(message, future)
        except (pykka.ActorDeadError, InboxFullError) as error:
            future.set_exception(error)
        return self.cell.system.wait(future, timeout) if block else future

    @overload
    def stop(self, *, block: Literal[True] = ..., timeout: float | None = None) -> bool: ...

    @overload
    def stop(self, *, block: Literal[False], timeout: float | None = None) -> Future[bool]: ...

    @overload
    def stop(self, *, block: bool = ..., timeout: float | None = None) -> bool | Future[bool]: ...

    def stop(self, *, block: bool = True, timeout: float | None = None) -> bool | Future[bool]:
        """Stop the actor after the messages it has now: first its children, then itself.

        Returns True, or a future of it, once the actor is dead; False if it was dead before.

        Raises:
            pykka.Timeout: the time passed first; the stop goes on.

        """
        future = self.cell.when_stopped()
        self.cell.stop()
        return self.cell.system.wait(future, timeout) if block else future
