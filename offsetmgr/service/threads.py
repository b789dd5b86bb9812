"""Threads for reads that wait: at most so many, and for one client at most half of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from offsetmgr.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.service.rights import Requester

_T = TypeVar("_T")


class ReadThreads:
    """Runs blocking reads for the event loop.

    A read whose caller hung up keeps its place until its thread is done, as the thread does.
    """

    def __init__(self, limit: int) -> None:
        self.running = 0
        self._limit = limit
        self._share = max(1, limit // 2)
        self._by: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def run(self, by: Requester, read: Callable[[], _T]) -> _T:
        """Return what ``read`` returns, in a thread, once there is a place for ``by``.

        Raises OverloadedError if the process cannot start another thread.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((by.who, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()
            else:
                self._leave(by.who)
            raise
        try:
            done = loop.run_in_executor(_DaemonThreads(), read)
        except RuntimeError:
            self._leave(by.who)
            text = "the process of the service can start no more threads; try again later"
            raise OverloadedError(text) from None
        done.add_done_callback(partial(self._ended, by.who))
        return await asyncio.shield(done)

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            who, turn = waiting
            if turn.cancelled():
                self._waiting.remove(waiting)
            elif self.running < self._limit and self._by[who] < self._share:
                self._waiting.remove(waiting)
                self.running += 1
                self._by[who] += 1
                turn.set_result(None)

    def _leave(self, who: str) -> None:
        self.running -= 1
        self._by[who] -= 1
        if not self._by[who]:
            del self._by[who]
        self._admit()

    def _ended(self, who: str, done: asyncio.Future[Any]) -> None:
        done.exception()  # looked at, also if the caller has hung up
        self._leave(who)


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
