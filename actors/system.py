"""The actor system: dispatcher, timers, clock and the tree of actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from actors.cell import Cell
from actors.dispatcher import Dispatcher, PoolDispatcher
from actors.registry import Registry
from actors.supervision import DEFAULT, Supervision
from actors.timers import Clock, MonotonicClock, ThreadTimers, Timers

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from actors.actor import PooledActor
    from actors.future import Future
    from actors.ref import ActorRef

__all__ = ["ActorSystem"]

A = TypeVar("A", bound="PooledActor")
T = TypeVar("T")

log = structlog.get_logger("actors.system")


class ActorSystem:
    """Runs any number of actors on a fixed number of threads; one per process is enough.

    `threads` run the actors, `throughput` messages each turn; one more thread
    serves the timers. All are daemons. As a context manager it stops on leaving.
    The `clock` must move by itself, as the timers' thread sleeps by it; time
    that is moved by hand is for `actors.testing.SimSystem`.
    """

    clock: Clock
    timers: Timers
    dispatcher: Dispatcher
    registry: Registry
    name: str

    def __init__(
        self,
        *,
        threads: int = 4,
        throughput: int = 64,
        name: str = "actors",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.clock = clock if clock is not None else MonotonicClock()
        self.registry = Registry(name)
        self.dispatcher = self._pool = PoolDispatcher(threads, throughput, name=name)
        self.timers = ThreadTimers(self.clock, name=f"{name}-timers")

    def spawn(
        self,
        actor_class: type[A],
        *args: Any,
        name: str,
        parent: ActorRef[Any] | None = None,
        inbox_limit: int = 10_000,
        supervision: Supervision = DEFAULT,
        **kwargs: Any,
    ) -> ActorRef[A]:
        """Construct an actor in this thread and let the dispatcher start it.

        `args` and `kwargs` go to the constructor, again at each restart; the
        four names of this method's own cannot be among them. The parent
        supervises the actor and outlives it; at the root its own policy decides.
        Control signals, such as a stop, fit into a full inbox.

        Raises:
            pykka.ActorDeadError: the parent is stopping, restarting or not yet constructed.
            SystemStoppedError: the system is stopping.
            ValueError: the name is empty, or the limit below 1.
            Exception: what the constructor raised.

        """
        cell = Cell(
            self,
            actor_class,
            args,
            kwargs,
            name=name,
            parent=parent.cell if parent is not None else None,
            inbox_limit=inbox_limit,
            supervision=supervision,
        )
        self.registry.admit(cell)
        cell.launch()
        return cell.ref

    def actor_count(self) -> int:
        """How many actors are not dead."""
        return len(self.registry)

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Block this thread until the future is done; how `ask` and `stop` block."""
        return future.get(timeout=timeout_s)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Stop all actors, children before parents, then the timers and the threads.

        At the deadline it leaves what is not done: those who wait for such an
        actor are answered, and its thread, a daemon, ends with its turn. Twice
        is harmless. Not for use inside an actor, which would wait for itself.

        Returns:
            True if everything was done by the deadline.

        """
        deadline_s = self.clock.now() + timeout_s
        for cell in self.registry.close():
            cell.stop()
        left = self.registry.wait_empty(timeout_s)
        timers_done = self.timers.close(max(0.0, deadline_s - self.clock.now()))
        threads_done = self._pool.stop(max(0.0, deadline_s - self.clock.now()))
        for cell in left:
            cell.abandon()
        if left:
            stuck = [cell.lineage for cell in left[:10]]
            log.error("actors_left_behind", system=self.name, count=len(left), first=stuck)
        return not left and timers_done and threads_done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
