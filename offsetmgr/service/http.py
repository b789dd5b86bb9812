"""The HTTP API: requests become calls of the service, errors become answers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from offsetmgr.errors import OffsetManagerError, OverloadedError
from offsetmgr.service.incoming import Query, read_body, read_caller, read_count
from offsetmgr.service.messages import (
    ErrorAnswer,
    ErrorBody,
    HeartbeatAnswer,
    LiveAnswer,
    SettleAnswer,
)
from offsetmgr.service.openapi import document
from offsetmgr.service.operations import (
    CLIENT,
    DEFAULT_WAIT_S,
    LAST_EVENT,
    MAX_WAIT_S,
    OPERATIONS,
)
from offsetmgr.service.problems import MissingError, RefusedRequestError, error_body, status_of
from offsetmgr.service.reads import MAX_PAGE, PAGE, Filter, read_cursor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.events import EventHub, Subscription
    from offsetmgr.service.health import Health
    from offsetmgr.service.metrics import Metrics
    from offsetmgr.service.operations import Operation
    from offsetmgr.service.reads import Reads
    from offsetmgr.service.sessions import Caller
    from offsetmgr.service.settings import Limits
    from offsetmgr.service.validate import Decoder, Settle

    Handler = Callable[[Request], Awaitable[Response]]

_T = TypeVar("_T")

RETRY_AFTER_S: Final = 1
MAX_TOPICS: Final = 1_000
"""Topics in one query."""

STREAMS: Final = frozenset(
    each.path for each in OPERATIONS if each.media_type == "text/event-stream"
)
"""Answers that do not end by themselves."""

_ENCODE: Final = msgspec.json.Encoder().encode
_BY_NAME: Final[Mapping[str, Operation]] = {each.name: each for each in OPERATIONS}

log = structlog.get_logger("offsetmgr.http")


class Api:
    """A handler for each operation, by its name."""

    def __init__(
        self,
        service: OffsetService,
        reads: Reads,
        decoder: Decoder,
        hub: EventHub,
        metrics: Metrics,
        health: Health,
        limits: Limits,
        version: str,
    ) -> None:
        self._service = service
        self._reads = reads
        self._decoder = decoder
        self._hub = hub
        self._metrics = metrics
        self._health = health
        self._limits = limits
        self._document = _ENCODE(document(OPERATIONS, version))
        # For what takes long with many managers; one at a time, as they would share the GIL.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsetmgr-reads")

    def close(self) -> None:
        """Take no more reads that need the worker."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    # Writes

    async def open(self, request: Request) -> Response:
        """POST /v1/managers."""
        caller, body = await self._write(request)
        return _json(await self._service.open(caller, self._decoder.open(body)))

    async def submit(self, request: Request) -> Response:
        """POST /v1/offsets."""
        caller, body = await self._write(request)
        return _json(await self._service.submit(caller, self._decoder.submit(body)))

    async def flush(self, request: Request) -> Response:
        """POST /v1/flush."""
        return await self._settle(request, self._service.flush)

    async def stop(self, request: Request) -> Response:
        """POST /v1/stop."""
        return await self._settle(request, self._service.stop)

    async def heartbeat(self, request: Request) -> Response:
        """POST /v1/heartbeat."""
        caller, body = await self._write(request)
        self._decoder.heartbeat(body)
        lease_s = await self._service.heartbeat(caller)
        return _json(HeartbeatAnswer(lease_s, self._hub.newest))

    async def _settle(
        self, request: Request, do: Callable[[Caller, Settle], Awaitable[SettleAnswer]]
    ) -> Response:
        caller, body = await self._write(request)
        return _json(await do(caller, self._decoder.settle(body)))

    async def _write(self, request: Request) -> tuple[Caller, bytes]:
        caller = read_caller(request.headers)
        if caller is None:
            fix = "name the client in this header; it also keeps web pages out"
            raise MissingError(CLIENT, fix)
        return caller, await read_body(request, self._limits)

    # Reads

    @contextmanager
    def _reading(self, request: Request, operation: str) -> Iterator[Query]:
        """The query of a reading request, whose client keeps its lease while it waits."""
        caller = read_caller(request.headers)
        name = None if caller is None else caller.name
        with nullcontext() if caller is None else self._service.looking(caller):
            yield Query(request.query_params, _BY_NAME[operation].queries(), name)

    async def managers(self, request: Request) -> Response:
        """GET /v1/managers."""
        with self._reading(request, "managers") as query:
            wanted = Filter(group=query.group(), client=query.text("client"))
            limit = query.count("limit", PAGE, 1, MAX_PAGE)
            after = query.text("after")
            start = None if after is None else read_cursor(after)
            return _json(await self._aside(lambda: self._reads.managers(wanted, limit, start)))

    async def initial_offsets(self, request: Request) -> Response:
        """GET /v1/initial-offsets."""
        with self._reading(request, "initial_offsets") as query:
            wait_s = query.seconds("wait_s", DEFAULT_WAIT_S, MAX_WAIT_S)
            group = query.group(required=True)
            wanted = Filter(group, query.client, query.topic(), query.partition())
            return _json(await self._reads.initial_offsets(wanted, wait_s))

    async def committed(self, request: Request) -> Response:
        """GET /v1/offsets."""
        with self._reading(request, "committed") as query:
            group = query.group(required=True) or ""
            return _json(await self._reads.committed(group, query.topics(MAX_TOPICS)))

    async def topics(self, request: Request) -> Response:
        """GET /v1/topics."""
        with self._reading(request, "topics") as query:
            names = query.topics(MAX_TOPICS, required=True)
            at_ms, stable = query.time_ms("at_ms"), query.flag("stable")
            return _json(await self._reads.topics(names, at_ms, stable=stable))

    async def topic_names(self, request: Request) -> Response:
        """GET /v1/topic-names."""
        with self._reading(request, "topic_names"):
            return _json(await self._reads.topic_names())

    async def events(self, request: Request) -> Response:
        """GET /v1/events."""
        with self._reading(request, "events") as query:
            last = request.headers.get(LAST_EVENT)
            after = None if last is None else read_count(LAST_EVENT, last)
            return _EventStream(self._hub, self._hub.subscribe(query.client, query.group(), after))

    async def _aside(self, do: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, do)

    # Operating

    async def live(self, request: Request) -> Response:
        """GET /livez."""
        del request
        return _json(LiveAnswer(live=True))

    async def ready(self, request: Request) -> Response:
        """GET /readyz."""
        del request
        answer = self._health.ready()
        status = HTTPStatus.OK if answer.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(answer, status)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        del request
        page = await self._aside(self._metrics.page)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        del request
        return Response(self._document, media_type="application/json")


