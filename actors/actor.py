"""Actors that share a pool of threads: what `pykka.ThreadingActor` is for a thread each.

`PooledActor` fills in the hooks that pykka has for new kinds of actors.  The `ActorLoop` behind
each takes messages from its `Inbox` in turns on the pool, and outlives failures: it constructs the
actor afresh, for the same `ActorRef`.

    STARTING ──► RUNNING ──────────────► STOPPING ──► DEAD
                  │  ▲                       ▲
          failure ▼  │ fresh instance        │ too many failures
                FAILED ──► RESTARTING ───────┘
"""

from __future__ import annotations

import contextlib
import enum
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pykka

from actors.errors import InboxFullError
from actors.future import Future
from actors.logs import get_logger
from actors.timers import Clock, TimedMessage, TimerHandle, Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from actors.dispatcher import Dispatcher
    from actors.supervision import Supervision

__all__ = ["ActorLoop", "ActorRef", "Inbox", "Phase", "PooledActor", "System"]

A = TypeVar("A", bound="PooledActor")
T = TypeVar("T")

log = get_logger("actors")


class System(Protocol):
    """The part of the `ActorSystem` that actors use."""

    clock: Clock
    timers: Timers
    dispatcher: Dispatcher
    lock: threading.RLock
    """For every change of who is whose child."""

    def spawn(self, actor_class: type[A], *args: Any, **options: Any) -> ActorRef[A]:
        """Start an actor."""

    def remove(self, loop: ActorLoop) -> None:
        """Forget a dead actor; called under the lock."""

    def wait(self, future: Future[T], timeout_s: float | None) -> T:
        """Block until the future is done."""


class Control(enum.Enum):
    """An entry of the inbox that is for the loop, not for the actor."""

    START = "Start"
    RESTART = "Restart"
    CHILDREN_GONE = "ChildrenGone"
    STOP = "Stop"


class Inbox:
    """The messages of one actor, at most `limit`, in the order in which they came.

    Whoever puts the first one schedules the actor's turn; there is one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Any] = deque()
        self._controls: list[Control] = []
        self._closed = False
        self._paused = True
        self._scheduled = False

    def bind(self, dispatcher: Dispatcher, loop: ActorLoop, limit: int) -> None:
        self._dispatcher, self._loop, self._limit = dispatcher, loop, limit

    def put(self, envelope: Any, /) -> None:
        """Add a message.  Raises pykka.ActorDeadError, InboxFullError."""
        with self._lock:
            if not self._closed and len(self._entries) >= self._limit:
                raise InboxFullError(self._loop.path, self._limit)
            self._add(envelope)

    def put_over_limit(self, entry: Any) -> None:
        """Add the message of a timer, or the stop: it must not get lost in a full inbox.

        Raises pykka.ActorDeadError.
        """
        with self._lock:
            self._add(entry)

    def put_control(self, control: Control) -> None:
        """Add an entry that is handled before any message, also while these wait."""
        with self._lock:
            self._controls.append(control)
            self._schedule()

    def get(self) -> Any:
        """Return the next entry to handle; None if there is none now."""
        with self._lock:
            if self._controls:
                return self._controls.pop(0)
            return self._entries.popleft() if self._entries and not self._paused else None

    def empty(self) -> bool:
        return not self._entries and not self._controls

    def end_turn(self) -> None:
        """Schedule the next turn if there is something to handle."""
        with self._lock:
            self._scheduled = False
            self._schedule()

    def pause(self, *, paused: bool) -> None:
        """Keep messages waiting, or no more; called in the actor's turn."""
        self._paused = paused

    def close(self) -> list[Any]:
        """Take no more messages; returns those that waited."""
        with self._lock:
            self._closed = True
            left = [entry for entry in self._entries if not isinstance(entry, Control)]
            self._entries.clear()
        return left

    def __len__(self) -> int:
        return len(self._entries)

    def _add(self, entry: Any) -> None:
        if self._closed:
            raise pykka.ActorDeadError(f"{self._loop.path} is stopped and takes no messages")
        self._entries.append(entry)
        self._schedule()

    def _schedule(self) -> None:
        due = self._controls or (self._entries and not self._paused)
        if due and not self._scheduled:
            self._scheduled = True
            self._dispatcher.schedule(self._loop)


