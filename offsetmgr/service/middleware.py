"""The middleware around the API: who is let in, and how many requests are under way at once.

Requests that wait (reads, and submits that wait for Kafka) have a limit of their own, so that they
never shut out heartbeats and submits during an outage.  A caller that hangs up frees its place.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from offsetmgr.errors import OffsetManagerError, OverloadedError, shown
from offsetmgr.service.errors import DrainingError, RefusedRequestError
from offsetmgr.service.operations import INSTANCE
from offsetmgr.service.serialisation import error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from typing_extensions import Self

_T = TypeVar("_T")

REQUESTS: Final = 1_000
"""Requests under way at once that do not wait."""

WAITING: Final = 1_000
"""Requests under way at once that wait."""

log = structlog.get_logger("offsetmgr.http")


class Middleware:
    """Refuses foreign hosts, requests for another process, and new work while draining.

    Each answer carries the instance's id.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        instance: str,
        draining: Callable[[], bool],
    ) -> None:
        """``hosts`` are the names that a Host header may carry, None for any."""
        self._app = app
        self._hosts = hosts
        self._instance = (INSTANCE.lower().encode(), instance.encode())
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_instance(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._instance]
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else error_response(refusal)
        await app(scope, receive, send_with_instance)

    def _refusal(self, scope: Scope) -> OffsetManagerError | None:
        if self._hosts is not None:
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or _without_port(hosts[0]) not in self._hosts:
                text = (
                    f"this service has no name {shown(b', '.join(hosts).decode('latin-1'))}; give "
                    f"one of {', '.join(sorted(self._hosts))} as the host in its url"
                )
                return RefusedRequestError(HTTPStatus.MISDIRECTED_REQUEST, "foreign_host", text)
        meant_for = [value for name, value in scope["headers"] if name == self._instance[0]]
        if meant_for not in ([], [self._instance[1]]):
            return RefusedRequestError(
                HTTPStatus.PRECONDITION_FAILED,
                "other_instance",
                f"the request names another process of the service ({INSTANCE}), so it may be out "
                "of date; nothing was done; send your newest offsets without that header",
            )
        if scope["path"].startswith("/v1/") and self._draining():
            return DrainingError()
        return None


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    bare, colon, port = text.rpartition(":")
    return bare if colon and port.isdigit() else text


class Quota:
    """How many requests of one kind are under way."""

    def __init__(self, limit: int, kind: str) -> None:
        self.taken = 0
        self._limit = limit
        self._kind = kind

    def take(self) -> None:
        """Raise OverloadedError where the limit is reached."""
        if self.taken >= self._limit:
            text = f"{self._limit} {self._kind} are under way, which is the limit; try again later"
            raise OverloadedError(text)
        self.taken += 1


class Place:
    """The place of one request in a quota; a context manager."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    def move(self, quota: Quota) -> None:
        """Give the place back for one in ``quota``.  Raises OverloadedError."""
        quota.take()
        self._quota.taken -= 1
        self._quota = quota

    def __enter__(self) -> Self:
        self._quota.take()
        return self

    def __exit__(self, *_: object) -> None:
        self._quota.taken -= 1


class CallerGoneError(Exception):
    """The caller hung up, so nobody reads an answer."""


class Places:
    """The quotas of the service, and the requests under way."""

    def __init__(self) -> None:
        self.requests = Quota(REQUESTS, "requests")
        self.waiting = Quota(WAITING, "waiting requests")
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def run(self, request: Request, work: Coroutine[Any, Any, _T], *, cancel: bool) -> _T:
        """Return the result of ``work``.  Raises CallerGoneError when the caller hangs up.

        ``work`` is then cancelled, or goes on to its end without a place.  The body of ``request``
        must have been read.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.sleep(0)  # most work is done by then and needs no second task
            if not task.done():
                await _done_or_hung_up(request, task)
            return task.result()
        finally:
            if not task.done():
                if cancel:
                    task.cancel()
                else:
                    self._abandoned.add(task)
                    task.add_done_callback(self._abandoned_ended)

    def _abandoned_ended(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OffsetManagerError):
            log.error("request_failed", exc_info=error)


async def _done_or_hung_up(request: Request, task: asyncio.Task[Any]) -> None:
    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.create_task(hung_up())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if not task.done():
        raise CallerGoneError
