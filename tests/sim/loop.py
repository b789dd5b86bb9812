"""The event loop of a simulated process: its callbacks are steps of the schedule, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from actors.timers import TimerHandle
    from tests.sim.processes import Process

_T = TypeVar("_T")


class Loop:
    """The part of an event loop that asyncio and its libraries use."""

    path = "loop"

    def __init__(self, process: Process) -> None:
        self.process = process
        self._loop = cast("asyncio.AbstractEventLoop", self)
        self._ready: deque[asyncio.Handle] = deque()
        self._scheduled = False
        self._timers: dict[int, TimerHandle] = {}
        """By the identity of asyncio's handle: those of one call at one moment are equal."""
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set has the order of addresses
        self.trouble: list[str] = []
        """Exceptions of callbacks and of tasks that nobody awaits."""
        self.stopped = False
        """True if its owner has ended it."""
        process.on_kill.append(self._dispose)

    def run(self, budget: int) -> str | None:
        del budget
        self._scheduled = False
        handle = self._ready.popleft()
        asyncio._set_running_loop(self._loop)
        try:
            if not handle.cancelled():
                handle._run()
        finally:
            asyncio._set_running_loop(None)
            self._wake()
        return "Callback"

    def _wake(self) -> None:
        if self._ready and not self._scheduled:
            self._scheduled = True
            self.process.dispatcher.schedule(self)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        self._wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)

        def due() -> None:
            del self._timers[id(handle)]
            self._ready.append(handle)
            self._wake()

        delay_s = max(0.0, when - self.time())
        self._timers[id(handle)] = self.process.timers.call_after(delay_s, due)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        timer = self._timers.pop(id(handle), None)
        if timer is not None:
            timer.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[_T]:
        del context
        task = asyncio.Task(coro, loop=self._loop, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        del executor
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def stop(self) -> None:
        self.stopped = True

    def time(self) -> float:
        return self.process.clock.now()

    def get_task_factory(self) -> None:
        """Ask for one: there is none."""

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self.process.dead

    def is_running(self) -> bool:
        return not self.process.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.process.dead:
            self.trouble.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _dispose(self) -> None:
        """Unwind what the killed process was at, where it can have no effect any more."""
        for task in list(self._tasks):
            task.cancel()
        while self._ready:
            self.run(1)