class _StopFlag:
    """Replaces pykka's `threading.Event`, which takes more memory than the rest of an actor."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class ActorRef(pykka.ActorRef[A]):
    """A pykka `ActorRef` that stays valid when the actor behind it is restarted.

    `actor_urn` is the path of names from the root down, `/factory/orders-etl`: for people and logs,
    not a key, since an actor that stopped may be followed by one of the same name.
    """

    actor_inbox: Inbox
    loop: ActorLoop

    def try_tell(self, message: Any) -> bool:
        """Send a message; False when the actor is stopped or its inbox full."""
        try:
            self.tell(message)
        except (pykka.ActorDeadError, InboxFullError):
            return False
        return True

    def tell_due(self, timed: TimedMessage) -> None:
        """Put a message that is due into the inbox, full or not; drop it if the actor is dead."""
        with contextlib.suppress(pykka.ActorDeadError):
            self.actor_inbox.put_over_limit(timed)

    def stop(self, *, block: bool = True, timeout: float | None = None) -> Any:
        """Stop the actor after the messages it has now: first its children, then itself.

        Returns True, or a future of it, once the actor is dead; False if it was dead before.
        Raises pykka.Timeout; the stop goes on.
        """
        dead = self.loop.when_dead()
        self.loop.stop()
        return self.loop.system.wait(dead, timeout) if block else dead


class PooledActor(pykka.Actor):
    """A pykka actor without a thread of its own.

    It is started by `ActorSystem.spawn` or `spawn_child`, and handles one message at a time in
    `on_receive`.  Its constructor runs in the thread that spawns it, everything else in the pool's;
    its place in the system is known from `on_start` on.  Nothing in it may block: a blocked actor
    holds a thread that others wait for.

    An exception from `on_receive` or `on_start` is a failure: timers are cancelled and `on_failure`
    is called.  After a back-off the children are stopped and a fresh instance is constructed with
    the same arguments, on which `on_start` and `on_restart` are called; the ref and the waiting
    messages stay, the failed message is gone.
    """

    actor_inbox: Inbox
    system: System
    """Its clock and timers; known from `on_start` on."""
    parent: ActorRef[Any] | None
    """The actor that stops and restarts this one with itself; None at the root."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()
        self.actor_stopped = _StopFlag()  # type: ignore[assignment]
        self._actor_ref: ActorRef[Any] = ActorRef(self)

    @property
    def actor_ref(self) -> ActorRef[Self]:
        """The reference to this actor, the same for all its instances."""
        return self._actor_ref

    def spawn_child(self, actor_class: type[A], *args: Any, **options: Any) -> ActorRef[A]:
        """Start an actor that ends with this one; see `ActorSystem.spawn`."""
        return self.system.spawn(actor_class, *args, parent=self.actor_ref, **options)

    def tell_after(self, delay_s: float, message: Any) -> TimerHandle:
        """Tell itself `message` in `delay_s` seconds, unless it fails or stops before."""
        timer = self.system.timers.tell_after(delay_s, self.actor_ref, message)
        self.actor_ref.loop.timers.add(timer)
        return timer

    def on_restart(self, reason: BaseException) -> None:
        """Take up the work of an instance that failed; called after `on_start`."""

    def stop(self) -> None:
        """Stop after the messages that wait now."""
        self.actor_ref.loop.stop()

    def _stop(self) -> None:
        self.stop()

    @staticmethod
    def _create_actor_inbox() -> Inbox:
        return Inbox()

    @staticmethod
    def _create_future() -> Future[Any]:
        return Future()

    def _start_actor_loop(self) -> None:
        if not hasattr(self, "system"):
            name = type(self).__name__
            raise TypeError(
                f"{name} lives in an ActorSystem: start it with system.spawn() or spawn_child()"
            )
        self.actor_inbox.put_control(Control.START)


class Phase(enum.Enum):
    STARTING = enum.auto()
    RUNNING = enum.auto()
    FAILED = enum.auto()  # rests until it is restarted; messages wait
    RESTARTING = enum.auto()  # waits until its children have stopped
    STOPPING = enum.auto()  # the same; messages are refused
    DEAD = enum.auto()


