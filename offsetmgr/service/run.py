"""Runs the service: everything starts in order and stops in reverse.

The first SIGTERM (or SIGINT) drains: no new work, everything that is held is committed, as far as
``stop_timeout_s`` allows.  The second ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from actors import ActorSystem
from offsetmgr.errors import OffsetManagerError
from offsetmgr.service.assembly import Assembly
from offsetmgr.service.collector import spare_the_collector
from offsetmgr.service.connections import HttpProtocol
from offsetmgr.service.listen import listening
from offsetmgr.service.notify import notify
from offsetmgr.service.version import version
from offsetmgr.service.watchdog import watched

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from offsetmgr.coordinator.base import Coordinator
    from offsetmgr.service.logs import Logs
    from offsetmgr.service.settings import Settings
    from offsetmgr.types import ManagerKey, StopResult

EXIT_COMMITTED: Final = 0
EXIT_UNCOMMITTED: Final = 3
"""Stopped with offsets that Kafka did not acknowledge; they are in the log."""

UNCOMMITTED_LOGGED: Final = 100
"""Partitions logged one by one; the rest as a count."""

CLOSE_TIMEOUT_S: Final = 1.0
"""For each thing that is closed after the drain."""

CLOSING_S: Final = 3.0
"""What all of that may take of ``stop_timeout_s``."""

KEEP_ALIVE_S: Final = 75
"""For idle connections; clients send a heartbeat every ten seconds."""

log = structlog.get_logger("offsetmgr.service")


class _Server(uvicorn.Server):
    """uvicorn, told when to stop instead of catching signals itself."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        """``reload`` reads the settings again, for SIGHUP; of them the log level is taken."""
        self._settings = settings
        self._system = system
        self._logs = logs
        self._reload = reload
        self.assembly = Assembly(
            settings, coordinator, system, wall=time.time, dropped_logs=lambda: logs.dropped
        )
        self._stop_asked: asyncio.Event | None = None

    async def serve(self, sock: socket.socket, address: str) -> int:
        """Serve ``sock`` until told to stop; the process's exit status."""
        self._stop_asked = asyncio.Event()
        self._catch_signals(asyncio.get_running_loop())

        def ready() -> None:
            log.info("serving", address=address, pid=os.getpid(), version=version())
            notify("READY=1")

        server = _Server(self._server_config(), ready)
        async with self.assembly.background(), watched(self._system):
            serving = asyncio.create_task(server.serve(sockets=[sock]), name="http")
            asked = asyncio.create_task(self._stop_asked.wait(), name="stop")
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            status = await self._drain()
            server.should_exit = True
            await serving
        return status

    def stop(self) -> None:
        """Ask for a drain; from the event loop."""
        if self._stop_asked is not None:
            self._stop_asked.set()

    def _server_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self.assembly.app,
            access_log=False,
            http=HttpProtocol,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
            timeout_keep_alive=KEEP_ALIVE_S,
            ws="none",
        )

    async def _drain(self) -> int:
        """Commit what is held; health and refusals are still served meanwhile."""
        notify("STOPPING=1")
        stop_timeout_s = self._settings.stop_timeout_s
        drain_s = max(stop_timeout_s / 2, stop_timeout_s - CLOSING_S)
        log.info("draining", managers=len(self.assembly.factory.managers()), timeout_s=drain_s)
        self.assembly.service.drain()
        self.assembly.hub.close()
        # Not in a thread: a process that may start none any more commits all the same.
        results = await self.assembly.factory.begin_stop(drain_s)
        left = {key: each for key, each in results.items() if each.uncommitted is not None}
        _log_uncommitted(left)
        log.info("drained", managers=len(results), uncommitted=len(left))
        return EXIT_UNCOMMITTED if left else EXIT_COMMITTED

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals belong to whoever owns the process
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._on_stop_signal, each)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_stop_signal(self, caught: signal.Signals) -> None:
        if self._stop_asked is not None and self._stop_asked.is_set():
            log.error("forced_exit", signal=caught.name)
            os._exit(128 + caught)
        self.stop()

    def _on_reload_signal(self) -> None:
        try:
            level = self._reload().log_level
        except OffsetManagerError as error:
            log.error("reload_failed", error=str(error))  # noqa: TRY400 -- its text says it all
            return
        self._logs.set_level(level)
        log.info("reloaded", log_level=level)


def run(
    settings: Settings,
    logs: Logs,
    reload: Callable[[], Settings],
    connect: Callable[[ActorSystem], Coordinator],
) -> int:
    """Serve until a signal, with the coordinator that ``connect`` makes; the exit status.

    Raises OffsetManagerError or OSError where it cannot start.
    """
    spare_the_collector()
    with contextlib.ExitStack() as stack:
        # The address first: a second service on it must not disturb the group's commits.
        sock, address = stack.enter_context(listening(settings.listen))
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
        system = ActorSystem(name="offsetmgr")
        stack.callback(system.stop, CLOSE_TIMEOUT_S)
        coordinator = connect(system)
        stack.callback(coordinator.close, CLOSE_TIMEOUT_S)
        service = Service(settings, coordinator, system, logs, reload)
        return _run(service.serve(sock, address))


def over_kafka(settings: Settings) -> Callable[[ActorSystem], Coordinator]:
    """For ``run``: the coordinator of the settings' Kafka."""

    def connect(system: ActorSystem) -> Coordinator:
        # Not imported by those who bring a coordinator of their own.
        from offsetmgr.coordinator.fence.coordinator import with_fence  # noqa: PLC0415
        from offsetmgr.coordinator.kafka import KafkaCoordinator  # noqa: PLC0415

        del system
        config = settings.kafka.for_librdkafka()
        plain = KafkaCoordinator(config)
        return with_fence(config, plain) if settings.fence else plain

    return connect


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # noqa: PLC0415 -- used where it is installed
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _log_uncommitted(left: Mapping[ManagerKey, StopResult]) -> None:
    for key, result in list(left.items())[:UNCOMMITTED_LOGGED]:
        log.error(
            "uncommitted",
            group=key.group,
            topic=key.topic,
            partition=key.partition,
            offset=None if result.uncommitted is None else result.uncommitted.offset,
            error="the time was over" if result.error is None else str(result.error),
        )
    if len(left) > UNCOMMITTED_LOGGED:
        log.error("uncommitted_more", partitions=len(left) - UNCOMMITTED_LOGGED)
