"""The base class of actors that share the threads of a dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

import pykka
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr, _ActorStop

from actors.future import Future
from actors.supervision import DEFAULT, Directive, Supervision

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from typing_extensions import Self

    from actors.cell import Cell
    from actors.ref import ActorRef
    from actors.system import ActorSystem
    from actors.timers import TimerHandle

__all__ = ["PooledActor"]

A = TypeVar("A", bound="PooledActor")

# What pykka handles itself; asked once for all of them, as nearly every message is another.
_OF_PYKKA: Final = (ProxyCall, ProxyGetAttr, ProxySetAttr, _ActorStop)


class PooledActor(pykka.Actor):
    """A pykka actor without a thread of its own.

    It is started by `ActorSystem.spawn` or `spawn_child`, and handles one
    message at a time in `on_receive`. Its constructor runs in the thread that
    spawns it, everything else in the dispatcher's. Nothing in it may block: a
    blocked actor holds a thread that others wait for.

    What `on_receive` or `on_start` raises is a failure, under `ask` too (the
    caller gets the exception): timers are cancelled, `on_failure` is called,
    and the parent decides. A restart stops the children and constructs a fresh
    instance with the same arguments, on which `on_start` and `on_restart` are
    called; the ref and the waiting messages stay, the failed message is gone.
    """

    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that answer an `ask` and are no failure: the actor goes on as it is.

    Under `tell`, where nobody takes the answer, they are failures as any other.
    """

    _cell: Cell

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        # Not pykka's constructor: the cell holds what it would make.
        """Do nothing; override at will."""

    @classmethod
    def create(cls, cell: Cell, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Self:
        """Construct an instance at its place in a system; for the runtime alone.

        The place is there before the constructor runs, which may use it.
        """
        actor = cls.__new__(cls)
        actor._cell = cell  # noqa: SLF001 - its own class's
        actor._actor_ref = cell.ref  # noqa: SLF001
        actor.actor_urn = cell.lineage
        cls.__init__(actor, *args, **kwargs)
        return actor

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a pooled actor lives in a system.

        Raises:
            TypeError: always.

        """
        del args, kwargs
        raise TypeError(_HOW_TO_START.format(cls.__name__))

    @property
    def system(self) -> ActorSystem:
        """The system that the actor lives in, with its clock and timers."""
        return self._cell.system

    @property
    def name(self) -> str:
        """The name among the siblings, for people; not necessarily unique."""
        return self._cell.name

    @property
    def lineage(self) -> str:
        """The names from the root down: `/factory/orders-etl/orders/3`."""
        return self._cell.lineage

    @property
    def parent(self) -> ActorRef[Any] | None:
        """Who supervises this actor; None at the root."""
        return self._cell.parent.ref if self._cell.parent is not None else None

    @property
    def children(self) -> list[ActorRef[Any]]:
        """The children that are not dead, eldest first."""
        return [child.ref for child in list(self._cell.children)]

    @property
    def actor_ref(self) -> ActorRef[Self]:
        """The reference to this actor, the same for all its instances."""
        return self._cell.ref

    @property
    def actor_stopped(self) -> threading.Event:  # type: ignore[override]  # made on demand
        """An Event that is set once the actor is dead."""
        return self.actor_ref.actor_stopped

    def spawn_child(
        self,
        actor_class: type[A],
        *args: Any,
        name: str,
        inbox_limit: int = 10_000,
        supervision: Supervision = DEFAULT,
        **kwargs: Any,
    ) -> ActorRef[A]:
        """Start an actor that this one supervises; see `ActorSystem.spawn`."""
        return self.system.spawn(
            actor_class,
            *args,
            name=name,
            parent=self.actor_ref,
            inbox_limit=inbox_limit,
            supervision=supervision,
            **kwargs,
        )

    def tell_after(self, delay_s: float, message: Any) -> TimerHandle:
        """Tell itself `message` in `delay_s` seconds, unless it fails or stops before.

        Raises:
            ValueError: the delay is negative or not finite.

        """
        return self._cell.own(self.system.timers.tell_after(delay_s, self.actor_ref, message))

    def tell_every(self, interval_s: float, message: Any) -> TimerHandle:
        """Tell itself `message` at a fixed rate, until it fails or stops.

        Raises:
            ValueError: the interval is not positive or not finite.

        """
        return self._cell.own(self.system.timers.tell_every(interval_s, self.actor_ref, message))

    def on_child_failure(self, child: ActorRef[Any], reason: BaseException) -> Directive:
        """Decide on a child that failed; by default as the child's `Supervision` says.

        A restart waits for the policy's backoff, whoever decided it.
        """
        del reason
        return child.cell.policy()

    def on_restart(self, reason: BaseException) -> None:
        """Know that this instance follows one that failed; called after `on_start`."""

    def stop(self) -> None:
        """Stop after the messages that wait now."""
        self._cell.stop()

    def handle(self, message: object) -> object:
        """Handle one message, pykka's proxy calls included; for the runtime alone."""
        if isinstance(message, _OF_PYKKA):
            return self._handle_receive(message)
        return self.on_receive(message)

    def _stop(self) -> None:
        self.stop()

    @staticmethod
    def _create_future() -> Future[Any]:
        return Future()

    @staticmethod
    def _create_actor_inbox() -> NoReturn:
        raise TypeError(_HOW_TO_START.format("PooledActor"))

    def _start_actor_loop(self) -> NoReturn:
        raise TypeError(_HOW_TO_START.format(type(self).__name__))


_HOW_TO_START = "{} lives in an ActorSystem: start it with system.spawn() or actor.spawn_child()"
