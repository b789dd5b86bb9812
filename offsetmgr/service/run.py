"""Runs the service: everything starts in order and stops in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import uvicorn
import uvloop

from actors import ActorSystem
from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.manager import Factory
from offsetmgr.service import version
from offsetmgr.service.access import Access, AuditLog
from offsetmgr.service.changes import Changes
from offsetmgr.service.connections import IDLE_S, Certificates, Connections
from offsetmgr.service.core import OffsetService
from offsetmgr.service.events import EventHub
from offsetmgr.service.health import Health, notify, watchdog
from offsetmgr.service.http import Api
from offsetmgr.service.logs import set_level
from offsetmgr.service.metrics import Metrics, ServiceMetrics
from offsetmgr.service.openapi import operations
from offsetmgr.service.reads import Reads
from offsetmgr.service.sessions import Registry
from offsetmgr.service.watch import GroupWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
    from random import Random

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.service.logs import Logs
    from offsetmgr.service.settings import Address, Settings

EXIT_COMMITTED: Final = 0
EXIT_UNCOMMITTED: Final = 3
"""Stopped with offsets that Kafka did not acknowledge; they are in the log."""

UNCOMMITTED_LOGGED: Final = 100

CLOSE_TIMEOUT_S: Final = 1.0
"""For each thing that is closed after the drain."""

CLOSING_S: Final = 3.0
"""Seconds of ``stop_timeout_s`` for closing all of them."""

SWEEP_INTERVAL_S: Final = 1.0

CONNECTIONS: Final = 2_500
"""Besides event streams: more than the requests that may be under way, so that one is always idle
and makes room for the next."""

HEAD_BYTES: Final = 32 * 1024
"""First line and headers of a request: a query of 100 topics with the longest names has 26 kB."""

RECEIVED_BYTES: Final = 64 * 1024
"""Bytes that the system takes of a connection ahead of its reader, and uvicorn in one piece."""

BACKLOG: Final = 1024

SYSTEMD_DESCRIPTOR: Final = 3
"""The first socket that systemd passes on (``SD_LISTEN_FDS_START``)."""

DESCRIPTORS: Final = 10_000
"""Open files that are asked of the system where its soft limit is lower."""
FILES: Final = 500
"""Of them for all but connections of clients."""

log = structlog.get_logger("offsetmgr.service")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the service, which drains before the server ends."""
        yield


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
        limits = settings.limits
        clock = system.clock
        self.settings = settings
        self.coordinator = coordinator
        self.clock = clock
        self.wall = wall
        self.version = version()
        self.dropped_logs = dropped_logs
        self.instance = uuid.uuid4().hex
        self.metrics = Metrics(settings.cluster_name, self.version)
        self.hub = EventHub(
            lambda: self.factory,
            self.metrics,
            clock,
            wall=wall,
            streams=limits.event_streams,
            managers=limits.managers,
        )
        self.factory = Factory(
            coordinator, settings.commit, system=system, observer=self.hub, rng=rng
        )
        self.registry = Registry(
            lease_s=settings.lease_s, clients=limits.clients, managers=limits.managers
        )
        self.access = Access(settings)
        self.audit = AuditLog(settings.audit_log, wall)
        self.service = OffsetService(self.factory, self.registry, clock, self.audit)
        self.health = Health(coordinator, clock, lambda: self.service.draining)
        self.watch = GroupWatch(self)
        self.metrics.registry.register(ServiceMetrics(self))
        self.metrics.registry.register(self.watch)
        parts = (self.hub, self.service, self.health, Reads(self), Changes(self), self.watch)
        more = chain.from_iterable(map(operations, parts))
        self.app = Api(self, [*more, *self.watch.burrow()])

    @contextlib.asynccontextmanager
    async def background(
        self, *more: Coroutine[Any, Any, None], sweeps: Iterable[Callable[[], None]] = ()
    ) -> AsyncIterator[None]:
        """End lapsed leases, ask Kafka how it is, watch groups and do ``more`` while inside.

        ``sweeps`` are called every second.
        """
        if self.settings.watch.groups:
            self.watch.start()
        sweeping = self._sweep([self.service.sweep, self.access.refresh, *sweeps])
        work = (sweeping, self.health.watch(), *more)
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            self.watch.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self, sweeps: list[Callable[[], None]]) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            for each in sweeps:
                try:
                    each()
                except Exception:  # one bad sweep must not end the leases
                    log.exception("sweep_failed")


