"""The HTTP API: the way of a request to its handler.

Requests that wait for Kafka have a limit of their own, so that they never shut out heartbeats.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.answers import encode
from offsetmgr.http.connections import client_certificate
from offsetmgr.http.errors import HttpStatusError, MissingError
from offsetmgr.http.front import LARGE_BYTES, REQUESTS, Answer, Front, Quota
from offsetmgr.service import messages
from offsetmgr.service.access import ALL_RIGHTS, OPEN_PATHS, Access, Requester
from offsetmgr.service.errors import WrongValueError, explained, schema_of
from offsetmgr.service.messages import CLIENT, INCARNATION, INSTANCE, LAST_EVENT, Caller
from offsetmgr.service.openapi import Operation, document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from starlette.datastructures import Headers

    from offsetmgr.service.core import OffsetService

_R = TypeVar("_R", bound=messages.ApiRequest)

WAITING: Final = 1_000
"""Requests under way at once that wait for Kafka."""
BODY_BYTES: Final = 8 * 1024 * 1024
LARGE_BODIES: Final = 16
"""Bodies of more than LARGE_BYTES that are received at once; all others are small."""
BODY_TIMEOUT_S: Final = 10.0

_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class Api(Front):
    """The HTTP API as an ASGI application over the service's parts."""

    def __init__(
        self,
        operations: Sequence[Operation],
        access: Access,
        service: OffsetService,
        hosts: frozenset[str] | None,
        *,
        instance: str,
        version: str,
    ) -> None:
        """``hosts`` are the values that a Host header may have; None permits any."""
        super().__init__(self._handle, hosts, {INSTANCE: instance})
        self.working = Quota(REQUESTS, "requests")
        self.waiting = Quota(WAITING, "waiting requests")
        self.large = Quota(LARGE_BODIES, "large requests")
        self._service = service
        self._access = access
        self._instance = instance
        self.operations = operations
        self._routes: dict[re.Pattern[str], dict[str, Operation]] = {}
        for each in operations:
            pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]*)", each.path))
            self._routes.setdefault(pattern, {})[each.method] = each
        self._version = version
        self._files = page_files()

    @cached_property
    def _document(self) -> Response:
        """The OpenAPI document; to make it at each start would take half of the start."""
        described = encode(document(self._version, self.operations))
        return Response(described, media_type="application/json")

    async def _handle(self, request: Request) -> Answer:
        if request.headers.get(INSTANCE, self._instance) != self._instance:
            text = (
                f"the request names another process of the service ({INSTANCE}), so it may be out "
                "of date; nothing was done; send your newest offsets without that header"
            )
            raise HttpStatusError(HTTPStatus.PRECONDITION_FAILED, "other_instance", text)
        path = request.scope["path"]
        if request.method in {"GET", "HEAD"} and (path in self._files or path == "/openapi.json"):
            return self._files.get(path) or self._document
        found = self._operation(request)
        if found.path in OPEN_PATHS:
            return await found.handler(Requester(), None)
        by = self._admit(request, found)
        request.scope["who"] = by.who
        asked: messages.ApiRequest | None = None
        writes = found.method == "POST"
        if found.request is not None:
            if writes:
                with self.working.place(by.who):
                    asked = decode(found.request, await read_body(request, self.large, by.who))
            else:
                asked = read_query(found.request, request)
            self._service.renew(by)
        by.check(lambda: found.needs(asked), changes=found.changes)
        waits = getattr(asked, "wait", False) if writes else asked is not None
        with (self.waiting if waits else self.working).place(by.who):
            work = found.handler(by, asked)
            if writes:
                return await work  # it is carried out even if nobody waits for its answer
            answer = await _unless_hung_up(request, work)
        if not by.is_current():
            text = "the rights of the sender have changed while it waited; ask again"
            raise HttpStatusError(HTTPStatus.FORBIDDEN, "forbidden", text)
        return answer

    def _admit(self, request: Request, operation: Operation) -> Requester:
        """Return the sender of a request, with the client that it names.

        A client is one of its identity: no other identity can speak in its name.
        """
        if operation.path in self._access.open_paths:
            known = Requester(rights=ALL_RIGHTS)
        else:
            known = self._access.identify(request.headers, client_certificate())
        from_page = "origin" in request.headers or "sec-fetch-site" in request.headers
        if operation.changes and from_page and not known.identity:
            text = (
                "a web page may only read here, unless it sends a token; add an [identities.NAME] "
                "with a token_file to the service's settings, and give the page that token"
            )
            raise HttpStatusError(HTTPStatus.FORBIDDEN, "token_needed", text)
        caller = None if operation.request is None else read_caller(request.headers)
        if caller is None and operation.method == "POST":
            raise MissingError(CLIENT, "name the client there; it also keeps web pages out")
        if caller is not None and known.identity:
            name = f"{known.identity}/{caller.name}"
            caller = msgspec.structs.replace(caller, name=name)
        peer = ""
        if request.client is not None:
            host, port = request.client
            peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return known._replace(caller=caller, peer=peer)

    def _operation(self, request: Request) -> Operation:
        """Return what is asked for; fill in the parameters of its path.  Raises HttpStatusError."""
        where = f"{request.method} {request.scope['path']}"
        # Not the decoded path: a name may hold a slash, which stands as %2F.
        raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        for pattern, by_method in self._routes.items():
            match = pattern.fullmatch(raw.decode("latin-1"))
            if match is None:
                continue
            names = match.groupdict()
            request.scope["path_params"] = {name: unquote(names[name]) for name in names}
            head = request.method == "HEAD"
            found = by_method.get("GET" if head else request.method)
            # The HEAD of a stream would take a reader's place forever.
            if found is not None and not (head and found.streams):
                return found
            text = f"{where} is not offered; see /openapi.json"
            allow = {"allow": ", ".join(by_method)}
            raise HttpStatusError(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", text, allow)
        text = f"{where} does not exist; see /openapi.json"
        raise HttpStatusError(HTTPStatus.NOT_FOUND, "not_found", text)


async def _unless_hung_up(request: Request, work: Awaitable[Answer]) -> Answer:
    """Return the result of ``work``.  Raises ClientDisconnect, and ends it, if the caller goes."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(hung_up())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


def page_files() -> dict[str, Response]:
    """Return the page, which is at ``/``, and its parts below ``/page/``, by their paths.

    They hold no data, so anyone who may connect may load them.
    """
    folder = Path(__file__).with_name("page")
    found = {
        f"/page/{each.relative_to(folder).as_posix()}": Response(
            each.read_bytes(), media_type=media_type
        )
        for each in folder.rglob("*")
        if (media_type := _MEDIA_TYPES.get(each.suffix))
    }
    return {"/": found.pop("/page/index.html"), **found}


# Requests


def read_caller(headers: Headers) -> Caller | None:
    """Return who sends the request, None where nobody is named.  Raises InvalidValueError."""
    values = {name: headers[name] for name in (CLIENT, INCARNATION) if name in headers}
    name = values.setdefault(CLIENT, "nobody")  # an incarnation is checked also without a name
    try:
        values[CLIENT] = unquote_to_bytes(name.encode("ascii")).decode()
    except UnicodeError:
        fix = "send the name as UTF-8 with everything beyond ASCII as %XX"
        raise InvalidValueError(CLIENT, name, "is not percent-encoded UTF-8", fix) from None
    caller = _converted(values, Caller, "")
    return caller if CLIENT in headers else None


def read_query(kind: type[_R], request: Request) -> _R:
    """Return the query, with the parameters of the path.  Raises InvalidValueError."""
    raw: bytes = request.scope.get("raw_path", b"") + b"?" + request.scope["query_string"]
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:  # another name would be asked for
        fix = "send names as UTF-8, percent-encoded"
        raise InvalidValueError("url", raw, "is not percent-encoded UTF-8", fix) from None
    values: dict[str, Any] = dict(request.path_params)
    properties = schema_of(kind)["properties"]
    if LAST_EVENT in properties and LAST_EVENT in request.headers:
        values[LAST_EVENT] = request.headers[LAST_EVENT]
    for name in request.query_params:
        given = [values[name]] if name in values else []
        given += request.query_params.getlist(name)
        if properties.get(name, {}).get("type") == "array":
            values[name] = list(dict.fromkeys(given))
        elif len(given) > 1:
            raise InvalidValueError(f"query.{name}", given[1], "is given twice", "give it once")
        else:
            values[name] = given[0]
    return _converted(values, kind, "query.")


def _converted(values: dict[str, Any], kind: type[_R], place: str) -> _R:
    properties = schema_of(kind)["properties"]
    for name, given in values.items():  # msgspec would take the text null for None
        type_ = properties.get(name, {}).get("anyOf", [{}])[0].get("type")
        if type_ in {"integer", "number"} and given.lower() == "null":
            raise WrongValueError(place + name, given, "a number")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explained(error, kind, values, lambda path: place + path.removeprefix(".")) from None


async def read_body(request: Request, large: Quota, who: str) -> bytes:
    """Return the body of a JSON request.

    Raises HttpStatusError where it is not JSON (415), too large (413) or too slow (408),
    OverloadedError, and Starlette's ClientDisconnect.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "the body must be JSON; send it with Content-Type: application/json"
        raise HttpStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", text)
    body = bytearray()
    with ExitStack() as stack:
        stack.callback(body.clear)  # a request that failed may live on until garbage is collected
        try:
            with anyio.fail_after(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    if len(body) <= LARGE_BYTES < len(body) + len(chunk):
                        stack.enter_context(large.place(who))
                    body += chunk
                    if len(body) > BODY_BYTES:
                        text = f"the body is larger than {BODY_BYTES} bytes; send fewer offsets"
                        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                        raise HttpStatusError(status, "body_too_large", text)
        except TimeoutError:
            text = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
            raise HttpStatusError(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", text) from None
        return bytes(body)


def decode(kind: type[_R], body: bytes | msgspec.Raw, place: str = "") -> _R:
    """Return a body, or the part of one at ``place``, as ``kind``.  Raises InvalidValueError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise _refused(error, kind, bytes(body), place) from None


def _refused(error: Exception, kind: type, body: bytes, place: str) -> InvalidValueError:
    try:
        given = msgspec.json.decode(body)
    except (ValueError, RecursionError) as problem:
        fix = "send one JSON object, encoded in UTF-8"
        return InvalidValueError(place or "body", body[:40], f"is not JSON ({problem})", fix)
    return explained(error, kind, given, lambda path: (place + path).removeprefix(".") or "body")
