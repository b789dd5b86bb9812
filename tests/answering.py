"""A server that answers every request alike, for those who ask what is not the service."""

from __future__ import annotations

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Answering(ThreadingHTTPServer):
    """Answers with its ``body``."""

    status = 200
    body = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is not in the output of the next test."""


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def answering(body: bytes = b"", status: int = 200) -> Iterator[Answering]:
    """Run a server in a block."""
    with Answering(("127.0.0.1", 0), _Handler) as server:
        server.body, server.status = body, status
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
