"""Actors that share a pool of threads, unlike ``pykka.ThreadingActor``, which has one of its own.

``PooledActor`` fills in pykka's hooks for new kinds of actors.  Its inbox, the ``ActorLoop``, has
it handle messages in turns on the pool.  After a failure it pauses, then goes on with the same
actor, whose ``on_restart`` repairs its state.  The ``ActorSystem`` keeps them all.

    STARTING ──► RUNNING ──────────► DEAD
                  │  ▲
          failure ▼  │ back-off over: on_restart
                 FAILED

Locks are re-entrant: a signal handler may call an actor in the middle of another call.
"""

from __future__ import annotations

import enum
import math
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pykka

from actors.dispatcher import Dispatcher, PoolDispatcher, Strand, TurnQueue
from actors.future import Future
from actors.logs import report
from actors.timers import Clock, MonotonicClock, ThreadTimers, TimerHandle, Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

A = TypeVar("A", bound="PooledActor")
T = TypeVar("T")

_BACKOFF_S: Final = 0.1
"""Pause before the restart after a first failure; it doubles with each further one."""

_BACKOFF_MAX_S: Final = 5.0
_MOST_DOUBLINGS: Final = 10

_FORGOTTEN_S: Final = 60.0
"""Time without a failure after which the next one counts as the first."""


_NO_ENTRIES: Final = cast("deque[Any]", ())


class InboxFullError(RuntimeError):
    """The inbox of an actor is full."""

    def __init__(self, actor: str, limit: int) -> None:
        super().__init__(
            f"the inbox of actor {actor} is full: inbox_limit={limit} messages wait. "
            "The actor is slower than its senders: send less, or spawn it with a higher inbox_limit"
        )


class Control(enum.Enum):
    """An entry of the inbox for the loop, not for the actor."""

    START = "Start"
    """Also after a failure."""
    STOP = "Stop"


class TimedMessage:
    """The message of a timer, which is its own envelope; ignored once it is cancelled."""

    __slots__ = ("cancelled", "message", "timer")

    reply_to = None

    def __init__(self, message: object) -> None:
        self.message = message
        self.cancelled = False
        self.timer: TimerHandle | None = None

    def cancel(self) -> None:
        """Drop it, even if it waits in the inbox already."""
        self.cancelled = True
        if self.timer is not None:
            self.timer.cancel()


class LoopPhase(enum.Enum):
    STARTING = enum.auto()
    RUNNING = enum.auto()
    FAILED = enum.auto()  # waits for its restart; messages wait
    DEAD = enum.auto()


