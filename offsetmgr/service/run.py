"""Runs the service: everything starts in order and stops in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from actors import ActorSystem
from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import OffsetManagerError
from offsetmgr.http.address import Address, listening
from offsetmgr.http.files import Certificates, Tokens
from offsetmgr.http.server import CLOSE_TIMEOUT_S, Server, every_second
from offsetmgr.http.signals import take_over
from offsetmgr.logs import SafeLogger
from offsetmgr.manager import Factory
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.service import version
from offsetmgr.service.access import Access, tokens_of
from offsetmgr.service.api import Api
from offsetmgr.service.audit import AuditLog
from offsetmgr.service.changes import Changes
from offsetmgr.service.core import OffsetService
from offsetmgr.service.events import EventHub
from offsetmgr.service.follow import Follows
from offsetmgr.service.health import Health, notify, watchdog
from offsetmgr.service.logs import Logs, set_level
from offsetmgr.service.metrics import Metrics
from offsetmgr.service.openapi import operations
from offsetmgr.service.overview import Overview
from offsetmgr.service.reads import Reads
from offsetmgr.service.sessions import Registry
from offsetmgr.service.settings import Settings, unmasked
from offsetmgr.service.threads import ReadThreads
from offsetmgr.service.watch import GroupWatch
from offsetmgr.text import error_text
from offsetmgr.workers import Question

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from random import Random

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult

EXIT_COMMITTED: Final = 0
EXIT_UNCOMMITTED: Final = 3
"""Stopped with offsets that Kafka did not acknowledge; they are in the log."""

UNCOMMITTED_LOGGED: Final = 100

SLOW_READS: Final = 8
"""Reads that may wait for Kafka in threads at once."""

RELOAD_S: Final = 10.0
"""Seconds for reading the settings again."""

CLOSING_S: Final = 3.0
"""Seconds of ``stop_timeout_s`` for closing all of them."""

AUDIT_S: Final = 1.0
"""Seconds of these for the last lines of the audit log."""

log = SafeLogger("offsetmgr.service")


class Reports:
    """A ``manager.Observer`` that hands the managers' reports to event streams and metrics."""

    hub: EventHub
    metrics: Metrics

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        self.hub.committed(offsets)

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        self.metrics.failed(error)
        self.hub.failed(key, error)

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        del result
        self.hub.stopped(key)

    def requested(
        self, kind: str, group: str, partitions: int, failures: int, duration_s: float
    ) -> None:
        del group
        if kind == "commit":
            self.metrics.commit_answered(partitions, failures, duration_s)


