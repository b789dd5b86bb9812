"""A pykka ``Future`` with callbacks, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pykka

from actors.logs import report

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

T = TypeVar("T")


class Future(pykka.Future[T]):
    """A future value or exception.

    The first ``set`` or ``set_exception`` wins and later ones are ignored, so that an answer and a
    deadline may race.  Futures derived by pykka (``map``, ``join`` and so on) are computed by
    ``get()`` and take no callback.
    """

    # A hundred thousand may exist, so pykka's own attributes are set only with a hook.
    __slots__ = (
        "_callbacks",
        "_done",
        "_exception",
        "_once",
        "_traceback",
        "_value",
    )
    _get_hook: Callable[[float | None], T] | None = None

    def __init__(self) -> None:
        # No thread waits for this lock, so that a signal handler may interrupt any method here and
        # wait for what another thread sets.
        self._once = threading.Lock()
        self._callbacks: list[Callable[[Future[T]], object]] = []
        self._done = False
        self._value: T | None = None
        self._exception: BaseException | None = None
        self._traceback: TracebackType | None = None

    def done(self) -> bool:
        return self._done

    def exception(self) -> BaseException | None:
        """Return the exception without raising it; None if there is none, or none yet."""
        return self._exception

    def get(self, *, timeout: float | None = None) -> T:
        """Wait up to ``timeout`` seconds for the value; return it or raise the exception.

        Raises pykka.Timeout.
        """
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self._done and not self._wait(timeout):
            raise pykka.Timeout(f"{timeout} seconds")
        if self._exception is not None:
            # The traceback of an exception grows each time it is raised.
            raise self._exception.with_traceback(self._traceback)
        return cast("T", self._value)

    def set(self, value: T | None = None, exception: BaseException | None = None) -> None:
        """Set the value, or an exception; ignored if the future is done already."""
        if not self._once.acquire(blocking=False):
            return
        self._value = value
        self._exception = exception
        self._traceback = exception.__traceback__ if exception is not None else None
        self._done = True
        while self._callbacks:
            with contextlib.suppress(IndexError):  # the thread that added it calls it
                self._call(self._callbacks.pop(0))

    def set_exception(  # type: ignore[override]
        self, exception: BaseException | None = None
    ) -> None:
        """Set an exception, by default the one being handled; ignored if the future is done."""
        self.set(None, exception if exception is not None else sys.exc_info()[1])

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        super().__init__()
        super().set_get_hook(func)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call ``callback(future)`` once done: in the thread that sets it, or now if it is done.

        An exception in the callback is logged; in the main thread, an exit or Ctrl-C is raised.
        """
        self._callbacks.append(callback)
        if self._done and self._remove(callback):
            self._call(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in any event loop, for a value set by any thread."""
        if not self._done:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def hand_over(_: Future[T]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_release, waiter)

            self.add_done_callback(hand_over)
            try:
                yield from waiter
            finally:
                self._remove(hand_over)
        return self.get(timeout=0)

    __iter__ = __await__

    def _wait(self, timeout: float | None) -> bool:
        woken = threading.Lock()
        woken.acquire()

        def wake(_: Future[T]) -> None:
            woken.release()

        self.add_done_callback(wake)
        try:
            left_s = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            return woken.acquire(timeout=left_s) or self._done
        finally:
            self._remove(wake)

    def _remove(self, callback: Callable[[Future[T]], object]) -> bool:
        """Remove a callback; False if it was called, or is about to be."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and not isinstance(error, Exception):  # it may be a signal's
                raise
            report("the callback %r of a future failed", callback, error=error)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