class ActorLoop:
    """Runs one actor in turns, and is its inbox: its start, messages, restarts and end.

    Messages are handled in order of arrival while the actor is RUNNING.  The first one schedules
    the actor's turn; there is one at a time.
    """

    system: ActorSystem
    actor: PooledActor
    path: str

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Most actors of a large system have no message for most of their life: no deque for them.
        self._entries = _NO_ENTRIES
        # Due from the beginning: an actor that nobody has scheduled can be stopped.
        self._start_due = True
        self._closed = False
        self._scheduled = self._in_turn = False
        self.phase = LoopPhase.STARTING
        self._failures = 0
        self._failed_s = -math.inf
        self._reason: BaseException | None = None
        self._stop_requested = False
        self._timed: TimedMessage | None = None
        self._dead: Future[bool] | None = None

    def bind(
        self, system: ActorSystem, actor: PooledActor, name: str, queue: TurnQueue, limit: int
    ) -> None:
        """Take the actor, whose turns are in ``queue``; at most ``limit`` messages wait."""
        self.system = system
        self.actor = actor
        self.path = f"/{name}"
        self._queue = queue
        self._limit = limit
        actor.system = system
        actor.actor_urn = actor.actor_ref.actor_urn = self.path

    # From any thread.

    def put(self, envelope: Any, /) -> None:
        """Add a message.  Raises pykka.ActorDeadError, InboxFullError."""
        with self._lock:
            # Behind a stop only a caller that awaits its answer would learn that it is dropped.
            if self._closed or (self._stop_requested and envelope.reply_to is None):
                raise pykka.ActorDeadError(f"{self.path} is stopped and takes no messages")
            if len(self._entries) >= self._limit:
                raise InboxFullError(self.path, self._limit)
            self.put_over_limit(envelope)

    def put_over_limit(self, entry: Any) -> None:
        """Add an entry even if the inbox is full; ignored once it is closed."""
        with self._lock:
            if self._closed:
                return
            if self._entries is _NO_ENTRIES:
                entries: deque[Any] = deque()
                if self._entries is _NO_ENTRIES:  # no signal handler has put an entry meanwhile
                    self._entries = entries
            self._entries.append(entry)
            self._schedule()

    def start(self) -> None:
        """Let the actor start, or go on after a failure, before it handles a message."""
        with self._lock:
            self._start_due = True
            self._schedule()

    def stop(self) -> None:
        """Ask the actor to stop after what is in its inbox now; twice is harmless."""
        with self._lock:
            if self._stop_requested or self.phase is LoopPhase.DEAD:
                return
            # In this order a Ctrl-C may cost a second stop, but never the only one.
            self.put_over_limit(Control.STOP)
            self._stop_requested = True
        if self.phase is LoopPhase.FAILED:
            self.start()  # a stop does not wait for the back-off

    def when_dead(self) -> Future[bool]:
        """Return a future: True once the actor is dead, False if it is dead already."""
        dead: Future[bool] = Future()
        with self.system.lock:
            if self.phase is not LoopPhase.DEAD:
                self._dead = self._dead or dead
                return self._dead
        dead.set(value=False)
        return dead

    def abandon(self) -> None:
        """Give up an actor that did not stop in time: answer all callers, now and later."""
        self.when_dead().set(value=False)
        self.phase = LoopPhase.DEAD
        self._refuse_messages()

    def empty(self) -> bool:
        return not self._entries and not self._start_due

    def __len__(self) -> int:
        return len(self._entries)

    def _schedule(self) -> None:
        due = self._start_due or (self._entries and self.phase is LoopPhase.RUNNING)
        if due and not self._scheduled:
            self._queue.schedule(self)
            self._scheduled = True

    # In the actor's own turn.

    def set_timer(self, delay_s: float, message: object) -> None:
        self._cancel_timer()
        self._timed = timed = TimedMessage(message)
        put = partial(self.put_over_limit, timed)
        timed.timer = self.system.timers.call_after(delay_s, put)

    def run(self, budget: int) -> str | None:
        """Handle at most ``budget`` entries of the inbox; return the name of the last."""
        with self._lock:
            if self._in_turn:  # that turn handles what is here
                return None
            self._in_turn = self._scheduled = True
        handled: str | None = None
        try:
            for _ in range(budget):
                entry = self.get()
                if entry is None or self.phase is LoopPhase.DEAD:
                    break
                handled = self._handle(entry)
        finally:
            with self._lock:
                self._in_turn = self._scheduled = False
                if self._entries or self._start_due:
                    self._schedule()
        return handled

    def get(self) -> Any:
        """Return the next entry to handle, or None."""
        with self._lock:
            if self._start_due:
                self._start_due = False
                return Control.START
            if self._entries and self.phase is LoopPhase.RUNNING:
                return self._entries.popleft()
        return None

    def _handle(self, entry: Any) -> str:
        if isinstance(entry, Control):
            if entry is Control.STOP:
                self._end()
            elif self.phase is not LoopPhase.RUNNING:
                self._start()
            return str(entry.value)
        name, reply_to = type(entry.message).__name__, entry.reply_to
        if isinstance(entry, TimedMessage) and entry.cancelled:
            return name
        try:
            answer = self.actor._handle_receive(entry.message)  # noqa: SLF001 - as pykka's loop
        except BaseException as error:  # noqa: BLE001 - it ends this actor's turn, and nothing else
            if reply_to is not None:
                reply_to.set_exception(error)
            if reply_to is None or not isinstance(error, Exception):
                self._failed(error, name)
        else:
            if reply_to is not None:
                reply_to.set(answer)
        return name

    def _start(self) -> None:
        reason = self._reason
        self.phase = LoopPhase.RUNNING
        try:
            if reason is None:
                self.actor.on_start()
            else:
                self.actor.on_restart(reason)
        except BaseException as error:  # noqa: BLE001 - as in _handle
            self._failed(error, "on_start" if reason is None else "on_restart", starting=True)
        else:
            self._reason = None

    def _failed(self, error: BaseException, during: str, *, starting: bool = False) -> None:
        report("actor %s failed at %s", self.path, during, error=error)
        if self.phase is LoopPhase.DEAD:  # abandoned, while it was stuck
            return
        self.phase = LoopPhase.FAILED
        self._reason = error
        self._cancel_timer()
        hook = self.actor.on_failure
        self._call_hook("on_failure", hook, type(error), error, error.__traceback__)
        pause_s = self._pause_s()
        if not self._stop_requested:
            self.system.timers.call_after(pause_s, self.start)
        elif starting:  # another start may fail as well, and no message is lost by it
            self._end()
        else:
            self.start()

    def _pause_s(self) -> float:
        """Count a failure; return the seconds until the restart."""
        now_s = self.system.clock.now()
        if now_s - self._failed_s >= _FORGOTTEN_S:
            self._failures = 0
        self._failed_s = now_s
        doublings = min(self._failures, _MOST_DOUBLINGS)
        self._failures += 1
        return min(_BACKOFF_S * 2.0**doublings, _BACKOFF_MAX_S)

    def _end(self) -> None:
        self._refuse_messages()
        self._call_hook("on_stop", self.actor.on_stop)
        self._cancel_timer()
        with self.system.lock:
            self.phase = LoopPhase.DEAD
            self.system.remove(self)
        if self._dead is not None:
            self._dead.set(value=True)

    def _cancel_timer(self) -> None:
        timed, self._timed = self._timed, None
        if timed is not None:
            timed.cancel()

    def _refuse_messages(self) -> None:
        ref = self.actor.actor_ref
        ref.actor_stopped.set()
        with self._lock:
            self._closed = True
            left, self._entries = list(self._entries), _NO_ENTRIES
        for entry in left:
            if not isinstance(entry, Control) and entry.reply_to is not None:
                text = f"{ref} stopped before it handled the message"
                entry.reply_to.set_exception(pykka.ActorDeadError(text))

    def _call_hook(self, name: str, hook: Callable[..., object], *args: object) -> None:
        try:
            hook(*args)
        except BaseException as error:  # noqa: BLE001 - the end of an actor goes on regardless
            report("%s of actor %s failed", name, self.path, error=error)


