"""A TCP proxy before one Kafka broker that can cut its answers in two, or answer in its place.

Clients come to the proxy because the broker advertises its address; see ``MockCluster.advertise``.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self

_HEAD: Final = struct.Struct(">ihhi")
"""Length, API key, API version and correlation id of a request."""
_ANSWER: Final = struct.Struct(">ii")
"""Length and correlation id of a response."""
_CHUNK: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send RST."""


class Proxy:
    """Passes everything on, until it is told to break something."""

    def __init__(self, target: str) -> None:
        """Stand before the broker at ``target`` (host:port)."""
        where, _, port = target.rpartition(":")
        self._target = (where, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._cut_api: int | None = None
        self.replacements: dict[int, bytes] = {}
        """Answers to requests of a kind (API key), given without asking the broker: all that stands
        behind the correlation id."""
        self.was_cut = threading.Event()
        """Set when the response asked for with ``cut_response`` was cut."""
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._links)

    def cut_response(self, api: int) -> None:
        """Reset the connection in the middle of the next response to a request of kind ``api``."""
        self._cut_api = api

    def swallow(self) -> None:
        """Pass nothing on over the connections there are, and say so to nobody; new ones work."""
        with self._lock:
            for link in self._links:
                link.swallowing = True

    def turn_to(self, target: str) -> None:
        """End all connections; new ones go to the broker at ``target``."""
        where, _, port = target.rpartition(":")
        with self._lock:
            self._target = (where, int(port))
            for link in self._links:
                link.stop()

    def takes_cut(self, api: int) -> bool:
        """True if this request's response is the one to be cut."""
        with self._lock:
            if api != self._cut_api:
                return False
            self._cut_api = None
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.stop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._target)
            except OSError:
                return
            link = _Link(self, client, broker)
            with self._lock:
                self._links.append(link)
            link.start()


class _Link:
    """One connection through the proxy.

    One thread serves both directions: a reset is only sent where no other thread reads.
    """

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._to_cut: set[int] = set()
        self.swallowing = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="proxy-link", daemon=True).start()

    def stop(self) -> None:
        for each in (self._client, self._broker):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        with self._client, self._broker, contextlib.suppress(OSError):
            while True:
                readable, _, _ = select.select([self._client, self._broker], [], [])
                for source in readable:
                    frame = _frame(source)
                    if not frame:
                        return
                    (self._ask if source is self._client else self._answer)(frame)

    def _ask(self, frame: bytes) -> None:
        _, api, _, correlation = _HEAD.unpack_from(frame)
        if self._proxy.takes_cut(api):
            self._to_cut.add(correlation)
        if api in self._proxy.replacements:
            body = self._proxy.replacements[api]
            self._client.sendall(_ANSWER.pack(len(body) + 4, correlation) + body)
        elif not self.swallowing:
            self._broker.sendall(frame)

    def _answer(self, frame: bytes) -> None:
        _, correlation = _ANSWER.unpack_from(frame)
        if correlation in self._to_cut:
            self._client.sendall(frame[: len(frame) // 2])
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._client.close()
            self._proxy.was_cut.set()
            raise ConnectionResetError
        if not self.swallowing:
            self._client.sendall(frame)


def _frame(sock: socket.socket) -> bytes:
    """The next whole frame, length included; nothing where the connection has ended."""
    size = _exactly(sock, 4)
    return size + _exactly(sock, int.from_bytes(size, "big")) if size else b""


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(_CHUNK, count - len(parts)))
        if not part:
            return b""
        parts += part
    return bytes(parts)
