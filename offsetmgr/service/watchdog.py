"""Tells systemd (``WatchdogSec``) that the service lives, for as long as it does.

A ping takes the way that a commit takes: from the event loop to the timers' thread, from there to
an actor, and back.  Where one of them stands still there is no ping, and systemd starts anew what
no restart of an actor could repair.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

from actors import Future, PooledActor
from offsetmgr.service.notify import notify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from actors import ActorSystem

PINGS_PER_INTERVAL: Final = 3
"""How often it pings in the time that systemd allows: one that is late harms nothing."""


def interval_s(env: Mapping[str, str]) -> float | None:
    """Seconds within which systemd wants to hear of this process; None where it does not."""
    microseconds = env.get("WATCHDOG_USEC", "")
    process = env.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdecimal() or int(microseconds) == 0 or process != str(os.getpid()):
        return None
    return int(microseconds) / 1e6


class _Pulse(PooledActor):
    """Answers."""

    def on_receive(self, message: Future[None]) -> None:
        """Nothing more than that."""
        message.set(None)


class Watchdog:
    """Asks the actor system, and passes its answer on to systemd."""

    def __init__(self, system: ActorSystem) -> None:
        self._timers = system.timers
        self._pulse = system.spawn(_Pulse, name="watchdog")

    async def ping(self) -> None:
        """Wait until all that has to live has answered, then tell systemd."""
        answer: Future[None] = Future()
        self._timers.call_after(0.0, lambda: self._pulse.try_tell(answer))
        await answer
        notify("WATCHDOG=1")

    async def watch(self, within_s: float) -> None:
        """Ping for ever, several times ``within_s``."""
        while True:
            await self.ping()
            await asyncio.sleep(within_s / PINGS_PER_INTERVAL)


@contextlib.asynccontextmanager
async def watched(system: ActorSystem) -> AsyncIterator[None]:
    """Ping while inside, where systemd wants it."""
    within_s = interval_s(os.environ)
    if within_s is None:
        yield
        return
    task = asyncio.create_task(Watchdog(system).watch(within_s), name="watchdog")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