class _StopFlag:
    """Replaces pykka's ``threading.Event``, which takes more memory than the rest of an actor."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class ActorRef(pykka.ActorRef[A]):
    """A pykka ``ActorRef`` with sends that do not raise, and stops that can be awaited.

    ``actor_urn`` is its name, which is not a key: one that stopped may be followed by another.
    """

    actor_inbox: ActorLoop

    def try_tell(self, message: Any) -> bool:
        """Send a message; False when the actor is stopped or its inbox full."""
        try:
            self.tell(message)
        except (pykka.ActorDeadError, InboxFullError):
            return False
        return True

    def tell_due(self, message: object) -> None:
        """Put a message that is due into the inbox, full or not; drop it if the actor is dead."""
        self.actor_inbox.put_over_limit(TimedMessage(message))

    def stop(self, *, block: bool = True, timeout: float | None = None) -> Any:
        """Stop the actor after the messages that wait now.

        Return True, or a future of it, once the actor is dead; False if it was dead before.
        Raises pykka.Timeout; the stop goes on.
        """
        loop = self.actor_inbox
        dead = loop.when_dead()
        loop.stop()
        return loop.system.wait(dead, timeout) if block else dead


class PooledActor(pykka.Actor):
    """A pykka actor without a thread of its own.

    It is started by ``ActorSystem.spawn``, and handles one message at a time in ``on_receive``.
    Its constructor runs in the thread that spawns it, all other methods in the pool.  None may
    block: a blocked actor takes a thread from the others.

    An exception from ``on_receive`` or ``on_start`` is a failure: its timer is cancelled and
    ``on_failure`` is called.  After a back-off ``on_restart`` is called on the same actor, to
    repair its state; the waiting messages stay, the failed message is dropped.
    """

    actor_inbox: ActorLoop
    system: ActorSystem
    """Its clock and timers; known from ``on_start`` on."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()
        self.actor_stopped = _StopFlag()  # type: ignore[assignment]
        self._actor_ref: ActorRef[Any] = ActorRef(self)

    @property
    def actor_ref(self) -> ActorRef[Self]:
        """The reference to this actor."""
        return self._actor_ref

    def tell_after(self, delay_s: float, message: Any) -> None:
        """Send itself ``message`` in ``delay_s`` seconds, unless it fails or stops before.

        It replaces the message of an earlier call that is not handled yet.
        """
        self.actor_inbox.set_timer(delay_s, message)

    def on_restart(self, reason: BaseException) -> None:
        """Go on after the failure ``reason``; by default this calls ``on_start``.

        An exception in it is another failure.
        """
        del reason
        self.on_start()

    def stop(self) -> None:
        """Stop after the messages that wait now."""
        self.actor_inbox.stop()

    @staticmethod
    def _create_actor_inbox() -> ActorLoop:
        return ActorLoop()

    @staticmethod
    def _create_future() -> Future[Any]:
        return Future()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.start()


