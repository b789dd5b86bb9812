"""HTTP connections as the service keeps them: counted, never held without end, JSON at all times.

uvicorn has a limit of its own, but answers beyond it in plain text, old connections and health
included.  So each request is told here how many connections were there before its own, and the
gate decides.  It bounds neither the head of a request, nor how many wait on one connection, nor
the time in which an answer is taken, and it forgets a connection on which something came that is no
request: that is mended here.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from offsetmgr.service.messages import ErrorAnswer, ErrorBody

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport
    from collections.abc import Sized

    from starlette.types import Scope

HEAD_TIMEOUT_S: Final = 10.0
"""For the head of a request to arrive, from its first byte."""

STILL_S: Final = 60.0
"""For a client to take something of what is being written to it, be it slow."""

MAX_HEAD_BYTES: Final = 288 * 1024
"""First line and headers of a request; what stands behind a chunked body has as much again.  A
query of a thousand topics, which is the most, has 257 kB where all have the longest names."""

MAX_HEADERS: Final = 100

_BEFORE: Final = "connections_before"


def _answer(status: HTTPStatus, code: str, message: str) -> bytes:
    """A whole answer, after which the connection ends."""
    body = msgspec.json.encode(ErrorAnswer(ErrorBody(code, message)))
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_BAD_REQUEST: Final = _answer(
    HTTPStatus.BAD_REQUEST,
    "bad_request",
    "what arrived is no HTTP/1.1 request; see /openapi.json for what is served here",
)
_HEAD_TOO_LARGE: Final = _answer(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "head_too_large",
    f"the first line and the headers are more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} "
    "headers; ask for less in one request",
)


class _HeadTooLargeError(Exception):
    """Ends the parser's work at once, so that nothing of such a request is begun."""


def connections_before(scope: Scope) -> int:
    """How many connections were open when that of this request was opened."""
    before: int = scope.get("state", {}).get(_BEFORE, 0)
    return before


class _Flow(FlowControl):
    """Reads no more while there are requests that were sent before an earlier one was answered.

    uvicorn stops reading at the first of these, but reads again with each answer, much faster than
    it answers.
    """

    def __init__(self, transport: Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head: TimerHandle | None = None
    _head_bytes = 0
    """What the parser has told of the head, or of what stands behind a chunked body."""
    _untold = 0
    """Bytes that arrived since the parser told something: it may be keeping them all."""
    _refusal = _BAD_REQUEST
    _still: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Count it; one on which nothing comes is closed as an idle one is."""
        self.app_state = {**self.app_state, _BEFORE: len(self.connections)}
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._disarm()
        if self._still is not None:
            self._still.cancel()
        self._unset_keepalive_if_required()  # which uvicorn forgets where there was an error
        super().connection_lost(exc)

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Only the bytes of a request keep an idle connection; others leave its end where it is."""
        idle, cycle = self.timeout_keep_alive_task, self.cycle
        self._untold += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head_bytes + self._untold > MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)
            return
        if idle is not None and self._head is None and self.cycle is cycle:
            self.timeout_keep_alive_task = self.loop.call_at(
                idle.when(), self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = self._untold = 0
        self._await_head()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_TIMEOUT_S, self._late)

    def _late(self) -> None:
        """The head did not come in its time; where it was not read, it may have more."""
        if self.flow.read_paused:
            self._await_head()
        else:
            self._close()

    def on_url(self, url: bytes) -> None:
        """A part of its first line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; it may also come behind a chunked body."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + len(": \r\n"))

    def _count(self, told: int) -> None:
        self._untold = 0
        self._head_bytes += told
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refusal = _HEAD_TOO_LARGE
            raise _HeadTooLargeError

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._disarm()
        self._head_bytes = self._untold = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body, which has limits of its own."""
        self._untold = 0
        super().on_body(body)

    def _disarm(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP, or too much of it, is told so in JSON, as all else."""
        del msg
        self._refuse(self._refusal)

    def _refuse(self, answer: bytes) -> None:
        self.transport.write(answer)
        self._close()

    # What is written

    def pause_writing(self) -> None:
        """The client takes less than it is given."""
        super().pause_writing()
        self._watch()

    def on_response_complete(self) -> None:
        """An answer is written, maybe the last one."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Idle for too long."""
        self._close()

    def _close(self) -> None:
        """End it when all is taken that was written, which may be never."""
        self.transport.close()
        self._watch()

    def _watch(self) -> None:
        if self._still is not None:
            self._still.cancel()
        self._still = self.loop.call_later(STILL_S, self._look, _unsent(self.transport))

    def _look(self, before: int) -> None:
        """End it at once where the client has taken nothing since ``before`` bytes were unsent.

        While it is watched nothing is added to them: answers wait, or have ended.
        """
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._still = None
        elif _unsent(self.transport) < before:
            self._watch()
        else:
            self.transport.abort()


def _unsent(transport: Transport) -> int:
    """Bytes written that the other side has not taken.

    The system's own buffer counts: a slow reader takes from that for minutes before there is room.
    """
    own = transport.get_write_buffer_size()
    try:
        asked = fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # not every system tells, and none of what is closed already
        return own
    left: int = struct.unpack("i", asked)[0]
    return own + left
