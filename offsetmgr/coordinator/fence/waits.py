"""Time, as the fence's event loop counts it, and waiting until then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


def now() -> float:
    """The event loop's seconds."""
    return asyncio.get_running_loop().time()


async def by(deadline_s: float, wanted: Awaitable[_T]) -> _T:
    """What ``wanted`` gives, by then; it goes on where it is late.  Raises TimeoutError."""
    future = asyncio.ensure_future(wanted)
    future.add_done_callback(_seen)
    return await asyncio.wait_for(asyncio.shield(future), max(deadline_s - now(), 0.0))


def _seen(done: asyncio.Future[Any]) -> None:
    """Look at what failed: nobody may be waiting for it any more."""
    if not done.cancelled():
        done.exception()