class ActorSystem:
    """Runs any number of actors on a fixed number of threads; one system per process is enough.

    ``threads`` run the actors, ``throughput`` messages each turn; one more thread serves the
    timers.  All are daemons.  As a context manager it stops on leaving.  The ``clock`` must move by
    itself, as the timers' thread sleeps by it; a simulation passes its own ``dispatcher`` and
    ``timers``.
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
        # Re-entrant, as a signal handler may stop actors in the middle of a spawn.
        self.lock = threading.RLock()
        self._empty = threading.Condition(self.lock)
        # Pykka's registry is a list: the stop of one actor would take a search through all.  A dict
        # keeps the order: a simulation must stop actors in the same order each time.
        self._loops: dict[ActorLoop, None] = {}
        self._stopping = False

    def spawn(
        self,
        actor_class: type[A],
        *args: Any,
        name: str,
        strand: Strand | None = None,
        inbox_limit: int = 10_000,
        **kwargs: Any,
    ) -> ActorRef[A]:
        """Construct an actor in this thread and let the dispatcher start it.

        ``args`` and ``kwargs`` go to the constructor.  An actor never runs at the same time as
        another one of its ``strand``.

        Raises pykka.ActorDeadError if the system is stopping; and what the constructor raised.
        """
        actor = actor_class(*args, **kwargs)
        self.start(actor, name=name, strand=strand, inbox_limit=inbox_limit)
        return actor.actor_ref

    def start(
        self,
        actor: PooledActor,
        *,
        name: str,
        strand: Strand | None = None,
        inbox_limit: int = 10_000,
    ) -> None:
        """Let the dispatcher start a constructed actor; see ``spawn``."""
        loop = actor.actor_inbox
        loop.bind(self, actor, name, self.dispatcher if strand is None else strand, inbox_limit)
        with self.lock:
            if self._stopping:
                text = f"actor system {self.name!r} is stopping: it does not start {loop.path}"
                raise pykka.ActorDeadError(text)
            self._loops[loop] = None
        actor._start_actor_loop()  # noqa: SLF001 - what pykka's start does

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
        """Stop all actors, then the timers and the threads.

        At the deadline it gives up the actors that are left: their callers are answered, and
        their threads, daemons, end with the turn.  Twice is harmless.  An actor must not call it,
        as it would wait for itself.  Return True if everything was done by the deadline.
        """
        deadline_s = self.clock.now() + timeout_s
        with self.lock:
            self._stopping = True
            loops = list(self._loops)
        for loop in loops:
            loop.stop()
        self._let_end(timeout_s)
        timers_done = self.timers.close(max(0.0, deadline_s - self.clock.now()))
        threads_done = self.dispatcher.stop(max(0.0, deadline_s - self.clock.now()))
        with self.lock:
            left = list(self._loops)
        for loop in left:
            loop.abandon()
        if left:
            text = "%d actors of system %r did not stop in time, such as %s"
            report(text, len(left), self.name, left[0].path)
        return not left and timers_done and threads_done

    def _let_end(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` seconds until all actors are dead."""
        with self.lock:
            self._empty.wait_for(lambda: not self._loops, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()
