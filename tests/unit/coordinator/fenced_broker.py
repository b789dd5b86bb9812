"""A broker that has heard of no broker yet: it answers, and says that none is there, not even it.

It speaks Kafka's protocol as far as clients go that look for the brokers of a cluster.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_METADATA: Final = 3
_API_VERSIONS: Final = 18
_METADATA_VERSION: Final = 4
_UNSUPPORTED_VERSION: Final = 35
_HEAD: Final = struct.Struct(">ihhi")
"""Of a request: its size, API key, version and number."""


class FencedBroker:
    """Listens on loopback until the end of its ``with`` block."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.bootstrap_servers = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._there = threading.Event()
        self._there.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def fence(self) -> None:
        """Say from now on that nobody is there; before, that one broker is."""
        self._there.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except OSError:
            pass  # closed

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while len(head := connection.recv(_HEAD.size, socket.MSG_WAITALL)) == _HEAD.size:
                size, key, version, number = _HEAD.unpack(head)
                connection.recv(size - (_HEAD.size - 4), socket.MSG_WAITALL)
                body = self._metadata() if key == _METADATA else _versions(version)
                connection.sendall(struct.pack(">ii", len(body) + 4, number) + body)

    def _metadata(self) -> bytes:
        host, _, port = self.bootstrap_servers.partition(":")
        broker = struct.pack(">i", 1) + _text(host) + struct.pack(">ih", int(port), -1)
        there = self._there.is_set()
        brokers = struct.pack(">i", 1) + broker if there else struct.pack(">i", 0)
        controller, topics = 1 if there else -1, 0
        return bytes(4) + brokers + _text("cluster") + struct.pack(">ii", controller, topics)


def _versions(version: int) -> bytes:
    """The answer to ApiVersions, in its first version, which is also that of the refusal."""
    error = _UNSUPPORTED_VERSION if version else 0
    known = struct.pack(">hhhhhh", _METADATA, 0, _METADATA_VERSION, _API_VERSIONS, 0, 0)
    return struct.pack(">hi", error, 2) + known


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
