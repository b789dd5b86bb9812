"""The HTTP API: one table of operations, and the way of a request to its handler.

Requests that wait (reads, and submits that wait for Kafka) have a limit of their own, so that they
never shut out heartbeats and submits during an outage.  A caller that hangs up frees its place.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from offsetmgr.errors import OffsetManagerError, OverloadedError, shown
from offsetmgr.service.errors import HttpStatusError, MissingError
from offsetmgr.service.messages import (
    ErrorAnswer,
    ErrorBody,
    FlushAnswer,
    HeartbeatAnswer,
    InitialOffsetsAnswer,
    LiveAnswer,
    ManagersAnswer,
    OffsetsAnswer,
    OpenAnswer,
    ReadyAnswer,
    SubmitAnswer,
    TopicNamesAnswer,
    TopicsAnswer,
    encode,
    error_response,
    json_response,
)
from offsetmgr.service.openapi import Operation, document
from offsetmgr.service.requests import (
    CLIENT,
    INSTANCE,
    CommittedQuery,
    EventsQuery,
    FlushRequest,
    HeartbeatRequest,
    InitialOffsetsQuery,
    ManagersQuery,
    OpenRequest,
    StopRequest,
    SubmitRequest,
    TopicNamesQuery,
    TopicsQuery,
    decode,
    read_body,
    read_caller,
    read_query,
)
from offsetmgr.service.requests import (
    Request as Asked,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    import msgspec
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.events import EventHub, Subscription
    from offsetmgr.service.health import Health
    from offsetmgr.service.metrics import Metrics
    from offsetmgr.service.reads import Reads
    from offsetmgr.service.sessions import Caller

    Handled = msgspec.Struct | Response

REQUESTS: Final = 1_000
"""Requests under way at once that do not wait."""

WAITING: Final = 1_000
"""Requests under way at once that wait."""

log = structlog.get_logger("offsetmgr.http")


class Api:
    """The operations over the service's parts; ``application`` serves them."""

    def __init__(
        self,
        service: OffsetService,
        reads: Reads,
        hub: EventHub,
        metrics: Metrics,
        health: Health,
        version: str,
    ) -> None:
        self.requests = Quota(REQUESTS, "requests")
        self.waiting = Quota(WAITING, "waiting requests")
        self._service = service
        self._reads = reads
        self._hub = hub
        self._metrics = metrics
        self._health = health
        self._abandoned: set[asyncio.Future[Handled]] = set()
        self.operations = self._operations()
        self._document = encode(document(version, self.operations))

    def _operations(self) -> tuple[Operation, ...]:
        service, reads = self._service, self._reads
        return (
            Operation(
                "POST", "/v1/managers", "open", "Have managers for partitions (idempotent)",
                service.open, OpenRequest, OpenAnswer,
            ),
            Operation(
                "GET", "/v1/managers", "managers", "List managers",
                lambda _, query: reads.managers(query), ManagersQuery, ManagersAnswer,
            ),
            Operation(
                "GET", "/v1/initial-offsets", "initial_offsets",
                "What was committed when the managers started; waits until Kafka told",
                reads.initial_offsets, InitialOffsetsQuery, InitialOffsetsAnswer,
            ),
            Operation(
                "POST", "/v1/offsets", "submit", "Submit offsets of one group",
                service.submit, SubmitRequest, SubmitAnswer,
            ),
            Operation(
                "GET", "/v1/offsets", "committed", "What Kafka says is committed now",
                lambda _, query: reads.committed(query), CommittedQuery, OffsetsAnswer,
                statuses=(502, 504),
            ),
            Operation(
                "GET", "/v1/topics", "topics", "Partitions of topics and the ends of their logs",
                lambda _, query: reads.topics(query), TopicsQuery, TopicsAnswer,
            ),
            Operation(
                "GET", "/v1/topic-names", "topic_names", "Topics of the cluster, but Kafka's own",
                lambda _, query: reads.topic_names(query), TopicNamesQuery, TopicNamesAnswer,
                statuses=(502, 504),
            ),
            Operation(
                "POST", "/v1/flush", "flush", "Commit what the client's managers hold",
                service.flush, FlushRequest, FlushAnswer,
            ),
            Operation(
                "POST", "/v1/stop", "stop", "Commit what the client's managers hold and stop them",
                service.stop, StopRequest, FlushAnswer,
            ),
            Operation(
                "POST", "/v1/heartbeat", "heartbeat", "Renew the client's lease",
                self._heartbeat, HeartbeatRequest, HeartbeatAnswer,
            ),
            Operation(
                "GET", "/v1/events", "events",
                "Server-sent events: committed, failed, stopped, dropped",
                self._events, EventsQuery, media_type="text/event-stream",
            ),
            Operation(
                "GET", "/livez", "live", "Whether the process lives", self._live,
                answer=LiveAnswer,
            ),
            Operation(
                "GET", "/readyz", "ready", "Whether the service is of use now", self._ready,
                answer=ReadyAnswer, others={503: ReadyAnswer},
            ),
            Operation(
                "GET", "/metrics", "metrics", "Prometheus metrics", self._page,
                statuses=(429,), media_type="text/plain",
            ),
            Operation(
                "GET", "/openapi.json", "openapi", "This document", self._openapi,
                statuses=(429,),
            ),
        )  # fmt: skip

    # Handlers that are not those of the parts

    async def _heartbeat(self, caller: Caller, _: object) -> HeartbeatAnswer:
        return HeartbeatAnswer(await self._service.heartbeat(caller), self._hub.newest)

    async def _events(self, caller: Caller | None, asked: EventsQuery) -> Response:
        client = None if caller is None else caller.name
        return _EventStream(self._hub, self._hub.subscribe(client, asked.group, asked.after))

    async def _live(self, *_: object) -> LiveAnswer:
        return LiveAnswer(live=True)

    async def _ready(self, *_: object) -> Response:
        answer = self._health.ready()
        status = HTTPStatus.OK if answer.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(answer, status)

    async def _page(self, *_: object) -> Response:
        page = await self._reads.in_worker(self._metrics.page)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, *_: object) -> Response:
        return Response(self._document, media_type="application/json")

    # The way to a handler

    async def handle(self, operation: Operation, request: Request) -> Response:
        """Return the answer, also to what fails."""
        try:
            if operation.request is None:
                answer = await self._plain(operation, request)
            elif operation.method == "POST":
                answer = await self._write(operation, operation.request, request)
            else:
                answer = await self._read(operation, operation.request, request)
            return answer if isinstance(answer, Response) else json_response(answer)
        except OffsetManagerError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # which nobody reads

    async def _plain(self, operation: Operation, request: Request) -> Handled:
        if operation.path in {"/livez", "/readyz"}:
            return await operation.handler(None, None)
        with self.requests:
            return await self._run(request, operation.handler(None, None), cancel=True)

    async def _write(self, operation: Operation, kind: type[Asked], request: Request) -> Handled:
        caller = read_caller(request.headers)
        if caller is None:
            raise MissingError(CLIENT, "name the client there; it also keeps web pages out")
        with self.requests:
            asked = decode(kind, await read_body(request))
        waits = isinstance(asked, SubmitRequest) and asked.wait
        with self.waiting if waits else self.requests:
            return await self._run(request, operation.handler(caller, asked), cancel=False)

    async def _read(self, operation: Operation, kind: type[Asked], request: Request) -> Handled:
        caller = read_caller(request.headers)
        asked = read_query(kind, request)
        with self._service.reading(caller):
            if operation.streams:  # the hub limits how many
                return await operation.handler(caller, asked)
            with self.waiting:
                return await self._run(request, operation.handler(caller, asked), cancel=True)

    async def _run(self, request: Request, work: Awaitable[Handled], *, cancel: bool) -> Handled:
        """Return the result of ``work``.  Raises ClientDisconnect when the caller hangs up.

        ``work`` is then cancelled, or goes on to its end without a place.
        """
        task = asyncio.ensure_future(work)
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

    def _abandoned_ended(self, task: asyncio.Future[Handled]) -> None:
        self._abandoned.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OffsetManagerError):
            log.error("request_failed", exc_info=error)


