"""Where the service listens, read from a URL."""

from __future__ import annotations

import os
import socket
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from offsetmgr.client.tracebacks import short_traceback
from offsetmgr.errors import InvalidValueError

DEFAULT_PORT: Final = 8741

_FIX: Final = "give http://host:port, such as http://127.0.0.1:8741, or unix:///path/of/the.sock"
_MAX_UNIX_PATH_BYTES: Final = 107
"""Linux keeps 108 bytes for the path of a socket, the last of them a NUL."""


class Address(Protocol):
    """Something a stream socket can be opened to."""

    @property
    def authority(self) -> str:
        """The Host header."""

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket; OSError when there is none within `timeout_s`."""


class TcpAddress(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """The Host header; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect, and send small requests at once instead of gathering them."""
        connected = socket.create_connection((self.host, self.port), timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


class UnixAddress(NamedTuple):
    """The path of a Unix socket."""

    path: str

    @property
    def authority(self) -> str:
        """The Host header."""
        return "localhost"

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the socket file."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.settimeout(timeout_s)
            connecting.connect(self.path)
        except OSError:
            connecting.close()
            raise
        return connecting


@short_traceback
def parse_url(url: object) -> Address:
    """Where `url` leads.

    Raises:
        InvalidValueError: it is no URL of a service; names what is wrong with it.

    """
    if not isinstance(url, str):
        raise InvalidValueError("url", url, "is not text", _FIX)
    if not url.isprintable() or " " in url:
        raise InvalidValueError("url", url, "holds a space or an unprintable character", _FIX)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidValueError("url", url, f"is malformed ({error})", _FIX) from None
    if parts.username is not None or parts.query or parts.fragment:
        # Whoever writes a password here must not find it in a log.
        bare = f"{parts.scheme}://…"
        raise InvalidValueError("url", bare, "has a user, a query or a fragment", _FIX)
    if parts.scheme == "unix":
        return _unix(url, parts.netloc, parts.path)
    if parts.scheme != "http":
        raise InvalidValueError("url", url, "is neither http:// nor unix://", _FIX)
    if not host:
        raise InvalidValueError("url", url, "names no host", _FIX)
    if parts.path not in {"", "/"}:
        raise InvalidValueError("url", url, "has a path", _FIX)
    if port == 0:
        raise InvalidValueError("url", url, "has port 0", _FIX)
    return TcpAddress(host, DEFAULT_PORT if port is None else port)


def _unix(url: str, netloc: str, path: str) -> UnixAddress:
    if netloc or len(path) < len("/x"):
        fix = "give the absolute path after three slashes: unix:///run/offsetmgr.sock"
        raise InvalidValueError("url", url, "has no absolute path", fix)
    if len(os.fsencode(path)) > _MAX_UNIX_PATH_BYTES:
        fix = f"use a path of at most {_MAX_UNIX_PATH_BYTES} bytes: a socket takes no longer one"
        raise InvalidValueError("url", url, "is too long", fix)
    return UnixAddress(path)
