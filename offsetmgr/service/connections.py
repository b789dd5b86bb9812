"""Connections: how many there may be, for how long, and with which certificates.

uvicorn has no deadline for a connection on which nothing comes, or nothing is read, and does not
pass certificates on.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from offsetmgr.errors import InvalidValueError
from offsetmgr.service.access import check_private, file_state

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from offsetmgr.service.settings import Tls

IDLE_S: Final = 75.0
"""A connection may be without a request for so long; clients send a heartbeat every ten seconds."""
STALLED_S: Final = 60.0
"""A reader may take nothing of its answer for so long."""

CERTIFICATE_NAMES: Final = "offsetmgr.certificate_names"
"""In the ``state`` of a request's scope: the names in the certificate of the client that asks."""

log = structlog.get_logger("offsetmgr.http")


class Connections:
    """All open connections.  One too many takes the place of the one that was idle for longest."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: set[Connection] = set()

    def protocol(self, **given: Any) -> Connection:
        """Return the protocol of a new connection, as uvicorn makes its own."""
        return Connection(self, **given)

    def make_room(self) -> bool:
        """Return True if there is room for one more; an idle connection may be ended for it."""
        if len(self.open) < self.limit:
            return True
        idle = [each for each in self.open if not each.is_busy]
        if idle:
            min(idle, key=lambda each: each.idle_at).abort()
        return bool(idle)

    def sweep(self) -> None:
        """End connections that are idle or stalled for too long; call it every second or so."""
        now = time.monotonic()
        for each in list(self.open):
            stalled = each.stalled_at is not None and now - each.stalled_at > STALLED_S
            if stalled or (not each.is_busy and now - each.idle_at > IDLE_S):
                each.abort()


class Connection(H11Protocol):
    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.idle_at = time.monotonic()
        """When the last request ended."""
        self.stalled_at: float | None = None
        """Since when the client has not read what waits for it."""
        self._connections = connections

    @property
    def is_busy(self) -> bool:
        """True while a request is under way."""
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._connections.make_room():
            transport.abort()
            return
        self._connections.open.add(self)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        names = frozenset() if tls is None else _names(tls.getpeercert() or {})
        self.app_state = {**self.app_state, CERTIFICATE_NAMES: names}

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # with an error uvicorn would leave its timer running, which keeps all of this
        self._connections.open.discard(self)
        super().connection_lost(None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.is_busy and not self.cycle.more_body:
            # Whoever does not wait for answers would fill uvicorn's buffer, which has no end.
            self.abort()
            return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.idle_at = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.stalled_at = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stalled_at = None
        super().resume_writing()

    def abort(self) -> None:
        """End it at once; what waits to be read is lost."""
        self._connections.open.discard(self)
        self.transport.abort()


def _names(certificate: Any) -> frozenset[str]:
    """Return the alternative names of a certificate, and its subject's common names."""
    found = {value for _, value in certificate.get("subjectAltName", ())}
    subject = (pair for parts in certificate.get("subject", ()) for pair in parts)
    return frozenset(found | {value for key, value in subject if key == "commonName"})


class Certificates:
    """The service's certificate, and the authority of its clients' certificates."""

    def __init__(self, tls: Tls) -> None:
        """Raise InvalidValueError where a file is of no use."""
        self._tls = tls
        self._seen = self._state()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(self.context)
        if tls.client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED

    def refresh(self) -> None:
        """Read files that have changed, for new connections; with an error nothing changes.

        A further authority of clients counts at once, one that was removed until the restart.
        """
        found = self._state()
        if found == self._seen:
            return
        self._seen = found
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a try
            self._load(self.context)
        except InvalidValueError as error:
            log.error("certificate_refused", error=str(error))  # noqa: TRY400 -- it says it all
        else:
            log.info("certificate_read")

    def factory(self, *_: object) -> ssl.SSLContext:
        """As uvicorn's ``ssl_context_factory``."""
        return self.context

    def _state(self) -> list[object]:
        paths = self._tls.certificate, self._tls.key, self._tls.client_ca
        return [file_state(Path(each)) for each in paths if each]

    def _load(self, context: ssl.SSLContext) -> None:
        tls = self._tls
        check_private(tls.key, "tls.key")
        key = f"tls.certificate and tls.key ({tls.certificate})"
        # An encrypted key would ask for its password on the terminal.
        _pem(key, lambda: context.load_cert_chain(tls.certificate, tls.key, lambda: ""))
        if tls.client_ca:
            _pem("tls.client_ca", lambda: context.load_verify_locations(tls.client_ca))


def _pem(name: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "strerror", None) or str(error)
        fix = "give readable PEM files: a certificate with its chain, its key without a password"
        raise InvalidValueError(name, None, f"cannot be used ({reason})", fix) from None
