"""HTTP connections as the service keeps them: counted, never held without end, JSON at all times.

uvicorn has a limit of its own, but answers beyond it in plain text, old connections and health
included.  So each request is told here how many connections were there before its own, and the
gate decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from offsetmgr.service.messages import ErrorAnswer, ErrorBody

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from starlette.types import Scope

HEAD_TIMEOUT_S: Final = 10.0
"""For the head of a request to arrive, from its first byte."""

_BEFORE: Final = "connections_before"

_BAD_REQUEST: Final = msgspec.json.encode(
    ErrorAnswer(
        ErrorBody(
            "bad_request",
            "what arrived is no HTTP/1.1 request; see /openapi.json for what is served here",
        )
    )
)


def connections_before(scope: Scope) -> int:
    """How many connections were open when that of this request was opened."""
    before: int = scope.get("state", {}).get(_BEFORE, 0)
    return before


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Count it; one on which nothing comes is closed as an idle one is."""
        self.app_state = {**self.app_state, _BEFORE: len(self.connections)}
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._disarm()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is told so in JSON, as all else."""
        del msg
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(_BAD_REQUEST)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + _BAD_REQUEST)
        self.transport.close()