class _EventStream(StreamingResponse):
    """Events until the reader or the service goes; the reader is always signed off."""

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


def application(api: Api) -> Starlette:
    """The API as an ASGI application, without the gate before it."""
    paths: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = getattr(api, operation.name)
    app = Starlette(
        routes=[_route(path, handlers) for path, handlers in paths.items()],
        exception_handlers={HTTPException: _http_problem},
    )
    app.router.redirect_slashes = False
    return app


def _route(path: str, handlers: Mapping[str, Handler]) -> Route:
    route = Route(path, _endpoint(handlers), methods=list(handlers))
    if path in STREAMS and route.methods is not None:
        # Starlette offers HEAD with every GET; here it would take a reader's place, and not end.
        route.methods.discard("HEAD")
    return route


def _endpoint(handlers: Mapping[str, Handler]) -> Handler:
    async def answer(request: Request) -> Response:
        handler = handlers["GET" if request.method == "HEAD" else request.method]
        try:
            return await _outcome(handler, request)
        except Exception:
            log.exception("request_failed", method=request.method, path=request.url.path)
            body = ErrorBody("internal", "the service failed at this request; see its log")
            return _json(ErrorAnswer(body), HTTPStatus.INTERNAL_SERVER_ERROR)

    return answer


async def _outcome(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except OffsetManagerError as error:
        return problem(error)


def problem(error: OffsetManagerError) -> Response:
    """The answer to a request that ended with ``error``."""
    response = _json(ErrorAnswer(error_body(error)), status_of(error))
    if isinstance(error, OverloadedError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


def _json(answer: msgspec.Struct, status: int = HTTPStatus.OK) -> Response:
    return Response(_ENCODE(answer), status, media_type="application/json")


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such path, or not with this method."""
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    where = f"{request.method} {request.url.path}"
    texts: dict[int, tuple[str, str]] = {
        404: ("not_found", f"there is no {where}; see /openapi.json"),
        405: ("method_not_allowed", f"{where} is not offered; see /openapi.json"),
    }
    code, message = texts.get(status, ("http_error", error.detail))
    response = problem(RefusedRequestError(status, code, message))
    response.headers.update(error.headers or {})
    return response
