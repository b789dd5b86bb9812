"""Threads for reads that wait: at most so many, and for one client at most half of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from offsetmgr.errors import OverloadedError
from offsetmgr.workers import Question

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
            question = Question(read)
            if question.error is not None:
                raise OverloadedError(str(question.error))
            done = asyncio.wrap_future(question.answer)
            places.pop_all()

        def leave(done: asyncio.Future[_T]) -> None:
            done.exception()  # looked at, also if the caller has hung up
            share.release()
            self._places.release()

        done.add_done_callback(leave)
        return await asyncio.shield(done)
