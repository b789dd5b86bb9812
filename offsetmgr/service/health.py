"""Health: the service is ready while Kafka answers it; systemd is told how it stands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from actors import ActorSystem, Clock, Future, PooledActor
from offsetmgr.http.answers import json_response
from offsetmgr.kafka.errors import cause_of
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.service.access import no_names
from offsetmgr.service.messages import LiveAnswer, ReadyAnswer
from offsetmgr.service.openapi import operation
from offsetmgr.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.errors import OffsetManagerError

CHECK_INTERVAL_S: Final = 5.0

CHECK_TIMEOUT_S: Final = 4.0

READY_WINDOW_S: Final = 15.0
"""An answer counts this long: one lost packet makes nothing unready."""

PINGS_PER_INTERVAL: Final = 3
"""In the time that systemd allows: one that is late harms nothing."""

log = SafeLogger("offsetmgr.health")


@dataclass(eq=False)
class Health:
    """Asks Kafka now and then.

    A group that fails makes nothing unready: its peers are fine.  A group that was lost to another
    service does: two services run where one should, and somebody has to stop one.  So does a watch
    that fails for all groups.
    """

    coordinator: Coordinator
    clock: Clock
    draining: Callable[[], bool]
    watch_trouble: Callable[[], str]
    reload_error: OffsetManagerError | None = field(init=False, default=None)
    """Why the last reload of the settings was refused; None if it was not."""
    _answered_s: float | None = field(init=False, default=None)
    _trouble: str = field(init=False, default="not asked yet")
    _repeats: RepeatLimiter = field(init=False, default_factory=RepeatLimiter)

    @operation("GET", "/livez", answer=LiveAnswer, needs=no_names)
    async def live(self, *_: object) -> LiveAnswer:
        """Liveness: the process is running."""
        return LiveAnswer(live=True)

    @operation("GET", "/readyz", answer=ReadyAnswer, needs=no_names, others={503: ReadyAnswer})
    async def ready(self, *_: object) -> Response:
        """Readiness: 503 if Kafka is silent, a group is lost, the watch fails or all stops."""
        state = self.state()
        status = HTTPStatus.OK if state.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(state, status)

    def state(self) -> ReadyAnswer:
        fresh = (
            self._answered_s is not None and self.clock.now() - self._answered_s <= READY_WINDOW_S
        )
        draining, fenced = self.draining(), self.coordinator.fence.fenced
        watch = self.watch_trouble()
        ready = fresh and not draining and not fenced and not watch
        kafka = "ok" if fresh else self._trouble or "no answer in time"
        return ReadyAnswer(ready, draining, kafka, fenced, self.reload_error is not None, watch)

    async def check(self) -> None:
        failure = await self.coordinator.check(CHECK_TIMEOUT_S)
        if failure is None:
            if self._trouble:
                log.info("kafka_reachable")
            self._answered_s, self._trouble = self.clock.now(), ""
            self._repeats = RepeatLimiter()
            return
        self._trouble = f"{failure.reason} ({failure.info.name})"
        if self._repeats.suppressed(cause_of(self._trouble), self.clock.now()) is not None:
            log.warning("kafka_unreachable", error=self._trouble, code=failure.info.name)

    async def watch(self) -> None:
        while True:
            try:
                await self.check()
            except Exception as error:  # one bad check must not end the others
                self._trouble = f"it could not be asked ({error_text(error)})"
                log.exception("check_failed")
            await asyncio.sleep(CHECK_INTERVAL_S)


def notify(state: str) -> None:
    """Send ``state``, such as ``READY=1``, to systemd (``Type=notify``), if it asked for that."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    # Whoever listens there may be gone; that must not end the service.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.setblocking(False)  # noqa: FBT003 -- the library's parameter
        sock.sendto(state.encode(), address)


class _Echo(PooledActor):
    def on_receive(self, message: Future[None]) -> None:
        message.set(None)


async def watchdog(system: ActorSystem) -> None:
    """Tell systemd (``WatchdogSec``) again and again that the service lives, if it asked for that.

    A ping goes from the event loop to the timers' thread, from there to an actor, and back, as a
    commit does.  Where one of them hangs, there is no ping, and systemd restarts the service.
    """
    interval_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 / PINGS_PER_INTERVAL
    if not interval_s or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    echo = system.spawn(_Echo, name="watchdog")
    while True:
        answer = Future[None]()
        system.timers.call_after(0.0, partial(echo.try_tell, answer))
        await answer
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
