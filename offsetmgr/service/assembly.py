"""Puts the service together from its parts, around any coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Final

import structlog

from offsetmgr.manager import Factory
from offsetmgr.service.core import OffsetService
from offsetmgr.service.events import EventHub
from offsetmgr.service.failure_log import FailureLog
from offsetmgr.service.gate import Gate
from offsetmgr.service.health import Health
from offsetmgr.service.http import Api, application
from offsetmgr.service.metrics import Metrics, Source
from offsetmgr.service.observers import Reporter
from offsetmgr.service.reads import Reads
from offsetmgr.service.sessions import Registry
from offsetmgr.service.validate import Decoder
from offsetmgr.service.version import version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from random import Random

    from actors import ActorSystem
    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.service.core import Answer
    from offsetmgr.service.settings import Settings

SWEEP_INTERVAL_S: Final = 1.0
"""How often lapsed leases are looked for."""

log = structlog.get_logger("offsetmgr.service")


class Assembly:
    """The service's parts; ``app`` is what an ASGI server serves."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        system: ActorSystem,
        *,
        wall: Callable[[], float],
        rng: Random | None = None,
        dropped_logs: Callable[[], int] = lambda: 0,
    ) -> None:
        """``wall`` is the wall clock, for what people and other machines see."""
        limits = settings.limits
        self.instance = uuid.uuid4().hex
        self.metrics = Metrics(settings.cluster_name, version())
        self.hub = EventHub(
            lambda: self.factory,
            lambda: self.service,
            streams=limits.event_streams,
            first_number=int(wall() * 1_000_000),
        )
        reporter = Reporter(self.metrics, self.hub, FailureLog(system.clock))
        self.factory = Factory(
            coordinator, settings.commit, system=system, observer=reporter, rng=rng
        )
        registry: Registry[Answer] = Registry(
            lease_s=settings.lease_s, clients=limits.clients, managers=limits.managers
        )
        self.service = OffsetService(self.factory, registry, system.clock)
        self.health = Health(coordinator, system.clock, lambda: self.service.draining)
        self.metrics.watch(
            Source(
                self.factory.managers,
                lambda: registry.client_count,
                lambda: self.hub.reader_count,
                dropped_logs,
                lambda: coordinator.fence,
                system.clock,
                wall,
            )
        )
        timeout_s = settings.commit.request_timeout_s
        self._api = Api(
            self.service,
            Reads(self.factory, coordinator.reader, system.timers, timeout_s),
            Decoder(limits.entries),
            self.hub,
            self.metrics,
            self.health,
            limits,
            version(),
        )
        self.app = Gate(
            application(self._api),
            hosts=settings.listen.hosts(),
            instance=self.instance,
            requests_in_flight=limits.requests_in_flight,
            connections=limits.connections,
            draining=lambda: self.service.draining,
        )

    @contextlib.asynccontextmanager
    async def background(self) -> AsyncIterator[None]:
        """Look for lapsed leases and ask Kafka how it is, while inside."""
        tasks = [
            asyncio.create_task(self._sweep(), name="sweep"),
            asyncio.create_task(self.health.watch(), name="health"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._api.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            try:
                self.service.sweep()
            except Exception:  # one bad sweep must not end the leases
                log.exception("sweep_failed")
