"""What stands before the API: foreign hosts, too many at once, the instance's id."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import OverloadedError, shown
from offsetmgr.service.connections import connections_before
from offsetmgr.service.http import STREAMS, problem
from offsetmgr.service.operations import INSTANCE
from offsetmgr.service.problems import DrainingError, RefusedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from offsetmgr.errors import OffsetManagerError

_HEALTH: Final = frozenset({"/livez", "/readyz"})
"""Answered however much else is going on."""

_CLOSE: Final = (b"connection", b"close")


class Gate:
    """An ASGI application around another."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        instance: str,
        requests_in_flight: int,
        connections: int,
        draining: Callable[[], bool],
    ) -> None:
        """``hosts`` are the names that a Host header may carry, None for any.

        ``requests_in_flight`` and ``connections`` are how many there may be.
        """
        self._app = app
        self._hosts = hosts
        self._instance = (INSTANCE.lower().encode(), instance.encode())
        self._limit = requests_in_flight
        self._connection_limit = connections
        self._in_flight = 0
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through."""
        excess = connections_before(scope) >= self._connection_limit
        ours = (self._instance, _CLOSE) if excess else (self._instance,)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ours]
            await send(message)

        refusal = self._refusal(scope, excess=excess)
        if refusal is not None:
            await problem(refusal)(scope, receive, named)
            return
        counted = scope["path"] not in STREAMS  # which have a limit of their own
        self._in_flight += counted

        async def answering(message: Message) -> None:
            # The work is done.  A client that takes no answers keeps its connection from going
            # on, but nobody else.
            nonlocal counted
            self._in_flight -= counted
            counted = False
            await named(message)

        try:
            await self._app(scope, receive, answering)
        finally:
            self._in_flight -= counted

    def _misdirected(self, scope: Scope) -> OffsetManagerError | None:
        """Why the request is not for this process, where it is not."""
        if self._hosts is not None:
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or _bare(hosts[0]) not in self._hosts:
                text = (
                    f"Host {shown(b', '.join(hosts).decode('latin-1'))} is not this service; "
                    f"address it as {', '.join(sorted(self._hosts))}"
                )
                return RefusedRequestError(HTTPStatus.MISDIRECTED_REQUEST, "foreign_host", text)
        meant_for = [value for name, value in scope["headers"] if name == self._instance[0]]
        if meant_for not in ([], [self._instance[1]]):
            return RefusedRequestError(
                HTTPStatus.PRECONDITION_FAILED,
                "other_instance",
                f"the request is for another process of the service ({INSTANCE}), and may be older "
                "than what that one was given since; nothing was done: begin anew with this one",
            )
        return None

    def _refusal(self, scope: Scope, *, excess: bool) -> OffsetManagerError | None:
        path = scope["path"]
        misdirected = self._misdirected(scope)
        if misdirected is not None or path in _HEALTH:
            return misdirected
        if self._draining() and path.startswith("/v1/"):
            return DrainingError()
        if excess:
            return OverloadedError(
                f"{self._connection_limit} connections are open, the limit (limits.connections); "
                "close some, or raise it"
            )
        if self._in_flight >= self._limit:
            return OverloadedError(
                f"{self._limit} requests are under way, the limit (limits.requests_in_flight); "
                "try again later"
            )
        return None


def _bare(host: bytes) -> str:
    """A Host header without its port."""
    text = host.decode("latin-1").lower()
    bare, colon, port = text.rpartition(":")
    return bare if colon and port.isdigit() else text
