"""Threads of a simulated process: one runs at a time, and the schedule says which and when.

The client is written with threads, locks and a clock of the standard library; inside of
``simulated_time()`` its modules find these in their place, so that the client runs as it is.
A thread goes on until it would wait; that wait is a step of the simulation.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest import mock

from actors.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors import Clock
    from actors.future import Future
    from tests.sim.processes import Process

_T = TypeVar("_T")

WALL_S: Final = 1_700_000_000.0
"""The wall clock's time at the start of a simulation."""


class BlockedError(AssertionError):
    """Something waits that must never wait: the simulation's own thread, which has no peer."""


class _KilledError(BaseException):
    """Unwinds a thread whose process was killed."""


class _Scheduler:
    """The turn of the threads; one for all simulations, as they run one after the other."""

    def __init__(self) -> None:
        self.process: Process | None = None
        """The process that the simulation's own thread acts for."""
        self.current: SimThread | None = None
        self.back = _taken_lock()
        self.rng = random.Random()  # noqa: S311 -- to be replayed
        self.clock: Clock = ManualClock()
        self.wall_skew_s = 0.0

    def now(self) -> float:
        return self.clock.now()


def _taken_lock() -> threading.Lock:
    """Passes the turn from one thread to another: the one waits for it, the other gives it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


_turn = _Scheduler()


class SimThread:
    """In the place of ``threading.Thread``."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool = True) -> None:
        del daemon
        self._process = _process()
        self._target = target
        self.path = name
        self.done = False
        self.error: BaseException | None = None
        self._scheduled = False
        self._go = _taken_lock()
        self._ended = SimEvent()

    def start(self) -> None:
        self._process.on_kill.append(self._unwind)
        threading.Thread(target=self._main, name=self.path, daemon=True).start()
        self.wake()

    def wake(self) -> None:
        """Have a turn soon, if it does not have one already."""
        if not self._scheduled and not self.done:
            self._scheduled = True
            self._process.dispatcher.schedule(self)

    def run(self, budget: int) -> str | None:
        del budget
        self._scheduled = False
        if self.done:
            return None
        before, _turn.current = _turn.current, self
        self._go.release()
        _turn.back.acquire()
        _turn.current = before
        return "Turn"

    def pause(self, timeout_s: float | None) -> None:
        """Wait to be woken, at most ``timeout_s``; by the thread itself."""
        timer = None
        if timeout_s is not None:
            timer = self._process.timers.call_after(max(0.0, timeout_s), self.wake)
        _turn.back.release()
        self._go.acquire()
        if timer is not None:
            timer.cancel()
        if self._process.dead:
            raise _KilledError

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self.done

    @property
    def process(self) -> Process:
        return self._process

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self._process.dead:
                self._target()
        except _KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 -- told by the judge
            self.error = error
        finally:
            self.done = True
            if not self._process.dead:
                self._process.on_kill.remove(self._unwind)
                self._ended.set()
            _turn.back.release()

    def _unwind(self) -> None:
        self.run(1)


def _process() -> Process:
    process = _turn.process if _turn.current is None else _turn.current.process
    assert process is not None, "threads are started for a process"
    return process


class SimLock:
    """In the place of ``threading.Lock`` and ``RLock``."""

    def __init__(self) -> None:
        self._owner: object = None
        self._count = 0
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        me: object = _turn.current or _turn
        if _turn.current is not None and _turn.current.process.dead:
            return True  # it unwinds
        deadline = None if timeout < 0 else _turn.now() + timeout
        while self._owner is not None and self._owner is not me:
            if not blocking or (deadline is not None and _turn.now() >= deadline):
                return False
            self._wait(None if deadline is None else deadline - _turn.now())
        self._owner = me
        self._count += 1
        return True

    def _wait(self, timeout_s: float | None) -> None:
        thread = _turn.current
        if thread is None:
            raise BlockedError("a call that never waits would wait for a lock of the client")
        self._waiting.append(thread)
        try:
            thread.pause(timeout_s)
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)

    def release(self) -> None:
        self._count -= 1
        if self._count <= 0:
            self._owner = None
            if self._waiting:
                self._waiting.popleft().wake()

    def release_all(self) -> int:
        """Give it back however often it was taken; how often that was."""
        count, self._count = self._count, 1
        self.release()
        return count

    def restore(self, count: int) -> None:
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimCondition:
    """In the place of ``threading.Condition``."""

    def __init__(self, lock: SimLock | None = None) -> None:
        self._lock = SimLock() if lock is None else lock
        self._waiting: list[SimThread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        thread = _turn.current
        if thread is None:
            raise BlockedError("a call that never waits would wait for a thread of the client")
        count = self._lock.release_all()
        self._waiting.append(thread)
        deadline = None if timeout is None else _turn.now() + timeout
        try:
            while thread in self._waiting and (deadline is None or _turn.now() < deadline):
                thread.pause(None if deadline is None else deadline - _turn.now())
            return thread not in self._waiting
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)
            if not thread.process.dead:
                self._lock.restore(count)

    def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
        deadline = None if timeout is None else _turn.now() + timeout
        while not (found := predicate()):
            if deadline is not None and _turn.now() >= deadline:
                break
            self.wait(None if deadline is None else deadline - _turn.now())
        return found

    def notify(self, n: int = 1) -> None:
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for thread in woken:
            thread.wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimEvent:
    """In the place of ``threading.Event``."""

    def __init__(self) -> None:
        self._condition = SimCondition()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            return self._condition.wait_for(self.is_set, timeout)