class Assembly:
    """The service's parts around any coordinator; ``app`` is what an ASGI server serves."""

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
        limits, clock = settings.limits, system.clock
        release, instance = version(), uuid.uuid4().hex
        reports, quick, slow = Reports(), ReadThreads(1), ReadThreads(SLOW_READS)
        self.settings = settings
        self.factory = Factory(
            coordinator, settings.commit, system=system, observer=reports, rng=rng
        )
        self.access = Access(settings)
        self.registry = Registry(
            lease_s=settings.lease_s,
            clients=limits.clients,
            managers=limits.managers,
            groups=limits.fenced_groups if settings.fence else sys.maxsize,
            share=self.access.share,
        )
        self.hub = reports.hub = EventHub(
            self.factory,
            clock,
            wall=wall,
            streams=limits.event_streams,
            managers=limits.managers,
            share=partial(self.access.share, reads=True),
        )
        self.audit = AuditLog(settings.audit_log, wall)
        self.service = OffsetService(self.factory, self.registry, clock, self.audit, self.hub)
        self.watch = GroupWatch(settings, self.factory, clock, wall, slow)
        self.health = Health(
            coordinator, clock, lambda: self.service.draining, lambda: self.watch.trouble
        )
        self.metrics = reports.metrics = Metrics(
            settings.cluster_name,
            release,
            self.service,
            self.health,
            quick,
            dropped_logs=dropped_logs,
            wall_s=self.watch.wall_s,
        )
        self.follows = Follows(settings, self.factory, coordinator, wall)
        self.metrics.registry.register(self.follows)
        self.metrics.registry.register(self.watch)
        overview = Overview(
            settings,
            self.service,
            self.health,
            self.watch,
            self.follows,
            quick,
            slow,
            instance=instance,
            version=release,
        )
        parts = (
            self.hub,
            self.service,
            self.health,
            self.metrics,
            Reads(coordinator, settings.commit.request_timeout_s),
            overview,
            Changes(settings, self.service, slow, wall),
            self.watch,
        )
        self.app = Api(
            [*chain.from_iterable(map(operations, parts)), *self.watch.burrow()],
            self.access,
            self.service,
            settings.address.hosts(settings.hosts),
            instance=instance,
            version=release,
        )

    @contextlib.asynccontextmanager
    async def background(self, *more: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """End lapsed leases, ask Kafka how it is, watch groups and do ``more`` while inside."""
        if self.settings.watch.groups:
            self.watch.start()
        self.follows.start()
        sweeps = self.service.sweep, self.access.refresh, self.hub.sweep
        work = (every_second(*sweeps), self.health.watch(), *more)
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            self.watch.close()
            self.follows.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.audit.close(AUDIT_S)


@dataclass(eq=False)
class Service:
    """One run of the service around a coordinator."""

    settings: Settings
    coordinator: Coordinator
    system: ActorSystem
    logs: Logs
    reload: Callable[[], Settings]
    """Reads the settings again, for SIGHUP: log level and identities."""
    _reloading: asyncio.Task[None] | None = field(init=False, default=None)
    _stop_asked: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        settings, dropped = self.settings, lambda: self.logs.dropped
        self.assembly = Assembly(
            settings, self.coordinator, self.system, wall=time.time, dropped_logs=dropped
        )
        certificates = Certificates(settings.tls) if settings.tls.certificate else None
        self._server = Server(self.assembly.app, certificates, settings.limits.event_streams)
        self._deserted_s = self.system.clock.now()

    async def serve(self, sock: socket.socket, address: Address) -> int:
        """Serve ``sock`` until told to stop; return the process's exit status."""
        self._catch_signals()
        async with self.assembly.background(watchdog(self.system)):
            lost = lost_socket_report(address.path, self.system.clock.now)
            served = self._server.serve(sock, self._stop_when_deserted, lost)
            serving = asyncio.create_task(served, name="http")
            # The socket listens already: clients that connect from here on are answered.
            facts = {"tls": address.tls, "tokens": self.assembly.access.required}
            log.info("serving", address=str(address), pid=os.getpid(), version=version(), **facts)
            notify("READY=1")
            asked = asyncio.create_task(self._stop_asked.wait(), name="stop")
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            status = await self._drain()
            self._server.stop()
            await serving
        return status

    def stop(self) -> None:
        self._stop_asked.set()

    def _stop_when_deserted(self) -> None:
        grace_s, now = self.settings.exit_after_last_client_s, self.system.clock.now()
        if not grace_s or not self.assembly.registry.deserted:
            self._deserted_s = now
        elif now - self._deserted_s >= grace_s and not self._stop_asked.is_set():
            log.info("last_client_left", grace_s=grace_s)
            self.stop()

    async def _drain(self) -> int:
        # Health and refusals are still served meanwhile.
        notify("STOPPING=1")
        stop_timeout_s = self.settings.stop_timeout_s
        drain_s = max(stop_timeout_s / 2, stop_timeout_s - CLOSING_S)
        log.info("draining", managers=len(self.assembly.factory.managers()), timeout_s=drain_s)
        self.assembly.follows.close()
        self.assembly.service.drain(drain_s)
        self.assembly.hub.close()
        # Not in a thread: a process that may start none any more commits all the same.
        results = await self.assembly.factory.begin_stop(drain_s)
        left = [
            (key, each.uncommitted.offset, each.error)
            for key, each in results.items()
            if each.uncommitted is not None
        ]
        for key, offset, error in left[:UNCOMMITTED_LOGGED]:
            log.error("uncommitted", **key._asdict(), offset=offset, error=str(error))
        if len(left) > UNCOMMITTED_LOGGED:
            log.error("uncommitted_more", partitions=len(left) - UNCOMMITTED_LOGGED)
        codes = Counter(error.code if error else "not told" for _, _, error in left)
        reasons = {"reasons": dict(codes)} if left else {}
        log.info("drained", managers=len(results), uncommitted=len(left), **reasons)
        return EXIT_UNCOMMITTED if left else EXIT_COMMITTED

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to whoever owns the process
        for each, act in (
            (signal.SIGTERM, partial(self._on_stop_signal, signal.SIGTERM)),
            (signal.SIGINT, partial(self._on_stop_signal, signal.SIGINT)),
            (signal.SIGHUP, self._on_reload_signal),
        ):
            take_over(each, act)

    def _on_stop_signal(self, caught: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.error("forced_exit", signal=caught.name)
            self.assembly.audit.close(AUDIT_S)
            self.logs.flush()
            os._exit(128 + caught)
        self.stop()

    def _on_reload_signal(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()  # the newest signal decides
        self._reloading = asyncio.create_task(self._reload_settings(), name="reload")

    def _read_settings(self) -> tuple[Settings, Tokens]:
        settings = self.reload()
        return settings, tokens_of(settings)

    async def _reload_settings(self) -> None:
        try:
            # In its own thread: a pipe or a dead file server in the place of a file may hang it.
            reading = asyncio.wrap_future(Question(self._read_settings).answer)
            settings, tokens = await asyncio.wait_for(reading, RELOAD_S)
            self.assembly.access.reload(settings, tokens)
        except Exception as failure:  # noqa: BLE001 -- whatever it is, the old settings hold
            error = failure
            if isinstance(error, asyncio.TimeoutError):
                error = OffsetManagerError(f"the settings could not be read within {RELOAD_S:g} s")
            if not isinstance(error, OffsetManagerError):
                error = OffsetManagerError(error_text(failure))
            self.assembly.health.reload_error = error
            log.error("reload_failed", error=str(error))  # noqa: TRY400 -- its text is complete
            return
        self.assembly.health.reload_error = None
        set_level(settings.log_level)
        now, before = unmasked(settings), unmasked(self.settings)
        changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        changed = {name for name in changed if not name.startswith(("identities", "log_level"))}
        needs = {"needs_restart": sorted(changed)} if changed else {}
        log.info("reloaded", log_level=settings.log_level, **needs)


def lost_socket_report(path: str, now: Callable[[], float]) -> Callable[[], None]:
    """Return a check that logs, now and then, that the file of a Unix socket has gone.

    A cleaner of old files may have deleted it, or another service replaced it: nobody can connect
    any more, though everything goes on for those who are connected.
    """

    def inode() -> int | None:
        try:
            return Path(path).stat().st_ino if path else None
        except OSError:
            return None

    repeats, ours = RepeatLimiter(), inode()

    def report() -> None:
        if inode() != ours and repeats.suppressed(path, now()) is not None:
            log.error("socket_lost", path=path, fix="restart the service; keep the file")

    return report


def run(
    settings: Settings,
    logs: Logs,
    reload: Callable[[], Settings],
    connect: Callable[[ActorSystem], Coordinator],
) -> int:
    """Serve until a signal; return the exit status.  ``connect`` makes the coordinator.

    Raises OffsetManagerError or OSError where it cannot start.
    """
    tune_gc()
    with contextlib.ExitStack() as stack:
        # The address first: a second service on it must not disturb the group's commits.
        sock, address = stack.enter_context(listening(settings.address))
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
        system = ActorSystem(name="offsetmgr")
        stack.callback(system.stop, CLOSE_TIMEOUT_S)
        coordinator = connect(system)
        stack.callback(coordinator.close, CLOSE_TIMEOUT_S)
        service = Service(settings, coordinator, system, logs, reload)
        stack.callback(signal.signal, signal.SIGHUP, signal.SIG_IGN)  # the loop's handler ends
        return uvloop.run(service.serve(sock, address))


def over_kafka(settings: Settings) -> Coordinator:
    """Return the coordinator over the settings' Kafka, or over their database and Kafka."""
    config = settings.kafka.for_librdkafka()
    plain = KafkaCoordinator(config)
    if settings.database is not None:
        from offsetmgr.stores.coordinator import StoreCoordinator  # noqa: PLC0415

        return StoreCoordinator(settings.database, plain)
    if not settings.fence:
        return plain
    return FencedCoordinator(
        config,
        plain,
        session_timeout_s=settings.fence_session_timeout_s,
        most_groups=settings.limits.fenced_groups,
    )


def tune_gc() -> None:
    """Collect garbage rarely: Python's defaults cost 10,000 managers a seventh of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, *gc.get_threshold()[1:])
