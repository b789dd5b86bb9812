"""The HTTP API: its operations, and the way of a request to its handler.

Requests that wait (reads, and submits that wait for Kafka) have a limit of their own, so that they
never shut out heartbeats and submits during an outage.  A caller that hangs up frees its place.
"""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import anyio
import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from offsetmgr.errors import InvalidValueError, OffsetManagerError, OverloadedError, shown
from offsetmgr.service import messages
from offsetmgr.service.errors import HttpStatusError, MissingError, explained, schema_of
from offsetmgr.service.messages import (
    CLIENT,
    INCARNATION,
    INSTANCE,
    LAST_EVENT,
    Caller,
    encode,
    error_body,
    status_of,
)
from offsetmgr.service.openapi import Operation, document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from starlette.datastructures import Headers
    from starlette.types import Receive, Scope, Send

    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.events import EventHub, Subscription
    from offsetmgr.service.health import Health
    from offsetmgr.service.metrics import Metrics
    from offsetmgr.service.reads import ServiceReads

Answer: TypeAlias = msgspec.Struct | Response
_R = TypeVar("_R", bound=messages.ApiRequest)

REQUESTS: Final = 1_000
"""Requests under way at once that do not wait."""

WAITING: Final = 1_000
"""Requests under way at once that wait."""

BODY_BYTES: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0
RETRY_AFTER_S: Final = 1

log = structlog.get_logger("offsetmgr.http")


