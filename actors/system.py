"""The actor system: dispatcher, timers, clock and the tree of actors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pykka

from actors.actor import ActorLoop, ActorRef, Phase, PooledActor
from actors.dispatcher import Dispatcher, PoolDispatcher
from actors.errors import SystemStoppedError
from actors.logs import get_logger
from actors.supervision import DEFAULT, Supervision
from actors.timers import Clock, MonotonicClock, ThreadTimers, Timers

if TYPE_CHECKING:
    from typing_extensions import Self

    from actors.future import Future

__all__ = ["ActorSystem"]

A = TypeVar("A", bound=PooledActor)
T = TypeVar("T")

log = get_logger("actors.system")


class ActorSystem:
    """Runs any number of actors on a fixed number of threads; one per process is enough.

    `threads` run the actors, `throughput` messages each turn; one more thread serves the timers.
    All are daemons.  As a context manager it stops on leaving.  The `clock` must move by itself, as
    the timers' thread sleeps by it; a simulation gives a `dispatcher` and `timers` of its own.
    """

    def __init__(
        self,
        *,
        threads: int = 4,
        throughput: int = 64,
        name: str = "actors",
        clock: Clock | None = None,
        dispatcher: Dispatcher | None = None,
        timers: Timers | None = None,
    ) -> None:
        self.name = name
        self.clock: Clock = clock if clock is not None else MonotonicClock()
        if dispatcher is None:
            dispatcher = PoolDispatcher(threads, throughput, name=name)
        self.dispatcher = dispatcher
        if timers is None:
            timers = ThreadTimers(self.clock, name=f"{name}-timers")
        self.timers = timers
        # Reentrant, as a signal handler may stop actors in the middle of a spawn.
        self.lock = threading.RLock()
        self._empty = threading.Condition(self.lock)
        # Not pykka's registry, a list, in which the stop of one actor costs a look at all others.
        # A dict keeps the order: a simulation must stop actors in the same order each time.
        self._loops: dict[ActorLoop, None] = {}
        self._stopping = False

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

        `args` and `kwargs` go to the constructor, again at each restart; the four names of this
        method's own cannot be among them.  An actor ends before its parent does.

        Raises SystemStoppedError where the system is stopping, pykka.ActorDeadError
        where the parent is or restarts; and what the constructor raised.
        """
        actor = actor_class(*args, **kwargs)
        loop = ActorLoop(
            self,
            actor,
            args,
            kwargs,
            name=name,
            parent=parent.loop if parent is not None else None,
            inbox_limit=inbox_limit,
            supervision=supervision,
        )
        self._add(loop)
        actor._start_actor_loop()  # noqa: SLF001 - what pykka's start does
        return actor.actor_ref

    def actor_count(self) -> int:
        return len(self._loops)

    def remove(self, loop: ActorLoop) -> None:
        """Forget a dead actor; called under the lock."""
        self._loops.pop(loop, None)
        if not self._loops:
            self._empty.notify_all()

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Block this thread until the future is done."""
        return future.get(timeout=timeout_s)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Stop all actors, children before parents, then the timers and the threads.

        At the deadline it leaves what is not done: those who wait for such an actor are answered,
        and its thread, a daemon, ends with its turn.  Twice is harmless.  Not for use inside an
        actor, which would wait for itself.  Returns True if everything was done by the deadline.
        """
        deadline_s = self.clock.now() + timeout_s
        with self.lock:
            self._stopping = True
            roots = [loop for loop in self._loops if loop.parent is None]
        for loop in roots:
            loop.stop()
        self._let_end(timeout_s)
        timers_done = self.timers.close(max(0.0, deadline_s - self.clock.now()))
        threads_done = self.dispatcher.stop(max(0.0, deadline_s - self.clock.now()))
        with self.lock:
            left = list(self._loops)
        for loop in left:
            loop.abandon()
        if left:
            stuck = [loop.path for loop in left[:10]]
            log.error("actors_left_behind", system=self.name, count=len(left), first=stuck)
        return not left and timers_done and threads_done

    def _add(self, loop: ActorLoop) -> None:
        parent = loop.parent
        with self.lock:
            if parent is None:
                if self._stopping:
                    raise SystemStoppedError(
                        f"actor system {self.name!r} is stopping: "
                        f"it does not start {loop.path} any more"
                    )
            elif parent.phase in {Phase.RESTARTING, Phase.STOPPING, Phase.DEAD}:
                raise pykka.ActorDeadError(
                    f"{parent.path} cannot take the child {loop.path} while it is "
                    f"{parent.phase.name}"
                )
            else:
                parent.children[loop] = None
            self._loops[loop] = None

    def _let_end(self, timeout_s: float) -> None:
        """Wait until all actors are dead, at most `timeout_s` seconds."""
        with self.lock:
            self._empty.wait_for(lambda: not self._loops, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()
