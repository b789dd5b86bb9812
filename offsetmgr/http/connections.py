"""Connections: how many there may be, for how long, and with which certificates.

uvicorn has no deadline for a connection on which nothing comes, or nothing is read, and does not
pass certificates on.  So each of its protocols is wrapped in one that knows the connection's state;
both are plain ``asyncio.Protocol``, and uvicorn takes any as its ``http`` option.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from offsetmgr.http.files import Certificates

IDLE_S: Final = 75.0
"""A connection may be without a request for so long; clients send a heartbeat every ten seconds."""
STALLED_S: Final = 60.0
"""A reader may take nothing of its answer for so long."""

HANDSHAKE_S: Final = 10.0
"""A TLS handshake may take so long."""

_CONNECTION: ContextVar[ClientConnection | None] = ContextVar("connection", default=None)


class ClientCertificate(NamedTuple):
    """The certificate of a connection's client."""

    names: frozenset[str] = frozenset()
    """Its alternative names and common names; empty without a certificate."""
    ends_at_s: float = 0.0
    """When it expires, in seconds since 1970."""

    def valid_names(self) -> frozenset[str]:
        """Return its names, none once it has expired."""
        return self.names if time.time() < self.ends_at_s else frozenset()


def client_certificate() -> ClientCertificate:
    """Return the certificate of the connection that the current request came on."""
    connection = _CONNECTION.get()
    return ClientCertificate() if connection is None else connection.certificate


class Connections:
    """All open connections; an ASGI application that counts the requests of each."""

    def __init__(self, app: ASGIApp, limit: int, tls: Certificates | None = None) -> None:
        self.limit = limit
        self.tls = tls
        self.open: set[ClientConnection] = set()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _CONNECTION.get()
        assert connection is not None, "served by another protocol"  # noqa: S101 -- for mypy

        async def receive_next() -> Message:
            message = await receive()
            connection.is_answering = not message.get("more_body", False)
            return message

        async def send_next(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.is_answering = False
            await send(message)

        connection.requests += 1
        try:
            await self._app(scope, receive_next, send_next)
        except (LocalProtocolError, asyncio.CancelledError):
            # A body that breaks off behind its head, or the server's end.  What uvicorn is told
            # of before the client has gone, it logs with a traceback.
            connection.abort()
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            connection.requests -= 1
            connection.is_answering = False
            connection.idle_at = time.monotonic()

    def protocol(self, **given: Any) -> ClientConnection:
        return ClientConnection(self, H11Protocol(**given))

    def add(self, new: ClientConnection) -> None:
        """Add a new connection; of too many the one that has been idle for longest ends."""
        self.open.add(new)
        if len(self.open) > self.limit:
            idle = [each for each in self.open if not each.requests]
            min(idle, key=lambda each: each.idle_at).abort()

    def sweep(self) -> None:
        """End connections that are idle or stalled for too long; call it every second or so."""
        now = time.monotonic()
        for each in list(self.open):
            stalled = each.stalled_at is not None and now - each.stalled_at > STALLED_S
            if stalled or (not each.requests and now - each.idle_at > IDLE_S):
                each.abort()


@dataclass(eq=False)
class ClientConnection(asyncio.Protocol):
    """One connection, for uvicorn's protocol behind it."""

    _connections: Connections
    _inner: asyncio.Protocol
    requests: int = 0
    """Under way; one, or none."""
    is_answering: bool = False
    """The request has arrived as a whole, its answer has not left yet."""
    idle_at: float = field(default_factory=time.monotonic)
    """When the last request ended."""
    stalled_at: float | None = None
    """Since when the client has not read what waits for it."""
    certificate: ClientCertificate = field(default_factory=ClientCertificate)
    _is_begun: bool = False
    """False until the TLS handshake is done."""
    _early: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tls = self._connections.tls
        if tls is None:
            self._begin(transport)
        else:
            self._shake_hands(tls.context)
        self._connections.add(self)

    def _shake_hands(self, context: ssl.SSLContext) -> None:
        """Begin TLS here: the server's socket would count a connection only once it has begun."""
        starting = asyncio.get_running_loop().start_tls(
            self._transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
        )

        def go_on(_: object) -> None:
            try:
                starting.send(None)
            except StopIteration as done:
                if done.value is None or done.value.is_closing():
                    self.abort()
                    return
                self._transport = done.value
                self._begin(self._transport)
                if self._early:
                    self.data_received(self._early)
            except OSError:
                self.abort()

        # Its first step at once, not in a task: uvloop reads as soon as connection_made() is done.
        starting.send(None).add_done_callback(go_on)

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.certificate = _certificate((tls and tls.getpeercert()) or {})
        self._is_begun = True
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # with an error uvicorn would leave its timer running, which keeps all of this
        self._connections.open.discard(self)
        if self._is_begun:
            self._inner.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        if not self._is_begun:  # it came with the end of the handshake
            self._early += data
            return
        if self.is_answering:
            # Whoever does not wait for answers would fill uvicorn's buffer, which has no end.
            self.abort()
            return
        token = _CONNECTION.set(self)  # for the tasks of requests that begin here
        try:
            self._inner.data_received(data)
        except LocalProtocolError:  # uvicorn refuses a body whose answer has begun
            self.abort()
        finally:
            _CONNECTION.reset(token)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self.stalled_at = time.monotonic()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self.stalled_at = None
        self._inner.resume_writing()

    def abort(self) -> None:
        """End it at once; what waits to be read is lost."""
        self._connections.open.discard(self)
        self._transport.abort()


def _certificate(found: Any) -> ClientCertificate:
    """Return a certificate from the dictionary that ssl makes of it, which may be empty."""
    names = {value for _, value in found.get("subjectAltName", ())}
    subject = (pair for parts in found.get("subject", ()) for pair in parts)
    names |= {value for key, value in subject if key == "commonName"}
    ends_at_s = ssl.cert_time_to_seconds(found["notAfter"]) if "notAfter" in found else 0
    return ClientCertificate(frozenset(names), ends_at_s)