class Quota:
    """How many requests of one kind are under way; a context manager for each of them."""

    def __init__(self, limit: int, kind: str) -> None:
        self.taken = 0
        self._limit = limit
        self._kind = kind

    def __enter__(self) -> None:
        """Raise OverloadedError where the limit is reached."""
        if self.taken >= self._limit:
            text = f"{self._limit} {self._kind} are under way, which is the limit; try again later"
            raise OverloadedError(text)
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.taken -= 1


async def _done_or_hung_up(request: Request, task: asyncio.Future[Any]) -> None:
    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.create_task(hung_up())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if not task.done():
        raise ClientDisconnect


class _EventStream(StreamingResponse):
    """Events until the reader or the service goes; the reader is always unsubscribed."""

    def __init__(self, hub: EventHub, reader: Subscription) -> None:
        headers = {"cache-control": "no-store"}
        super().__init__(hub.stream(reader), media_type="text/event-stream", headers=headers)
        self._hub = hub
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.unsubscribe(self._reader)


# The application


def application(api: Api, *, hosts: frozenset[str] | None, instance: str) -> ASGIApp:
    """Return the API as an ASGI application.

    ``hosts`` are the names that a Host header may carry, None for any; ``instance`` is this
    process's id, which every answer carries.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in api.operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes = []
    for path, by_method in by_path.items():
        route = Route(path, partial(_answer, api, by_method), methods=list(by_method))
        if route.methods and any(each.streams for each in by_method.values()):
            # Starlette offers HEAD with every GET; here it would take a reader's place for ever.
            route.methods.discard("HEAD")
        routes.append(route)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _router_error})
    app.router.redirect_slashes = False
    return Middleware(app, hosts, instance)


async def _answer(api: Api, by_method: dict[str, Operation], request: Request) -> Response:
    operation = by_method["GET" if request.method == "HEAD" else request.method]
    try:
        return await api.handle(operation, request)
    except Exception:
        log.exception("request_failed", method=request.method, path=request.url.path)
        body = ErrorBody("internal", "the service failed at this request; see its log")
        return json_response(ErrorAnswer(body), HTTPStatus.INTERNAL_SERVER_ERROR)


async def _router_error(request: Request, error: Exception) -> Response:
    """Return the answer where there is no such path, or not with this method."""
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    where = f"{request.method} {request.url.path}"
    texts: dict[int, tuple[str, str]] = {
        404: ("not_found", f"there is no {where}; see /openapi.json"),
        405: ("method_not_allowed", f"{where} is not offered; see /openapi.json"),
    }
    code, message = texts.get(status, ("http_error", error.detail))
    response = error_response(HttpStatusError(status, code, message))
    response.headers.update(error.headers or {})
    return response


class Middleware:
    """Refuses foreign hosts and requests for another process; adds the instance's id."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, instance: str) -> None:
        self._app = app
        self._hosts = hosts
        self._instance = (INSTANCE.lower().encode(), instance.encode())

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
                return HttpStatusError(HTTPStatus.MISDIRECTED_REQUEST, "foreign_host", text)
        meant_for = [value for name, value in scope["headers"] if name == self._instance[0]]
        if meant_for not in ([], [self._instance[1]]):
            return HttpStatusError(
                HTTPStatus.PRECONDITION_FAILED,
                "other_instance",
                f"the request names another process of the service ({INSTANCE}), so it may be out "
                "of date; nothing was done; send your newest offsets without that header",
            )
        return None


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    bare, colon, port = text.rpartition(":")
    return bare if colon and port.isdigit() else text