class Service:
    """One run of the service around a coordinator."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        system: ActorSystem,
        logs: Logs,
        reload: Callable[[], Settings],
    ) -> None:
        """``reload`` reads the settings again, for SIGHUP: log level and identities."""
        self._settings = settings
        self._system = system
        self._logs = logs
        self._reload = reload
        self.assembly = Assembly(
            settings, coordinator, system, wall=time.time, dropped_logs=lambda: logs.dropped
        )
        self._connections = Connections(self.assembly.app, most_connections(settings))
        self._certificates = Certificates(settings.tls) if settings.tls.certificate else None
        self._stop_asked = asyncio.Event()
        self._deserted_s = system.clock.now()

    async def serve(self, sock: socket.socket, address: str) -> int:
        """Serve ``sock`` until told to stop; return the process's exit status."""
        self._catch_signals(asyncio.get_running_loop())
        certificates = self._certificates
        server = _Server(
            uvicorn.Config(
                self._connections,
                access_log=False,
                h11_max_incomplete_event_size=HEAD_BYTES,
                http=cast("type[asyncio.Protocol]", self._connections.protocol),
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                ssl_context_factory=None if certificates is None else certificates.factory,
                timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
                timeout_keep_alive=int(IDLE_S),
                ws="none",
            )
        )
        sweeps = [self._connections.sweep, self._stop_when_deserted]
        sweeps += [] if certificates is None else [certificates.watch.refresh]
        async with self.assembly.background(watchdog(self._system), sweeps=sweeps):
            serving = asyncio.create_task(server.serve(sockets=[sock]), name="http")
            # The socket listens already: who connects from here on is answered.
            security = {"tls": certificates is not None, "tokens": self.assembly.access.required}
            log.info("serving", address=address, pid=os.getpid(), version=version(), **security)
            notify("READY=1")
            asked = asyncio.create_task(self._stop_asked.wait(), name="stop")
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            status = await self._drain()
            server.should_exit = True
            await serving
        return status

    def stop(self) -> None:
        self._stop_asked.set()

    def _stop_when_deserted(self) -> None:
        """Stop when for ``exit_after_last_client_s`` none of the clients that came was there."""
        grace_s, now = self._settings.exit_after_last_client_s, self._system.clock.now()
        if not grace_s or not self.assembly.registry.deserted:
            self._deserted_s = now
        elif now - self._deserted_s >= grace_s and not self._stop_asked.is_set():
            log.info("last_client_left", grace_s=grace_s)
            self.stop()

    async def _drain(self) -> int:
        """Commit what is held; health and refusals are still served meanwhile."""
        notify("STOPPING=1")
        stop_timeout_s = self._settings.stop_timeout_s
        drain_s = max(stop_timeout_s / 2, stop_timeout_s - CLOSING_S)
        log.info("draining", managers=len(self.assembly.factory.managers()), timeout_s=drain_s)
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

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to whoever owns the process
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._on_stop_signal, each)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_stop_signal(self, caught: signal.Signals) -> None:
        if self._stop_asked.is_set():
            log.error("forced_exit", signal=caught.name)
            self._logs.flush()
            os._exit(128 + caught)
        self.stop()

    def _on_reload_signal(self) -> None:
        try:
            settings = self._reload()
            self.assembly.access.use(settings)
        except OffsetManagerError as error:
            log.error("reload_failed", error=str(error))  # noqa: TRY400 -- its text says it all
            return
        set_level(settings.log_level)
        log.info("reloaded", log_level=settings.log_level)


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
        return uvloop.run(service.serve(sock, address))


def most_connections(settings: Settings) -> int:
    """Return how many connections there may be, with the open files that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        soft = min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wanted = CONNECTIONS + settings.limits.event_streams
    if soft < wanted + FILES:
        log.warning("few_open_files", limit=soft, wanted=wanted + FILES)
    return min(wanted, max(soft - FILES, soft // 2))


@contextlib.contextmanager
def listening(address: Address) -> Iterator[tuple[socket.socket, str]]:
    """Yield the listening socket and its real address.

    Raises InvalidValueError where somebody listens there, OSError for what else the system says.
    """
    try:
        sock = _bound(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        problem = "is in use, or not a socket" if address.path else "is in use"
        fix = "stop the process that listens there, or listen elsewhere (--listen)"
        raise InvalidValueError("listen", str(address), problem, fix) from None
    with sock:
        if not address.path:
            address = address._replace(port=sock.getsockname()[1])
        yield sock, str(address)


def _bound(address: Address) -> socket.socket:
    if not address.path:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        where = (address.host, address.port)
        sock = socket.create_server(where, family=family, backlog=BACKLOG)
        # Taken over by its connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        return sock
    # The one socket of a systemd unit (sd_listen_fds), with the unit's mode and owner, stays over
    # restarts: who connects meanwhile waits.
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        sock = socket.socket(fileno=SYSTEMD_DESCRIPTOR)
        if sock.getsockname() != address.path:
            text = f"systemd's socket is {sock.getsockname()!r}, and not {address.path!r}"
            raise OSError(errno.EINVAL, text)
        return sock
    return _unix_socket(Path(address.path))


def _unix_socket(path: Path) -> socket.socket:
    """Return a socket for its owner alone.  Its file is left behind: the next one replaces it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        # Of a dead process; any other file is left alone, and then bind() fails.
        if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(BACKLOG)
    return sock


def over_kafka(settings: Settings) -> Coordinator:
    """Return the coordinator over the settings' Kafka, or over their database and Kafka."""
    config = settings.kafka.for_librdkafka()
    plain = KafkaCoordinator(config)
    if settings.database is not None:
        from offsetmgr.stores.coordinator import open_coordinator  # noqa: PLC0415

        return open_coordinator(settings.database, plain)
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
