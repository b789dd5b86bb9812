"""Addresses to listen on, and the sockets that listen there."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SOCKET_PATH_BYTES: Final = 107
"""The kernel's limit (``sun_path`` without its NUL)."""

BACKLOG: Final = 1024

RECEIVED_BYTES: Final = 64 * 1024
"""Bytes that the system accepts on a connection before the server reads them."""

SYSTEMD_DESCRIPTOR: Final = 3
"""The first socket that systemd passes on (``SD_LISTEN_FDS_START``)."""


class Address(NamedTuple):
    """An IP address with a port, or the path of a socket that its owner alone may use."""

    host: str
    port: int
    """0 takes a free one."""
    path: str = ""
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address of a setting.  Raises InvalidValueError."""
        fix = "give 127.0.0.1:8741 or unix:///run/offsetmgr.sock"
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if path.startswith("/") and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
                return cls("", 0, path)
            problem = f"is not an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes"
            raise InvalidValueError("listen", text, problem, fix)
        host, _, port = text.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(host)
            if 0 <= int(port) < 2**16:
                return cls(host, int(port))
        except ValueError:
            pass
        raise InvalidValueError("listen", text, "is not an IP address with a port", fix)

    def check_reach(self, missing: list[str]) -> None:
        """Raise InvalidValueError if other machines can reach it while protection is missing."""
        if missing and not self.is_local:
            problem = f"can be reached from other machines without {' and '.join(missing)}"
            fix = "add that, or listen on loopback or a Unix socket"
            raise InvalidValueError("listen", str(self), problem, fix)

    @property
    def is_local(self) -> bool:
        return bool(self.path) or ipaddress.ip_address(self.host).is_loopback

    def hosts(self, names: str = "") -> frozenset[str] | None:
        """Return the values that a Host header may have, None for any.

        A web page that resolves its own name to this machine then gets no answer.  ``names`` are
        further ones, separated by commas.  An address that other machines can reach has TLS: there
        the certificate keeps such pages out.
        """
        given = {each.strip().lower() for each in names.split(",") if each.strip()}
        if self.path or not (given or self.is_local):
            return None
        bare = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset({"localhost", "127.0.0.1", "[::1]", bare, *given})

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.path:
            return f"unix://{self.path}"
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@contextlib.contextmanager
def listening(address: Address) -> Iterator[tuple[socket.socket, Address]]:
    """Yield the listening socket and its real address.

    Raises InvalidValueError if nobody can listen there, such as where the address is in use.
    """
    try:
        sock = _bound(address)
    except OSError as error:
        fix, problem = "listen elsewhere (--listen)", f"cannot be used ({error.strerror})"
        if error.errno == errno.EADDRINUSE:
            problem = "is in use, or not a socket" if address.path else "is in use"
            fix = f"stop the process that listens there, or {fix}"
        raise InvalidValueError("listen", str(address), problem, fix) from None
    with sock:
        if not address.path:
            address = address._replace(port=sock.getsockname()[1])
        yield sock, address


def _bound(address: Address) -> socket.socket:
    if not address.path:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        where = (address.host, address.port)
        sock = socket.create_server(where, family=family, backlog=BACKLOG)
        # Taken over by its connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        return sock
    # The one socket of a systemd unit (sd_listen_fds), with the unit's mode and owner, stays over
    # restarts: clients that connect meanwhile wait.
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        sock = socket.socket(fileno=SYSTEMD_DESCRIPTOR)
        if sock.getsockname() != address.path:
            text = f"systemd's socket is {sock.getsockname()!r}, and not {address.path!r}"
            raise OSError(errno.EINVAL, text)
        return sock
    return _unix_socket(Path(address.path))


def _unix_socket(path: Path) -> socket.socket:
    """Return a socket for its owner alone.  Its file is left behind: the next one replaces it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        # Of a dead process; any other file is left alone, and then bind() fails.
        if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(BACKLOG)
    return sock
