"""The HTTP API: requests become calls of the service, errors become answers."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from offsetmgr.errors import OffsetManagerError
from offsetmgr.service.errors import MissingError, RefusedRequestError
from offsetmgr.service.messages import (
    ErrorAnswer,
    ErrorBody,
    HeartbeatAnswer,
    LiveAnswer,
)
from offsetmgr.service.middleware import CallerGoneError, Place, Places
from offsetmgr.service.operations import (
    CLIENT,
    DEFAULT_WAIT_S,
    LAST_EVENT,
    MAX_WAIT_S,
    OPERATIONS,
    document,
)
from offsetmgr.service.reads import MAX_PAGE, PAGE, Filter, read_cursor
from offsetmgr.service.request_parsing import Query, read_body, read_caller, read_count
from offsetmgr.service.serialisation import encode, error_response, json_response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.decoder import Decoder
    from offsetmgr.service.events import EventHub, Subscription
    from offsetmgr.service.health import Health
    from offsetmgr.service.metrics import Metrics
    from offsetmgr.service.reads import Reads
    from offsetmgr.service.sessions import Caller

    Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_T = TypeVar("_T")

MAX_TOPICS: Final = 1_000
"""Topics in one query."""

_STREAMS: Final = {each.path for each in OPERATIONS if each.media_type == "text/event-stream"}
_QUERIES: Final = {each.name: each.queries() for each in OPERATIONS}

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
        version: str,
    ) -> None:
        self.places = Places()
        self._service = service
        self._reads = reads
        self._decoder = decoder
        self._hub = hub
        self._metrics = metrics
        self._health = health
        self._document = encode(document(version))
        # For what takes long with many managers; one at a time, as they would share the GIL.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsetmgr-reads")

    def close(self) -> None:
        """Take no more reads that need the worker."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    # Writes

    async def open(self, request: Request) -> Response:
        caller, body = await self._write(request)
        work = self._service.open(caller, self._decoder.open(body))
        return json_response(await self.places.run(request, work, cancel=False))

    async def submit(self, request: Request) -> Response:
        caller, body = await self._write(request)
        asked = self._decoder.submit(body)
        if asked.wait:
            request.state.place.move(self.places.waiting)
        work = self._service.submit(caller, asked)
        return json_response(await self.places.run(request, work, cancel=False))

    async def flush(self, request: Request) -> Response:
        caller, body = await self._write(request)
        work = self._service.flush(caller, self._decoder.flush(body))
        return json_response(await self.places.run(request, work, cancel=False))

    async def stop(self, request: Request) -> Response:
        caller, body = await self._write(request)
        work = self._service.stop(caller, self._decoder.stop(body))
        return json_response(await self.places.run(request, work, cancel=False))

    async def heartbeat(self, request: Request) -> Response:
        caller, body = await self._write(request)
        self._decoder.heartbeat(body)
        lease_s = await self._service.heartbeat(caller)
        return json_response(HeartbeatAnswer(lease_s, self._hub.newest))

    async def _write(self, request: Request) -> tuple[Caller, bytes]:
        caller = read_caller(request.headers)
        if caller is None:
            fix = "name the client in this header; it also keeps web pages out"
            raise MissingError(CLIENT, fix)
        return caller, await read_body(request)

    # Reads

    @contextmanager
    def _reading(self, request: Request, operation: str) -> Iterator[Query]:
        """Yield the query of a request, whose client keeps its lease meanwhile."""
        caller = read_caller(request.headers)
        name = None if caller is None else caller.name
        with nullcontext() if caller is None else self._service.looking(caller):
            yield Query(request.query_params, _QUERIES[operation], name)

    async def managers(self, request: Request) -> Response:
        with self._reading(request, "managers") as query:
            wanted = Filter(group=query.group(), client=query.text("client"))
            limit = query.count("limit", PAGE, 1, MAX_PAGE)
            after = query.text("after")
            start = None if after is None else read_cursor(after)
            return json_response(
                await self._in_worker(lambda: self._reads.managers(wanted, limit, start))
            )

    async def initial_offsets(self, request: Request) -> Response:
        with self._reading(request, "initial_offsets") as query:
            wait_s = query.seconds("wait_s", DEFAULT_WAIT_S, MAX_WAIT_S)
            group = query.group(required=True)
            wanted = Filter(group, query.client, query.topic(), query.partition())
            return json_response(await self._reads.initial_offsets(wanted, wait_s))

    async def committed(self, request: Request) -> Response:
        with self._reading(request, "committed") as query:
            group = query.group(required=True) or ""
            topics, timeout_s = query.topics(MAX_TOPICS), _kafka_timeout_s(query)
            return json_response(await self._reads.committed(group, topics, timeout_s))

    async def topics(self, request: Request) -> Response:
        with self._reading(request, "topics") as query:
            names = query.topics(MAX_TOPICS, required=True)
            at_ms, stable = query.time_ms("at_ms"), query.flag("stable")
            timeout_s = _kafka_timeout_s(query)
            return json_response(await self._reads.topics(names, at_ms, timeout_s, stable=stable))

    async def topic_names(self, request: Request) -> Response:
        with self._reading(request, "topic_names") as query:
            return json_response(await self._reads.topic_names(_kafka_timeout_s(query)))

    async def events(self, request: Request) -> Response:
        with self._reading(request, "events") as query:
            last = request.headers.get(LAST_EVENT)
            after = None if last is None else read_count(LAST_EVENT, last)
            return _EventStream(self._hub, self._hub.subscribe(query.client, query.group(), after))

    async def _in_worker(self, do: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, do)

    # Operating

    async def live(self, _: Request) -> Response:
        return json_response(LiveAnswer(live=True))

    async def ready(self, _: Request) -> Response:
        answer = self._health.ready()
        status = HTTPStatus.OK if answer.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(answer, status)

    async def metrics(self, _: Request) -> Response:
        page = await self._in_worker(self._metrics.page)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, _: Request) -> Response:
        return Response(self._document, media_type="application/json")


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


def _kafka_timeout_s(query: Query) -> float:
    return query.seconds("timeout_s", math.inf, MAX_WAIT_S)


def application(api: Api) -> Starlette:
    """Return the API as an ASGI application, without the middleware."""
    paths: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = getattr(api, operation.name)
    routes = []
    for path, handlers in paths.items():
        route = Route(path, _endpoint(api.places, handlers), methods=list(handlers))
        if path in _STREAMS and route.methods is not None:
            # Starlette offers HEAD with every GET; here it would take a reader's place for ever.
            route.methods.discard("HEAD")
        routes.append(route)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _router_error})
    app.router.redirect_slashes = False
    return app


def _endpoint(places: Places, handlers: dict[str, Handler]) -> Handler:
    async def in_place(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler, path = handlers[method], request.url.path
        if path in {"/livez", "/readyz"} or path in _STREAMS:
            return await handler(request)
        if method != "GET":
            with Place(places.requests) as request.state.place:
                return await handler(request)
        with Place(places.waiting if path.startswith("/v1/") else places.requests):
            return await places.run(request, handler(request), cancel=True)

    async def answer(request: Request) -> Response:
        try:
            return await in_place(request)
        except OffsetManagerError as error:
            return error_response(error)
        except CallerGoneError:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # which nobody reads

    async def answer_always(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception:
            log.exception("request_failed", method=request.method, path=request.url.path)
            body = ErrorBody("internal", "the service failed at this request; see its log")
            return json_response(ErrorAnswer(body), HTTPStatus.INTERNAL_SERVER_ERROR)

    return answer_always


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
    response = error_response(RefusedRequestError(status, code, message))
    response.headers.update(error.headers or {})
    return response
