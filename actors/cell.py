"""The part of an actor that outlives its failures: inbox, phase, children, restarts, stop.

One thread at a time runs a cell: whoever acquires `_busy`, a lock used as an
atomic flag and never waited for. A sender appends to the inbox and then tries
to acquire it; the runner releases it and then looks at the inbox. So no message
is forgotten, and sending needs no other lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import pykka
import structlog

from actors.errors import InboxFullError, for_caller
from actors.future import Future
from actors.lifecycle import CHILDREN_GONE, START, STOP, ChildFailed, Notice, Restart
from actors.phase import Phase
from actors.ref import ActorRef
from actors.signals import Signal, UrgentSignal
from actors.supervision import ChildStopped, Directive, Supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.actor import PooledActor
    from actors.system import ActorSystem
    from actors.timers import TimerHandle

__all__ = ["Cell"]

log = structlog.get_logger("actors")

_NOTHING: Final = object()


class Cell:
    """An actor's place in the system; `ref` is its public face."""

    __slots__ = (
        "_actor",
        "_args",
        "_backoff",
        "_busy",
        "_failures_s",
        "_inbox",
        "_inbox_limit",
        "_kwargs",
        "_reason",
        "_stop_requested",
        "_stopped",
        "_supervision",
        "_timers",
        "children",
        "lineage",
        "name",
        "parent",
        "phase",
        "ref",
        "system",
    )

    def __init__(
        self,
        system: ActorSystem,
        actor_class: type[PooledActor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        name: str,
        parent: Cell | None,
        inbox_limit: int,
        supervision: Supervision,
    ) -> None:
        if not name:
            raise ValueError(f"name='' for {actor_class.__name__}: an actor needs a name for logs")
        if inbox_limit < 1:
            raise ValueError(f"inbox_limit={inbox_limit} for {name}: it must be at least 1 message")
        self.system = system
        self.name = name
        self.parent = parent
        self.lineage: str = f"{parent.lineage if parent is not None else ''}/{name}"
        self.phase = Phase.NEW
        self.children: dict[Cell, None] = {}
        self.ref: ActorRef[Any] = ActorRef(self, actor_class)
        self._args = args
        self._kwargs = kwargs
        self._inbox: deque[tuple[object, Future[Any] | None]] = deque()
        self._inbox_limit = inbox_limit
        self._supervision = supervision
        self._actor: PooledActor | None = None
        self._failures_s: list[float] | None = None
        self._reason: BaseException | None = None
        self._backoff: Restart | None = None
        self._stop_requested = False
        self._stopped: Future[bool] | None = None
        self._timers: set[TimerHandle] | None = None
        self._busy = threading.Lock()
        # Held until `launch`: nobody may run an actor whose constructor still runs.
        self._busy.acquire()

    # From any thread

    @property
    def alive(self) -> bool:
        """Whether messages are taken: until the stop's turn has come."""
        return self.phase is not Phase.STOPPING and self.phase is not Phase.DEAD

    def launch(self) -> None:
        """Construct the actor in this thread, then let the dispatcher start it.

        Raises:
            Exception: what the actor's constructor raised; there is no actor then.

        """
        try:
            self._construct()
        except BaseException:
            self._bury()
            raise
        self.phase = Phase.CREATED
        self.system.dispatcher.schedule(self)

    def post(self, message: object, reply_to: Future[Any] | None) -> None:
        """Put a message into the inbox.

        Raises:
            pykka.ActorDeadError: the actor is stopped.
            InboxFullError: the inbox is at its limit, give or take the threads that send just now.

        """
        if not self.alive:
            raise pykka.ActorDeadError(f"{self.ref} is stopped and takes no messages")
        if len(self._inbox) >= self._inbox_limit:
            raise InboxFullError(self.lineage, self._inbox_limit)
        self._inbox.append((message, reply_to))
        if self.phase is Phase.DEAD:
            # It died meanwhile, perhaps with its dispatcher: nobody else would answer.
            self._refuse_inbox()
        else:
            self._wake()

    def signal(self, signal: Signal) -> bool:
        """Put a signal into the inbox, full or not, an urgent one in front; False when dead."""
        if self.phase is Phase.DEAD:
            return False
        if isinstance(signal, UrgentSignal):
            self._inbox.appendleft((signal, None))
        else:
            self._inbox.append((signal, None))
        self._wake()
        return True

    def stop(self) -> None:
        """Ask the actor to stop after what is in its inbox now."""
        with self.system.registry.lock:
            if self._stop_requested:
                return
            self._stop_requested = True
        self.signal(STOP)

    def when_stopped(self) -> Future[bool]:
        """Future of the end: True once the actor is dead, False where it is dead already."""
        with self.system.registry.lock:
            if self.phase is not Phase.DEAD:
                if self._stopped is None:
                    self._stopped = Future()
                return self._stopped
        dead: Future[bool] = Future()
        dead.set(value=False)
        return dead

    def abandon(self) -> None:
        """Answer everybody who waits, now or later, for an actor that did not stop in time."""
        self.when_stopped().set(value=False)
        self.phase = Phase.DEAD
        self._refuse_inbox()

    # In the actor's own turn

    def run(self, budget: int) -> str | None:
        """Handle at most `budget` entries of the inbox; returns the class name of the last."""
        handled: object = _NOTHING
        try:
            for _ in range(budget):
                if not self._has_work():
                    break
                handled = self._step()
        finally:
            self._busy.release()
            if self._has_work():
                self._wake()
        return None if handled is _NOTHING else type(handled).__name__

    def receive(self, message: object, reply_to: Future[Any] | None) -> None:
        """Let the actor handle one message, and supervise what it raises."""
        actor = self._actor
        if actor is None or not self.alive:
            self._refuse(reply_to)
            return
        try:
            answer = actor.handle(message)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this actor's turn only
            refused = reply_to is not None and isinstance(error, actor.refusals)
            if not refused:
                self._fail(error, type(message).__name__)
            if reply_to is not None:
                reply_to.set_exception(for_caller(error, self.lineage))
        else:
            if reply_to is not None:
                reply_to.set(answer)

    def own(self, handle: TimerHandle) -> TimerHandle:
        """Bind a timer to this instance of the actor: a failure or the stop cancels it."""
        if self._timers is None:
            self._timers = set()
        handle.owner = self._timers
        self._timers.add(handle)
        return handle

    def policy(self) -> Directive:
        """Tell what the supervision policy says of the latest failure."""
        return self._supervision.decide(len(self._failures_s or ()))

    def judge(self, child: Cell, reason: BaseException) -> Directive:
        """Decide on a child that failed, as its parent."""
        if self.phase is not Phase.RUNNING or self._actor is None:
            return child.policy()  # there is no instance to ask, or it is on its way out
        try:
            return self._actor.on_child_failure(child.ref, reason)
        except BaseException:  # a bad judge must not leave the child hanging
            log.exception("actor_hook_failed", lineage=self.lineage, hook="on_child_failure")
            return child.policy()

    def obey(self, directive: Directive, reason: BaseException) -> None:
        """Carry out the decision on this actor's failure."""
        failures = len(self._failures_s or ())
        if directive is Directive.STOP:
            log.error("actor_gave_up", lineage=self.lineage, failures=failures, exc_info=reason)
            self.begin_stop()
            return
        backoff = self._backoff = Restart()
        rest_s = self._supervision.rest_s(failures)
        if rest_s > 0:
            self.system.timers.call_after(rest_s, lambda: self.signal(backoff))
        else:
            self.signal(backoff)

    def begin_restart(self, backoff: Restart) -> None:
        """Stop the children, then construct a fresh instance; ignored if this rest is over."""
        if self._backoff is not backoff:
            return
        self._backoff = None
        self._leave(Phase.RESTARTING)

    def begin_stop(self) -> None:
        """Stop the children, then the actor itself."""
        self._cancel_timers()
        self._backoff = None
        self._leave(Phase.STOPPING)

    def children_gone(self) -> None:
        """Go on with the restart or the stop that waited for the children."""
        if self.phase is Phase.RESTARTING:
            self._revive()
        elif self.phase is Phase.STOPPING:
            self._end()

    def _leave(self, phase: Phase) -> None:
        children = self.system.registry.enter(self, phase)
        for child in children:
            child.stop()
        if not children:
            self.children_gone()

    def _wake(self) -> None:
        if self._busy.acquire(blocking=False):
            self.system.dispatcher.schedule(self)

    def _has_work(self) -> bool:
        phase = self.phase
        if phase is Phase.RUNNING:
            return bool(self._inbox)
        if phase is Phase.CREATED:
            return True
        if phase is Phase.SUSPENDED or phase is Phase.RESTARTING:
            # A stop does not wait for the end of a backoff: nobody gains by that.
            return (self._stop_requested and self._backoff is not None) or self._head_is_urgent()
        return phase is Phase.STOPPING and bool(self._inbox)

    def _head_is_urgent(self) -> bool:
        try:
            return isinstance(self._inbox[0][0], UrgentSignal)
        except IndexError:
            return False

    def _step(self) -> object:
        if self.phase is Phase.CREATED:
            self._start()
            return START
        if self._backoff is not None and self._stop_requested:
            return self._backoff.apply(self)
        try:
            message, reply_to = self._inbox.popleft()
        except IndexError:  # `abandon` took it away
            return _NOTHING
        if isinstance(message, Signal):
            return message.apply(self)
        self.receive(message, reply_to)
        return message

    def _construct(self) -> None:
        self._actor = self.ref.actor_class.create(self, self._args, self._kwargs)
        self.ref.attach(self._actor)

    def _start(self) -> None:
        reason = self._reason
        self.phase = Phase.RUNNING
        try:
            if self._actor is not None:
                self._actor.on_start()
                if reason is not None:
                    self._actor.on_restart(reason)
        except BaseException as error:  # noqa: BLE001 - as in receive
            self._fail(error, "on_start")
        else:
            self._reason = None

    def _revive(self) -> None:
        try:
            self._construct()
        except BaseException as error:  # noqa: BLE001 - as in receive
            self._fail(error, "__init__")
        else:
            self._start()
            log.info("actor_restarted", lineage=self.lineage, running=self.phase is Phase.RUNNING)

    def _fail(self, error: BaseException, during: str) -> None:
        log.error("actor_failed", lineage=self.lineage, message_type=during, exc_info=error)
        if self.phase is Phase.DEAD:  # abandoned, while it was stuck
            return
        self.phase = Phase.SUSPENDED
        self._reason = error
        self._cancel_timers()
        actor, self._actor = self._actor, None
        if actor is not None:
            self._call_hook("on_failure", actor.on_failure, type(error), error, error.__traceback__)
        now_s = self.system.clock.now()
        self._failures_s = self._supervision.recent([*(self._failures_s or ()), now_s], now_s)
        if self.parent is None:
            self.obey(self.policy(), error)
        else:
            self.parent.signal(ChildFailed(self, error))

    def _end(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            self._call_hook("on_stop", actor.on_stop)
        if self._reason is not None and self.parent is not None:
            self.parent.signal(Notice(ChildStopped(self.ref, self._reason)))
        self._bury()

    def _bury(self) -> None:
        self._cancel_timers()
        parent_waited = self.system.registry.remove(self)
        self._refuse_inbox()
        if self._stopped is not None:
            self._stopped.set(value=True)
        if parent_waited and self.parent is not None:
            self.parent.signal(CHILDREN_GONE)
        # Nobody restarts it.  What it was made of knows its ref as a rule: the circle would lie
        # about until a full collection, and what comes next be strewn over the holes between.
        self._args, self._kwargs = (), {}

    def _cancel_timers(self) -> None:
        for timer in tuple(self._timers or ()):
            timer.cancel()

    def _refuse_inbox(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._refuse(self._inbox.popleft()[1])

    def _refuse(self, reply_to: Future[Any] | None) -> None:
        if reply_to is not None:
            reply_to.set_exception(
                pykka.ActorDeadError(f"{self.ref} stopped before it handled the message")
            )

    def _call_hook(self, name: str, hook: Callable[..., object], *args: object) -> None:
        try:
            hook(*args)
        except BaseException:  # the end of an actor goes on regardless
            log.exception("actor_hook_failed", lineage=self.lineage, hook=name)