_SIMULATED: Final = (
    "offsetmgr.client.",
    *(f"offsetmgr.{name}" for name in ("backoff", "deadlines", "mailboxes", "repeats", "workers")),
)
"""Modules that find the simulation's threads, clock and randomness."""


class _Threading:
    """In the place of the module ``threading``."""

    Lock = RLock = SimLock
    Condition = SimCondition
    Event = SimEvent
    Thread = SimThread
    TIMEOUT_MAX = threading.TIMEOUT_MAX

    @staticmethod
    def current_thread() -> object:
        return _turn.current

    @staticmethod
    def get_ident() -> int:
        return id(_turn.current)


class _Time:
    """In the place of the module ``time``."""

    @staticmethod
    def monotonic() -> float:
        return _turn.now()

    @staticmethod
    def sleep(seconds: float) -> None:
        assert _turn.current is not None, "only threads of the client may sleep"
        _turn.current.pause(seconds)

    @staticmethod
    def time_ns() -> int:
        return int(wall_s() * 1e9)


class _Random:
    """In the place of the module ``random``."""

    @staticmethod
    def Random() -> random.Random:  # noqa: N802 -- the name that the client calls
        return random.Random(_turn.rng.getrandbits(32))  # noqa: S311


def wall_s() -> float:
    return WALL_S + _turn.now() + _turn.wall_skew_s


def jump_wall(seconds: float) -> None:
    _turn.wall_skew_s += seconds


class _Failures(logging.Filter):
    """Keeps what threads of the client have raised, in place of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _KilledError):
            self.errors.append(error)
        return False


@contextlib.contextmanager
def simulated_time(clock: Clock, rng: random.Random) -> Iterator[list[BaseException]]:
    """Let every module of the client find the simulation's threads, clock and randomness.

    Yields what the client's own threads raise, which is a fault of theirs.
    """
    _turn.clock, _turn.rng, _turn.wall_skew_s = clock, rng, 0.0
    _turn.current = _turn.process = None
    stand_ins: dict[str, Any] = {"threading": _Threading, "time": _Time, "random": _Random}
    failures, log = _Failures(), logging.getLogger("offsetmgr.workers")
    with contextlib.ExitStack() as stack:
        log.addFilter(failures)
        stack.callback(log.removeFilter, failures)
        for name in sorted(sys.modules):
            if name.startswith(_SIMULATED):
                module = sys.modules[name]
                found = {n: each for n, each in stand_ins.items() if n in vars(module)}
                if found:
                    stack.enter_context(mock.patch.multiple(module, **found))
        try:
            yield failures.errors
        finally:
            _turn.process = None


@contextlib.contextmanager
def acting_for(process: Process) -> Iterator[None]:
    """Let the simulation's own thread act for ``process``."""
    before, _turn.process = _turn.process, process
    try:
        yield
    finally:
        _turn.process = before


def current_thread() -> SimThread:
    if _turn.current is None:
        raise BlockedError("a call that never waits would wait for the network")
    return _turn.current


def wait_for_future(future: Future[_T], timeout_s: float | None) -> _T:
    """Wait in a thread of the simulation for what an actor answers."""
    thread = current_thread()
    future.add_done_callback(lambda _: thread.wake())
    deadline = None if timeout_s is None else _turn.now() + timeout_s
    while not future.done() and (deadline is None or _turn.now() < deadline):
        thread.pause(None if deadline is None else deadline - _turn.now())
    return future.get(timeout=0)
