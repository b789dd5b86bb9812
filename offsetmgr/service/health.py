"""Whether the process lives and whether it is of use; names no groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from offsetmgr.service.messages import ReadyAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import Clock
    from offsetmgr.coordinator.base import Coordinator

CHECK_INTERVAL_S: Final = 5.0
"""How often Kafka is asked whether it is there."""

CHECK_TIMEOUT_S: Final = 4.0

READY_WINDOW_S: Final = 15.0
"""An answer counts this long: one lost packet makes nothing unready."""

log = structlog.get_logger("offsetmgr.health")


class Health:
    """Asks Kafka now and then.

    A group that fails makes nothing unready: its peers are fine.  A group that was lost to another
    service does: two services run where one should, and somebody has to stop one.
    """

    def __init__(
        self, coordinator: Coordinator, clock: Clock, draining: Callable[[], bool]
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._draining = draining
        self._answered_s: float | None = None
        self._trouble = "has not answered yet"

    def ready(self) -> ReadyAnswer:
        """What /readyz answers."""
        fresh = (
            self._answered_s is not None and self._clock.now() - self._answered_s <= READY_WINDOW_S
        )
        draining, fenced = self._draining(), self._coordinator.fence.fenced
        ready = fresh and not draining and not fenced
        return ReadyAnswer(ready, draining, "ok" if fresh else self._trouble, fenced)

    async def check(self) -> None:
        """Ask once."""
        failure = await self._coordinator.check(CHECK_TIMEOUT_S)
        if failure is None:
            if self._trouble:
                log.info("kafka_reachable")
            self._answered_s, self._trouble = self._clock.now(), ""
            return
        trouble = f"{failure.detail or failure.info.hint} ({failure.info.name})"
        if trouble != self._trouble:
            log.warning("kafka_unreachable", error=trouble, code=failure.info.name)
        self._trouble = trouble

    async def watch(self) -> None:
        """Ask for ever."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)
