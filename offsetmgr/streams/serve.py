"""A view over HTTP: keys, ranges and its status, as JSON."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route

from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.streams.errors import ViewError
from offsetmgr.streams.messages import decode_key, encode_key
from offsetmgr.streams.storage import prefix_end

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.requests import Request

    from offsetmgr.streams.view import View

MOST_ROWS: Final = 10_000
"""Of one answer."""
DEFAULT_ROWS: Final = 1_000
_KEYS: Final = b"/v1/keys/"
_ROWS_QUERY: Final = {"prefix", "start", "limit", "count"}

_encode: Final = msgspec.json.Encoder().encode


def view_app(view: View, hosts: Collection[str] | None = None) -> Starlette:
    """Return an ASGI application that answers from ``view``.

    ``hosts`` are the names that a request's Host header may have, so that no web page that
    resolves its own name to this machine gets an answer; None takes any.
    """

    async def key(request: Request) -> Response:
        # As bytes: a key need not be UTF-8.
        name = decode_key(unquote_to_bytes(request.scope["raw_path"][len(_KEYS) :]))
        value = view.get(name)
        if value is None:
            text = f"there is no row of key {_shown_key(name)!r}"
            return _failure(404, "key_not_found", text)
        return _answer({"key": _shown_key(name), "value": value})

    async def rows(request: Request) -> Response:
        query = request.query_params
        unknown = sorted(set(query) - _ROWS_QUERY)
        if unknown:
            fix = "give prefix, start, limit or count"
            raise InvalidValueError("query", unknown[0], "is unknown", fix)
        start, end = _range(query)
        number = _count(query.get("count"))
        found = list(islice(view.between(start, end), number + 1))
        after = _shown_key(found[number][0]) if len(found) > number else None
        shown = [{"key": _shown_key(key), "value": value} for key, value in found[:number]]
        return _answer({"rows": shown, "next": after})

    async def status(_request: Request) -> Response:
        return _answer(status_report(view))

    # Starlette's releases compare an IPv6 address with its brackets or without.
    names = [name for each in hosts or ("*",) for name in (each, each.strip("[]"))]
    app = Starlette(
        middleware=[Middleware(TrustedHostMiddleware, names, www_redirect=False)],
        routes=[
            Route("/v1/keys/{key:path}", key),
            Route("/v1/rows", rows),
            Route("/v1/status", status),
        ],
        exception_handlers={
            OffsetManagerError: _refused,
            msgspec.MsgspecError: _undecoded,
            ValueError: _undecoded,
        },
    )
    app.router.redirect_slashes = False
    return app


def status_report(view: View) -> dict[str, Any]:
    """Return a view's stats as JSON has them: states in lower case."""
    stats = view.stats()
    partitions = [{**each._asdict(), "state": each.state.name.lower()} for each in stats.partitions]
    return {**stats._asdict(), "state": stats.state.name.lower(), "partitions": partitions}


def _range(query: Mapping[str, str]) -> tuple[bytes, bytes | None]:
    """Return the first key, and the one after the last; ``prefix`` goes with ``start`` alone."""
    start, prefix = encode_key(query.get("start", "")), encode_key(query.get("prefix", ""))
    if prefix and "limit" in query:
        fix = "give a prefix, or start and limit"
        raise InvalidValueError("limit", query["limit"], "does not go with a prefix", fix)
    if "limit" in query:
        return start, encode_key(query["limit"])
    return max(start, prefix), prefix_end(prefix)


def _count(text: str | None) -> int:
    if text is None:
        return DEFAULT_ROWS
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_ROWS):
        raise InvalidValueError("count", text, "is not possible", f"give 1 to {MOST_ROWS}")
    return int(text)


def _answer(value: object, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def _failure(status: int, code: str, message: str) -> Response:
    return _answer({"error": {"code": code, "message": message}}, status)


def _refused(_request: Request, error: Exception) -> Response:
    """Answer an error: 400 for bad input, 503 while there is nothing to read."""
    code = error.code if isinstance(error, OffsetManagerError) else ""
    status = 503 if isinstance(error, ViewError) else 400
    return _failure(status, code, str(error))


def _undecoded(_request: Request, error: Exception) -> Response:
    text = f"a row cannot be decoded ({error}): serve the view with the codec of the table"
    return _failure(500, "undecodable", text)


def _shown_key(key: str) -> str:
    """Return a key as JSON can have it; bytes that are no UTF-8 are replaced."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
