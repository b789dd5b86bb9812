"""Reading a request: who sends it, its query and its body, with a limit on each."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

import anyio

from offsetmgr.errors import InvalidValueError
from offsetmgr.service.errors import MissingError, RefusedRequestError, WrongValueError
from offsetmgr.service.operations import CLIENT, INCARNATION
from offsetmgr.service.sessions import Caller
from offsetmgr.types import MAX_OFFSET, check_group, check_partition, check_topic

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from starlette.datastructures import Headers, QueryParams
    from starlette.requests import Request


MAX_NAME_CHARS: Final = 255
_MAX_DIGITS: Final = 19

BODY_BYTES: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0
"""For a request's body to arrive."""


def read_caller(headers: Headers) -> Caller | None:
    """Who sends the request, None where nobody is named.  Raises InvalidValueError."""
    raw = headers.get(CLIENT)
    if raw is None:
        return None
    incarnation = headers.get(INCARNATION)
    return Caller(_name(raw), 0 if incarnation is None else read_count(INCARNATION, incarnation))


def _name(raw: str) -> str:
    try:
        name = unquote_to_bytes(raw.encode("ascii")).decode()
    except UnicodeError:
        fix = "send the name as UTF-8 with everything beyond ASCII as %XX"
        raise InvalidValueError(CLIENT, raw, "is not percent-encoded UTF-8", fix) from None
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        fix = f"give 1 to {MAX_NAME_CHARS} printable characters without spaces at the ends"
        raise InvalidValueError(CLIENT, name, "is not a client name", fix)
    return name


def read_count(field: str, text: str, lowest: int = 0, highest: int = MAX_OFFSET) -> int:
    """A whole number in a header or query.  Raises InvalidValueError."""
    digits = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not digits or not lowest <= int(text) <= highest:
        raise WrongValueError(field, text, f"a whole number from {lowest} to {highest}")
    return int(text)


class Query:
    """The query of a request whose client, if any, is ``client``."""

    def __init__(
        self, parameters: QueryParams, known: AbstractSet[str], client: str | None
    ) -> None:
        """Raise InvalidValueError for a name that is not in ``known``."""
        self.client = client
        self._parameters = parameters
        for name in parameters:
            if name not in known:
                fix = f"remove it; known here: {', '.join(sorted(known)) or 'nothing'}"
                value = parameters[name]
                raise InvalidValueError(f"query.{name}", value, "is an unknown parameter", fix)

    def text(self, name: str, *, required: bool = False) -> str | None:
        """A parameter that may stand once."""
        values = self._parameters.getlist(name)
        if len(values) > 1:
            raise InvalidValueError(f"query.{name}", values[1], "is given twice", "give it once")
        if not values and required:
            raise MissingError(f"query.{name}", f"add ?{name}=…")
        return values[0] if values else None

    def count(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A whole number."""
        text = self.text(name)
        return default if text is None else read_count(f"query.{name}", text, lowest, highest)

    def time_ms(self, name: str) -> int | None:
        """A point in time, in milliseconds since 1970."""
        text = self.text(name)
        return None if text is None else read_count(f"query.{name}", text, 0, MAX_OFFSET)

    def flag(self, name: str) -> bool:
        """``true`` or ``false``, which it is where nothing is said."""
        text = self.text(name)
        if text not in {None, "true", "false"}:
            raise WrongValueError(f"query.{name}", text, "true or false")
        return text == "true"

    def seconds(self, name: str, default: float, highest_s: float) -> float:
        """A time from 0 to ``highest_s``."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= highest_s:
            wanted = f"a number of seconds from 0 to {highest_s:g}"
            raise WrongValueError(f"query.{name}", text, wanted)
        return value

    def group(self, *, required: bool = False) -> str | None:
        """The consumer group."""
        text = self.text("group", required=required)
        return None if text is None else check_group(text, "query.group")

    def topic(self) -> str | None:
        """The one topic."""
        text = self.text("topic")
        return None if text is None else check_topic(text, "query.topic")

    def partition(self) -> int | None:
        """The one partition."""
        text = self.text("partition")
        return None if text is None else check_partition(read_count("query.partition", text))

    def topics(self, limit: int, *, required: bool = False) -> list[str]:
        """Any number of topics, each once."""
        topics = [check_topic(t, "query.topic") for t in self._parameters.getlist("topic")]
        if required and not topics:
            raise MissingError("query.topic", "add ?topic=…")
        if len(topics) > limit:
            raise WrongValueError("query.topic", len(topics), f"at most {limit} topics")
        return list(dict.fromkeys(topics))


async def read_body(request: Request) -> bytes:
    """The body of a JSON request.

    Raises RefusedRequestError: not JSON (415), too large (413) or too slow (408).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "the body must be JSON; send it with Content-Type: application/json"
        raise RefusedRequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", text)
    length = request.headers.get("content-length", "0")
    # The server has checked that it is a number; one of this many digits is too large anyway.
    if len(length) > _MAX_DIGITS or int(length) > BODY_BYTES:
        raise _too_large()
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            return await _receive(request)
    except TimeoutError:
        text = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise RefusedRequestError(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", text) from None


async def _receive(request: Request) -> bytes:
    message = await request.receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= BODY_BYTES:
        return body
    parts = bytearray(body)
    while message.get("more_body", False) and len(parts) <= BODY_BYTES:
        message = await request.receive()
        parts += message.get("body", b"")
    if len(parts) > BODY_BYTES:
        raise _too_large()
    return bytes(parts)


def _too_large() -> RefusedRequestError:
    text = f"the body is larger than {BODY_BYTES} bytes; send fewer offsets in one request"
    return RefusedRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", text)
