"""The front of every HTTP application: checks of the request's target, and its answer.

No web page of another site gets an answer, an error is JSON, and the answers that are being read
have a limit.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from offsetmgr.errors import OffsetManagerError, OverloadedError, shown
from offsetmgr.http.answers import error_response, json_response
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.logs import SafeLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from starlette.types import Receive, Scope, Send

Answer: TypeAlias = Struct | Response
REQUESTS: Final = 1_000
"""Requests under way at once that do not wait."""
LARGE_BYTES: Final = 64 * 1024
"""Bodies and answers up to this size are small."""
ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Of large answers that are being read at once."""

ONCE: Final = re.compile(r"authorization|content-type|last-event-id|offsetmgr-.*|origin")
"""Headers of which a request has one: of two, a proxy before the service may check the other."""

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; "
    # No script can turn a text, such as a hostile group name, into HTML.
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every answer."""

log = SafeLogger("offsetmgr.http")


class Quota:
    """Limits what is under way of one kind; a quarter of it may be of one client."""

    def __init__(self, limit: int, kind: str) -> None:
        self.taken = 0
        self._limit = limit
        self._share = max(1, limit // 4)
        self._kind = kind
        self._by: Counter[str] = Counter()

    @contextmanager
    def place(self, who: str, amount: int = 1) -> Iterator[None]:
        """Take ``amount`` while inside.  Raises OverloadedError where a limit is reached.

        What is alone is never too much.
        """
        for taken, limit, whose in (
            (self.taken, self._limit, ""),
            (self._by[who], self._share, " of one client"),
        ):
            if taken and taken + amount > limit:
                text = f"{taken} {self._kind}{whose} are under way, and {limit} is the limit"
                raise OverloadedError(f"{text}; try again later")
        self.taken += amount
        self._by[who] += amount
        try:
            yield
        finally:
            self.taken -= amount
            self._by[who] -= amount
            if not self._by[who]:
                del self._by[who]


class Front:
    """An ASGI application around ``answer``, which may raise OffsetManagerError."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Answer]],
        hosts: frozenset[str] | None,
        headers: Mapping[str, str] = {},
    ) -> None:
        """``hosts`` are the values that a Host header may have, ``headers`` those of each answer.

        ``answer`` sets ``request.scope["who"]``, the client whose share a large answer takes.
        """
        self.answers = Quota(ANSWER_BYTES, "bytes of answers")
        self._answer = answer
        self._hosts = hosts
        self._headers = {**SECURITY_HEADERS, **headers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing but the encoded answer is kept while its reader takes it.
        response = await self._respond(Request(scope, receive))
        response.headers.update(self._headers)
        if isinstance(response, StreamingResponse) or len(response.body) <= LARGE_BYTES:
            await response(scope, receive, send)
            return
        try:
            with self.answers.place(scope.get("who", ""), len(response.body)):
                await _send_in_pieces(response, send)
        except OverloadedError as error:
            refusal = error_response(error)
            refusal.headers.update(self._headers)
            await refusal(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            self._check_host(request)
            _check_repeats(request)
            _check_origin(request)
            answer = await self._answer(request)
            return answer if isinstance(answer, Response) else json_response(answer)
        except OffsetManagerError as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # which nobody reads
        except Exception:
            log.exception("request_failed", method=request.method, path=request.scope["path"])
            text = "the service failed at this request; see its log"
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return error_response(HttpStatusError(status, "internal", text))

    def _check_host(self, request: Request) -> None:
        hosts = request.headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        bare, colon, port = host.rpartition(":")
        name = bare if colon and port.isdigit() else host
        own = (request.scope.get("server") or [""])[0]  # the name that probes use
        if self._hosts is not None and name not in self._hosts and name.strip("[]") != own:
            text = (
                f"this service has no name {shown(', '.join(hosts))}; give one of "
                f"{', '.join(sorted(self._hosts))} as the host in its url"
            )
            raise HttpStatusError(HTTPStatus.MISDIRECTED_REQUEST, "foreign_host", text)


def _check_repeats(request: Request) -> None:
    """Raise HttpStatusError for a second header of a name in ONCE, and for two lengths of a body.

    Of two lengths a proxy before the service may know the other one, and take a part of the body
    for a request of its next client.
    """
    for name, count in Counter(request.headers.keys()).items():
        if count > 1 and ONCE.fullmatch(name):
            text = f"the header {name} is given {count} times; send it once"
            raise HttpStatusError(HTTPStatus.BAD_REQUEST, "invalid_value", text)
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        text = "content-length is given as well as transfer-encoding; send one of the two"
        close = {"connection": "close"}
        raise HttpStatusError(HTTPStatus.BAD_REQUEST, "invalid_value", text, close)


def _check_origin(request: Request) -> None:
    """Raise HttpStatusError for a request of another site's page; a link to ours is fine."""
    host = request.headers.get("host", "").lower()
    origin = request.headers.get("origin", f"{request.url.scheme}://{host}").lower()
    site = request.headers.get("sec-fetch-site", "none")
    is_link = (
        request.scope["path"] == "/"
        and request.method == "GET"
        and request.headers.get("sec-fetch-dest") == "document"
    )
    if origin.partition("://")[2] != host or not (is_link or site in {"none", "same-origin"}):
        text = "a web page of another site may not ask this service"
        raise HttpStatusError(HTTPStatus.FORBIDDEN, "foreign_origin", text)


async def _send_in_pieces(response: Response, send: Send) -> None:
    """Send it as it is read, so that no more of it than a piece waits in a buffer."""
    start = {"status": response.status_code, "headers": response.raw_headers}
    await send({"type": "http.response.start", **start})
    for at in range(0, len(response.body), LARGE_BYTES):
        piece = response.body[at : at + LARGE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
