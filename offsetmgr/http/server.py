"""A server on one socket: deadlines and limits for its connections, TLS, work every second."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING, Final, cast

import uvicorn

from offsetmgr.http.connections import IDLE_S, Connections
from offsetmgr.logs import SafeLogger

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from offsetmgr.http.files import Certificates

CONNECTIONS: Final = 2_500
"""Besides event streams: more than the requests that may be under way, so that one is always idle
and makes room for the next."""

HEAD_BYTES: Final = 32 * 1024
"""First line and headers of a request: a query of 100 topics with the longest names has 26 kB."""

DESCRIPTORS: Final = 10_000
"""Open files that are asked of the system where its soft limit is lower."""
FILES: Final = 500
"""Of them for all but connections of clients."""

CLOSE_TIMEOUT_S: Final = 1.0
"""Requests under way have so long when the server stops."""

SWEEP_INTERVAL_S: Final = 1.0

log = SafeLogger("offsetmgr.http")


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the program, which may have work to do before the server ends."""
        yield


class Server:
    def __init__(
        self, app: ASGIApp, certificates: Certificates | None = None, streams: int = 0
    ) -> None:
        """``streams`` is the number of answers without an end, each of which has a connection."""
        self.connections = Connections(app, most_connections(streams), certificates)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                self.connections,
                access_log=False,
                h11_max_incomplete_event_size=HEAD_BYTES,
                http=cast("type[asyncio.Protocol]", self.connections.protocol),
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
                timeout_keep_alive=int(IDLE_S),
                ws="none",
            )
        )
        self._sweeps = [self.connections.sweep]
        if certificates is not None:
            self._sweeps.append(certificates.watch.refresh)

    async def serve(self, sock: socket.socket, *sweeps: Callable[[], None]) -> None:
        """Serve ``sock`` until ``stop``; call ``sweeps`` every second."""
        sweeping = asyncio.create_task(every_second(*self._sweeps, *sweeps))
        try:
            await self._uvicorn.serve(sockets=[sock])
        finally:
            sweeping.cancel()

    def stop(self) -> None:
        """End the server at its next turn."""
        self._uvicorn.should_exit = True


async def every_second(*sweeps: Callable[[], None]) -> None:
    """Call each of ``sweeps`` every second; one that fails is logged and delays no other."""
    while True:
        await asyncio.sleep(SWEEP_INTERVAL_S)
        for sweep in sweeps:
            try:
                sweep()
            except Exception:  # one bad sweep must not end the leases
                log.exception("sweep_failed")


def most_connections(streams: int) -> int:
    """Return how many connections there may be, with the open files that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        soft = min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wanted = CONNECTIONS + streams
    if soft < wanted + FILES:
        log.warning("few_open_files", limit=soft, wanted=wanted + FILES)
    return min(wanted, max(soft - FILES, soft // 2))
