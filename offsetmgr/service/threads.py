"""Threads for reads that wait: at most so many, and for one client at most half of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from offsetmgr.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.service.access import Requester

_T = TypeVar("_T")


class ReadThreads:
    """Runs blocking reads for the event loop.

    A read whose caller hung up keeps its place until its thread is done, as the thread does.
    """

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._share = max(1, limit // 2)
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()
        """Of each client with a read that waits or is under way."""

    async def run(self, by: Requester, read: Callable[[], _T]) -> _T:
        """Return what ``read`` returns, in a thread, once there is a place for ``by``.

        Raises OverloadedError if the process cannot start another thread.
        """
        share = self._shares.setdefault(by.who, asyncio.Semaphore(self._share))
        async with AsyncExitStack() as places:
            for places_of in (share, self._places):
                await places.enter_async_context(places_of)
            try:
                done = asyncio.get_running_loop().run_in_executor(_DaemonThreads(), read)
            except RuntimeError:
                text = "the process of the service can start no more threads; try again later"
                raise OverloadedError(text) from None
            places.pop_all()

        def leave(done: asyncio.Future[_T]) -> None:
            done.exception()  # looked at, also if the caller has hung up
            share.release()
            self._places.release()

        done.add_done_callback(leave)
        return await asyncio.shield(done)


class _DaemonThreads(Executor):
    """Starts a thread for each call; a call that hangs does not delay the end of the process."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **named: Any) -> Future[_T]:
        future: Future[_T] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **named))
            except BaseException as error:  # noqa: BLE001 -- it is raised to the caller
                future.set_exception(error)

        threading.Thread(target=work, name="offsetmgr-read", daemon=True).start()
        return future
