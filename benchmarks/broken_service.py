"""Stands where the service should, and answers 500; a process, so that it takes nobody's turn."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Broken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 -- http.server's name

    def log_message(self, *_: object) -> None:
        """Print nothing of each request."""


@contextmanager
def answering_500() -> Iterator[str]:
    """Run it; yield its address."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        yield next(iter(process.stdout or ())).strip()
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