class Api:
    """The HTTP API as an ASGI application over the service's parts."""

    def __init__(
        self,
        service: OffsetService,
        reads: ServiceReads,
        hub: EventHub,
        metrics: Metrics,
        health: Health,
        *,
        version: str,
        hosts: frozenset[str] | None,
        instance: str,
        further: Sequence[Operation] = (),
    ) -> None:
        """``further`` operations are offered beside those of this table.

        ``hosts`` are the names that a Host header may carry, None for any.  ``instance`` is this
        process's id, which every answer carries.
        """
        self.working = Quota(REQUESTS, "requests")
        self.waiting = Quota(WAITING, "waiting requests")
        self._service = service
        self._reads = reads
        self._hub = hub
        self._metrics = metrics
        self._health = health
        self._hosts = hosts
        self._instance = instance
        self._abandoned: set[asyncio.Future[Answer]] = set()
        self.operations = (*self._operations(), *further)
        self._routes: dict[re.Pattern[str], dict[str, Operation]] = {}
        for each in self.operations:
            path = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(each.path))
            self._routes.setdefault(re.compile(path), {})[each.method] = each
        self._document = encode(document(version, self.operations))

    def _operations(self) -> tuple[Operation, ...]:
        service, reads = self._service, self._reads
        return (
            Operation(
                "POST", "/v1/managers", "open", "Have managers for partitions (idempotent)",
                service.open, messages.OpenRequest, messages.OpenAnswer,
            ),
            Operation(
                "GET", "/v1/managers", "managers", "List managers",
                reads.managers, messages.ManagersQuery, messages.ManagersAnswer,
            ),
            Operation(
                "GET", "/v1/initial-offsets", "initial_offsets",
                "What was committed when the managers started; waits until Kafka told",
                reads.initial_offsets, messages.InitialOffsetsQuery, messages.InitialOffsetsAnswer,
            ),
            Operation(
                "POST", "/v1/offsets", "submit", "Submit offsets of one group",
                service.submit, messages.SubmitRequest, messages.SubmitAnswer,
            ),
            Operation(
                "POST", "/v1/rewind", "rewind", "Set offsets of live managers, whoever owns them",
                service.rewind, messages.SubmitRequest, messages.SubmitAnswer,
            ),
            Operation(
                "GET", "/v1/offsets", "committed", "What Kafka says is committed now",
                reads.committed, messages.CommittedQuery, messages.OffsetsAnswer,
            ),
            Operation(
                "GET", "/v1/topics", "topics", "Partitions of topics and the ends of their logs",
                reads.topics, messages.TopicsQuery, messages.TopicsAnswer,
            ),
            Operation(
                "GET", "/v1/topic-names", "topic_names", "Topics of the cluster, but Kafka's own",
                reads.topic_names, messages.TopicNamesQuery, messages.TopicNamesAnswer,
            ),
            Operation(
                "POST", "/v1/flush", "flush", "Commit what the client's managers hold",
                service.flush, messages.FlushRequest, messages.FlushAnswer,
            ),
            Operation(
                "POST", "/v1/stop", "stop", "Commit what the client's managers hold and stop them",
                service.stop, messages.StopRequest, messages.FlushAnswer,
            ),
            Operation(
                "POST", "/v1/heartbeat", "heartbeat", "Renew the client's lease",
                self._heartbeat, messages.HeartbeatRequest, messages.HeartbeatAnswer,
            ),
            Operation(
                "GET", "/v1/events", "events",
                "Server-sent events: committed, failed, stopped, dropped",
                self._events, messages.EventsQuery, media_type="text/event-stream",
            ),
            Operation(
                "GET", "/livez", "live", "Whether the process lives",
                self._live, answer=messages.LiveAnswer,
            ),
            Operation(
                "GET", "/readyz", "ready", "Whether the service is of use now", self._ready,
                answer=messages.ReadyAnswer, others={503: messages.ReadyAnswer},
            ),
            Operation(
                "GET", "/metrics", "metrics", "Prometheus metrics",
                self._page, media_type="text/plain",
            ),
            Operation("GET", "/openapi.json", "openapi", "This document", self._openapi),
        )  # fmt: skip

    # Handlers that are not those of the parts

    async def _heartbeat(self, caller: Caller, _: object) -> messages.HeartbeatAnswer:
        return messages.HeartbeatAnswer(await self._service.heartbeat(caller), self._hub.newest)

    async def _events(self, caller: Caller | None, asked: messages.EventsQuery) -> Response:
        client = None if caller is None else caller.name
        return _EventStream(self._hub, self._hub.subscribe(client, asked.group, asked.after))

    async def _live(self, *_: object) -> messages.LiveAnswer:
        return messages.LiveAnswer(live=True)

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except Exception:
            log.exception("request_failed", method=request.method, path=scope["path"])
            text = "the service failed at this request; see its log"
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            response = error_response(HttpStatusError(status, "internal", text))
        response.headers[INSTANCE] = self._instance
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            answer = await self._handle(request)
        except OffsetManagerError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # which nobody reads
        return answer if isinstance(answer, Response) else json_response(answer)

    async def _handle(self, request: Request) -> Answer:
        self._check_host(request.headers.getlist("host"))
        if request.headers.getlist(INSTANCE) not in ([], [self._instance]):
            raise HttpStatusError(
                HTTPStatus.PRECONDITION_FAILED,
                "other_instance",
                f"the request names another process of the service ({INSTANCE}), so it may be out "
                "of date; nothing was done; send your newest offsets without that header",
            )
        operation = self._operation(request)
        if operation.request is None:
            return await self._plain(operation, request)
        caller = read_caller(request.headers)
        if operation.method == "POST":
            return await self._write(operation, operation.request, caller, request)
        asked = read_query(operation.request, request)
        with self._service.reading(caller):
            if operation.streams:  # the hub limits how many
                return await operation.handler(caller, asked)
            with self.waiting:
                return await self._run(request, operation.handler(caller, asked), cancel=True)

    def _check_host(self, hosts: list[str]) -> None:
        if self._hosts is None:
            return
        host = hosts[0].lower() if len(hosts) == 1 else ""
        bare, colon, port = host.rpartition(":")
        if (bare if colon and port.isdigit() else host) not in self._hosts:
            text = (
                f"this service has no name {shown(', '.join(hosts))}; give one of "
                f"{', '.join(sorted(self._hosts))} as the host in its url"
            )
            raise HttpStatusError(HTTPStatus.MISDIRECTED_REQUEST, "foreign_host", text)

    def _operation(self, request: Request) -> Operation:
        """Return what is asked for; fill in the parameters of its path.  Raises HttpStatusError."""
        path = request.scope["path"]
        where = f"{request.method} {path}"
        for pattern, by_method in self._routes.items():
            found = pattern.fullmatch(path)
            if found is None:
                continue
            request.scope["path_params"] = found.groupdict()
            head = request.method == "HEAD"
            operation = by_method.get("GET" if head else request.method)
            # The HEAD of a stream would take a reader's place for ever.
            if operation is not None and not (head and operation.streams):
                return operation
            text = f"{where} is not offered; see /openapi.json"
            allow = {"allow": ", ".join(by_method)}
            raise HttpStatusError(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", text, allow)
        text = f"there is no {where}; see /openapi.json"
        raise HttpStatusError(HTTPStatus.NOT_FOUND, "not_found", text)

    async def _plain(self, operation: Operation, request: Request) -> Answer:
        if operation.path in {"/livez", "/readyz"}:
            return await operation.handler(None, None)
        with self.working:
            return await self._run(request, operation.handler(None, None), cancel=True)

    async def _write(
        self,
        operation: Operation,
        kind: type[messages.ApiRequest],
        caller: Caller | None,
        request: Request,
    ) -> Answer:
        if caller is None:
            raise MissingError(CLIENT, "name the client there; it also keeps web pages out")
        with self.working:
            asked = decode(kind, await read_body(request))
        waits = isinstance(asked, messages.SubmitRequest) and asked.wait
        with self.waiting if waits else self.working:
            return await self._run(request, operation.handler(caller, asked), cancel=False)

    async def _run(self, request: Request, work: Awaitable[Answer], *, cancel: bool) -> Answer:
        """Return the result of ``work``.  Raises ClientDisconnect when the caller hangs up.

        ``work`` is then cancelled, or goes on to its end without a place.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.create_task(_hung_up(request))
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if cancel:
                task.cancel()
            elif not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._abandoned_ended)
        if not task.done():
            raise ClientDisconnect
        return task.result()

    def _abandoned_ended(self, task: asyncio.Future[Answer]) -> None:
        self._abandoned.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OffsetManagerError):
            log.error("request_failed", exc_info=error)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Quota:
    """Limits the requests of one kind under way; a context manager for each of them."""

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


# Requests


def read_caller(headers: Headers) -> Caller | None:
    """Return who sends the request, None where nobody is named.  Raises InvalidValueError."""
    if CLIENT not in headers:
        return None
    values = {name: headers[name] for name in (CLIENT, INCARNATION) if name in headers}
    try:
        values[CLIENT] = unquote_to_bytes(values[CLIENT].encode("ascii")).decode()
    except UnicodeError:
        fix = "send the name as UTF-8 with everything beyond ASCII as %XX"
        raise InvalidValueError(
            CLIENT, values[CLIENT], "is not percent-encoded UTF-8", fix
        ) from None
    return _converted(values, Caller, "")


def read_query(kind: type[_R], request: Request) -> _R:
    """Return the query, with the parameters of the path.  Raises InvalidValueError."""
    values: dict[str, Any] = dict(request.path_params)
    properties = schema_of(kind)["properties"]
    if LAST_EVENT in properties and LAST_EVENT in request.headers:
        values[LAST_EVENT] = request.headers[LAST_EVENT]
    for name in request.query_params:
        given = request.query_params.getlist(name)
        if properties.get(name, {}).get("type") == "array":
            values[name] = list(dict.fromkeys(given))
        elif len(given) > 1:
            raise InvalidValueError(f"query.{name}", given[1], "is given twice", "give it once")
        else:
            values[name] = given[0]
    return _converted(values, kind, "query.")


def _converted(values: dict[str, Any], kind: type[_R], place: str) -> _R:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explained(error, kind, values, lambda path: place + path.removeprefix(".")) from None


async def read_body(request: Request) -> bytes:
    """Return the body of a JSON request.

    Raises HttpStatusError where it is not JSON (415), too large (413) or too slow (408), and
    Starlette's ClientDisconnect.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "the body must be JSON; send it with Content-Type: application/json"
        raise HttpStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", text)
    # The server has checked that it is a number, of at most 20 digits.
    too_large = int(request.headers.get("content-length", "0")) > BODY_BYTES
    body = bytearray()
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            chunks = request.stream()
            while not too_large and (chunk := await anext(chunks, None)) is not None:
                body += chunk
                too_large = len(body) > BODY_BYTES
    except TimeoutError:
        text = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise HttpStatusError(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", text) from None
    if too_large:
        text = f"the body is larger than {BODY_BYTES} bytes; send fewer offsets in one request"
        raise HttpStatusError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", text)
    return bytes(body)


def decode(kind: type[_R], body: bytes) -> _R:
    """Return a body as ``kind``.  Raises InvalidValueError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise _refused(error, kind, body) from None


def _refused(error: Exception, kind: type[messages.ApiRequest], body: bytes) -> InvalidValueError:
    try:
        # A number of a hundred digits is too large wherever it is, and Python reads it.
        given = json.loads(body, parse_int=lambda digits: int(digits[:100]))
        if isinstance(error, msgspec.ValidationError):
            return explained(error, kind, given, lambda path: path.removeprefix(".") or "body")
    except (ValueError, RecursionError) as worse:  # not JSON, not UTF-8, or nested too deeply
        error = worse
    fix = "send one JSON object, encoded in UTF-8"
    return InvalidValueError("body", body[:40], f"is not JSON ({error})", fix)


# Answers


def json_response(answer: msgspec.Struct | dict[str, Any], status: int = HTTPStatus.OK) -> Response:
    return Response(encode(answer), status, media_type="application/json")


def error_response(error: OffsetManagerError) -> Response:
    response = json_response(messages.ErrorAnswer(error_body(error)), status_of(error))
    if isinstance(error, HttpStatusError):
        response.headers.update(error.headers)
    if isinstance(error, OverloadedError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response
