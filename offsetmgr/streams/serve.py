"""A view over HTTP: keys, ranges and its status, as JSON."""

from __future__ import annotations

import re
import signal
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

import msgspec
import uvloop

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.answers import encode, json_response, page_of
from offsetmgr.http.errors import HttpStatusError
from offsetmgr.http.files import Tokens, bearer_token, unauthorized
from offsetmgr.http.front import REQUESTS, Front, Quota
from offsetmgr.http.server import Server
from offsetmgr.http.signals import take_over
from offsetmgr.streams.codecs import whole
from offsetmgr.streams.errors import ViewError
from offsetmgr.streams.messages import decode_key, encode_key, shown_key
from offsetmgr.streams.rows import prefix_end
from offsetmgr.text import error_text

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from offsetmgr.streams.rows import RowIterator
    from offsetmgr.streams.view import View

MOST_ROWS: Final = 10_000
"""Of one answer."""
DEFAULT_ROWS: Final = 1_000
_KEYS: Final = b"/v1/keys/"
_BYTES: Final = "surrogateescape"
"""Queries hold any bytes, as keys do."""
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_ROWS_QUERY: Final = {"prefix", "start", "limit", "count"}


class ViewApp:
    """An ASGI application that answers from a view."""

    def __init__(
        self, view: View, hosts: frozenset[str] | None = None, tokens: str | None = None
    ) -> None:
        """``hosts`` are the names that a request's Host header may have; None permits any.

        ``tokens`` is the path of a file with tokens, one of which every request needs; without it
        none is needed.  Raises InvalidValueError where the file is of no use.
        """
        self.view = view
        self._tokens = None if tokens is None else Tokens({"view": ("--tokens", tokens)})
        self._working = Quota(REQUESTS, "requests")
        self._front = Front(self._respond, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front(scope, receive, send)

    def refresh(self) -> None:
        """Read the file of the tokens if it has changed; call it every second or so."""
        if self._tokens is not None:
            self._tokens.refresh()

    async def _respond(self, request: Request) -> Response:
        token = bearer_token(request.headers)
        if self._tokens is not None and self._tokens.owner_of(token or b"") is None:
            raise unauthorized(token)
        who = request.scope["who"] = "" if request.client is None else request.client.host
        with self._working.place(who):
            return self._answer(request)

    def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if request.method not in {"GET", "HEAD"}:
            text = "a view is only read: send a GET"
            status = HTTPStatus.METHOD_NOT_ALLOWED
            raise HttpStatusError(status, "method_not_allowed", text, {"allow": "GET, HEAD"})
        try:
            raw: bytes = request.scope["raw_path"]  # as a key need not be UTF-8
            if raw.startswith(_KEYS):
                return self._key(unquote_to_bytes(raw[len(_KEYS) :]))
            if path == "/v1/rows":
                text = request.scope["query_string"].decode("latin-1")
                given = parse_qsl(text, keep_blank_values=True, errors=_BYTES)
                return self._rows(dict(given))
            if path == "/v1/status":
                return json_response(status_report(self.view))
        except ViewError as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise HttpStatusError(status, error.code, str(error)) from None
        text = f"{path} does not exist; give /v1/keys/KEY, /v1/rows or /v1/status"
        raise HttpStatusError(HTTPStatus.NOT_FOUND, "not_found", text)

    def _check_caught_up(self) -> None:
        """Raise ViewError until the whole table was read: a row that is missing may still come."""
        view = self.view
        if not view.has_caught_up:
            why = next((part.error for part in view.stats().partitions if part.error), None)
            text = (
                f"the view of {view.topic} is {view.state.name.lower()}, and has not read all rows"
            )
            raise ViewError(f"{text}: {why}" if why else f"{text}: ask again")

    def _key(self, raw: bytes) -> Response:
        self._check_caught_up()
        key = decode_key(raw)
        try:
            value = self.view.get(key)
            encoded = msgspec.Raw(encode(whole(value)))
        except ViewError:
            raise
        except BaseException as error:  # noqa: BLE001 -- codecs raise anything
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise HttpStatusError(status, "undecodable", _undecodable(error)) from None
        if value is None and not self.view.has(key):
            text = f"the view has no row of key {shown_key(key)!r}"
            raise HttpStatusError(HTTPStatus.NOT_FOUND, "key_not_found", text)
        return json_response({"key": shown_key(key), "value": encoded})

    def _rows(self, query: dict[str, str]) -> Response:
        self._check_caught_up()
        unknown = sorted(set(query) - _ROWS_QUERY)
        if unknown:
            fix = "give prefix, start, limit or count"
            raise InvalidValueError("query", unknown[0], "is unknown", fix)
        start, end = _range(query)
        number = _count(query.get("count"))
        found = self.view.between(start, end)
        rows, after = page_of(_encoded_rows(found), number)
        answer = {"rows": rows, "next": None if after is None else after["key"]}
        if after is not None and encode_key(after["key"]) != found.last_key:  # it is not UTF-8
            further = urlencode({**query, "start": found.last_key}, errors=_BYTES)
            answer["next_url"] = f"/v1/rows?{further}"
        return json_response(answer)


def serve(app: ViewApp, sock: socket.socket) -> None:
    """Serve ``app`` on ``sock`` until its view has failed, or until SIGTERM, SIGINT or SIGHUP.

    One that was remembered since `remember_signals` ends it at once.
    """
    server = Server(app)

    def stop_if_failed() -> None:
        if app.view.stats().error is not None:
            server.stop()

    async def run() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            take_over(number, server.stop)
        await server.serve(sock, app.refresh, stop_if_failed)

    uvloop.run(run())


def status_report(view: View) -> dict[str, Any]:
    """Return a view's stats as JSON has them: states in lower case."""
    stats = view.stats()
    partitions = [{**part._asdict(), "state": part.state.name.lower()} for part in stats.partitions]
    return {**stats._asdict(), "state": stats.state.name.lower(), "partitions": partitions}


def _encoded_rows(found: RowIterator) -> Iterator[dict[str, Any]]:
    """Yield rows for JSON; one that cannot be decoded has an error instead of a value."""
    while True:
        row: dict[str, Any]
        try:
            _, value = next(found)
            row = {"value": msgspec.Raw(encode(whole(value)))}
        except StopIteration:
            return
        except ViewError:
            raise
        except BaseException as error:  # noqa: BLE001 -- codecs raise anything
            row = {"value": None, "error": _undecodable(error)}
        yield {"key": shown_key(decode_key(found.last_key)), **row}


def _undecodable(error: BaseException) -> str:
    text = f"a row cannot be decoded ({error_text(error)})"
    return f"{text}: serve the view with the codec of the table"


def _range(query: Mapping[str, str]) -> tuple[bytes, bytes | None]:
    """Return the first key, and the one after the last; ``prefix`` goes with ``start`` alone."""
    start, prefix = encode_key(query.get("start", "")), encode_key(query.get("prefix", ""))
    limit = encode_key(query.get("limit", ""))
    if prefix and limit:
        fix = "give a prefix, or start and limit"
        raise InvalidValueError("limit", query["limit"], "does not go with a prefix", fix)
    if limit:
        return start, limit
    return max(start, prefix), prefix_end(prefix)


def _count(text: str | None) -> int:
    if text is None:
        return DEFAULT_ROWS
    if not (_DIGITS.fullmatch(text) and 1 <= int(text) <= MOST_ROWS):
        raise InvalidValueError("count", text, "is not possible", f"give 1 to {MOST_ROWS}")
    return int(text)