class ActorLoop:
    """Runs one actor in turns: its start, messages, restarts and end."""

    def __init__(
        self,
        system: System,
        actor: PooledActor,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        name: str,
        parent: ActorLoop | None,
        inbox_limit: int,
        supervision: Supervision,
    ) -> None:
        self.system = system
        self.parent = parent
        self.path: str = f"{parent.path if parent is not None else ''}/{name}"
        self.phase = Phase.STARTING
        self.children: dict[ActorLoop, None] = {}
        self.actor: PooledActor | None = actor
        self.ref = actor.actor_ref
        self.ref.actor_urn = self.path
        self.ref.loop = self
        self._actor_class = type(actor)
        self._args = args
        self._kwargs = kwargs
        self._supervision = supervision
        self._failures_s: Sequence[float] = ()
        self._reason: BaseException | None = None
        self._stop_requested = False
        self._timers: weakref.WeakSet[TimerHandle] | None = None  # made when the first is set
        self._dead: Future[bool] | None = None
        self._inbox = actor.actor_inbox
        self._inbox.bind(system.dispatcher, self, inbox_limit)
        self._place(actor)

    # From any thread.

    def stop(self) -> None:
        """Ask the actor to stop after what is in its inbox now; twice is harmless."""
        with self.system.lock:
            if self._stop_requested or self.phase in {Phase.STOPPING, Phase.DEAD}:
                return
            self._stop_requested = True
        with contextlib.suppress(pykka.ActorDeadError):
            self._inbox.put_over_limit(Control.STOP)
        if self.phase is Phase.FAILED:
            # A stop does not wait for the end of a back-off: nobody gains by that.
            self._inbox.put_control(Control.RESTART)

    def when_dead(self) -> Future[bool]:
        """Return a future: True once the actor is dead, False where it is dead already."""
        with self.system.lock:
            if self.phase is not Phase.DEAD:
                if self._dead is None:
                    self._dead = Future()
                return self._dead
        dead: Future[bool] = Future()
        dead.set(value=False)
        return dead

    def abandon(self) -> None:
        """Answer everybody who waits, now or later, for an actor that did not stop in time."""
        self.when_dead().set(value=False)
        self.phase = Phase.DEAD
        self._refuse_messages()

    # In the actor's own turn.

    @property
    def timers(self) -> weakref.WeakSet[TimerHandle]:
        """The timers of this instance, which a failure or the stop cancels."""
        if self._timers is None:
            self._timers = weakref.WeakSet()
        return self._timers

    def run(self, budget: int) -> str | None:
        """Handle at most `budget` entries of the inbox; returns the name of the last."""
        handled: str | None = None
        try:
            for _ in range(budget):
                entry = self._inbox.get()
                if entry is None or self.phase is Phase.DEAD:
                    break
                handled = self._handle(entry)
        finally:
            self._inbox.end_turn()
        return handled

    def _handle(self, entry: Any) -> str:
        match entry:
            case Control.START:
                self._start()
            case Control.STOP:
                self._begin_stop()
            case Control.RESTART:
                if self.phase is Phase.FAILED:
                    self._stop_children(Phase.RESTARTING)
            case Control.CHILDREN_GONE:
                self._children_gone()
            case _:
                self._receive(entry)
                return type(entry.message).__name__
        return str(entry.value)

    def _receive(self, envelope: Any) -> None:
        if self.actor is None or (isinstance(envelope, TimedMessage) and envelope.cancelled):
            return
        reply_to = envelope.reply_to
        try:
            answer = self.actor._handle_receive(envelope.message)  # noqa: SLF001 - as pykka's loop
        except BaseException as error:  # noqa: BLE001 - it ends this actor's turn, and nothing else
            if reply_to is not None and isinstance(error, Exception):
                reply_to.set_exception(error)
                return
            if reply_to is not None:
                reply_to.set_exception(pykka.ActorDeadError(f"{self.ref} raised {error!r}"))
            self._failed(error, type(envelope.message).__name__)
        else:
            if reply_to is not None:
                reply_to.set(answer)

    def _place(self, actor: PooledActor) -> None:
        actor.system = self.system
        actor.parent = self.parent.ref if self.parent is not None else None
        actor._actor_ref = self.ref  # noqa: SLF001 - the two are one
        actor.actor_urn = self.path
        actor.actor_inbox = self._inbox
        actor.actor_stopped = self.ref.actor_stopped

    def _start(self) -> None:
        actor = self.actor
        if actor is None:
            return
        self.phase = Phase.RUNNING
        self._inbox.pause(paused=False)
        try:
            actor.on_start()
            if self._reason is not None:
                actor.on_restart(self._reason)
        except BaseException as error:  # noqa: BLE001 - as in _receive
            self._failed(error, "on_start", starting=True)
        else:
            self._reason = None

    def _restart(self) -> None:
        try:
            actor = self._actor_class(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - as in _receive
            self._failed(error, "__init__", starting=True)
            return
        self._place(actor)
        self.actor = actor
        self._start()
        log.info("actor_restarted", actor=self.path, running=self.phase is Phase.RUNNING)

    def _failed(self, error: BaseException, during: str, *, starting: bool = False) -> None:
        log.error("actor_failed", actor=self.path, message_type=during, exc_info=error)
        if self.phase is Phase.DEAD:  # abandoned, while it was stuck
            return
        self.phase = Phase.FAILED
        self._inbox.pause(paused=True)
        self._reason = error
        self._cancel_timers()
        actor, self.actor = self.actor, None
        if actor is not None:
            self._call_hook("on_failure", actor.on_failure, type(error), error, error.__traceback__)
        now_s = self.system.clock.now()
        self._failures_s = self._supervision.recent([*self._failures_s, now_s], now_s)
        rest_s = self._supervision.rest_s(len(self._failures_s))
        # A message that fails is gone, but a start that fails would fail for ever.
        if rest_s is None or (starting and self._stop_requested):
            failures = len(self._failures_s)
            log.error("actor_gave_up", actor=self.path, failures=failures, exc_info=error)
            self._begin_stop()
            return
        restart = partial(self._inbox.put_control, Control.RESTART)
        if rest_s > 0 and not self._stop_requested:
            self.system.timers.call_after(rest_s, restart)
        else:
            restart()

    def _begin_stop(self) -> None:
        self._cancel_timers()
        self._refuse_messages()
        self._stop_children(Phase.STOPPING)

    def _stop_children(self, phase: Phase) -> None:
        with self.system.lock:
            self.phase = phase
            children = list(self.children)
        for child in children:
            child.stop()
        if not children:
            self._children_gone()

    def _children_gone(self) -> None:
        if self.phase is Phase.RESTARTING:
            self._restart()
        elif self.phase is Phase.STOPPING:
            self._end()

    def _end(self) -> None:
        actor, self.actor = self.actor, None
        if actor is not None:
            self._call_hook("on_stop", actor.on_stop)
        self._cancel_timers()
        parent = self.parent
        with self.system.lock:
            self.phase = Phase.DEAD
            self.system.remove(self)
            parent_waits = False
            if parent is not None:
                parent.children.pop(self, None)
                waits = parent.phase in {Phase.RESTARTING, Phase.STOPPING}
                parent_waits = waits and not parent.children
        if self._dead is not None:
            self._dead.set(value=True)
        if parent is not None and parent_waits:
            parent._inbox.put_control(Control.CHILDREN_GONE)  # noqa: SLF001 - of its own class
        # The arguments often hold the ref: this breaks the circle, which only a full collection
        # would free.
        self._args, self._kwargs = (), {}

    def _cancel_timers(self) -> None:
        for timer in list(self._timers or ()):
            timer.cancel()

    def _refuse_messages(self) -> None:
        self.ref.actor_stopped.set()
        for envelope in self._inbox.close():
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception(
                    pykka.ActorDeadError(f"{self.ref} stopped before it handled the message")
                )

    def _call_hook(self, name: str, hook: Callable[..., object], *args: object) -> None:
        try:
            hook(*args)
        except BaseException:  # the end of an actor goes on regardless
            log.exception("actor_hook_failed", actor=self.path, hook=name)
