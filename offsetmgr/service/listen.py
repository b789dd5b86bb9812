"""The address of the service: loopback or a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG: Final = 1024
MAX_PORT: Final = 65_535
MAX_SOCKET_PATH_BYTES: Final = 107
"""The kernel's limit (``sun_path`` without its NUL)."""

_SOCKET_MODE: Final = 0o600
_EXAMPLES: Final = "give 127.0.0.1:8741 or unix:///run/offsetmgr.sock"


class AddressInUseError(OffsetManagerError):
    code = "address_in_use"


class TcpAddress(NamedTuple):
    """A loopback address; port 0 takes a free one."""

    host: str
    port: int

    def hosts(self) -> frozenset[str] | None:
        """Return what a Host header may say; a page that resolves its own name to us says other."""
        bare = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset({"localhost", "127.0.0.1", "[::1]", bare})

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class UnixAddress(NamedTuple):
    """A socket file that its owner alone may use."""

    path: str

    def hosts(self) -> frozenset[str] | None:
        """Return None, for any: no browser speaks to a socket file."""
        return None

    def __str__(self) -> str:
        return f"unix://{self.path}"


def check_listen(value: object, field: str = "listen") -> TcpAddress | UnixAddress:
    """Return an address to listen on.  Raises InvalidValueError."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", _EXAMPLES)
    if value.startswith("unix:"):
        return _check_unix(value, field)
    host, colon, port = value.rpartition(":")
    if not colon or not _is_port(port):
        raise InvalidValueError(field, value, "is not an address with a port", _EXAMPLES)
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return TcpAddress("127.0.0.1", int(port))
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidValueError(field, value, "is not an IP address", _EXAMPLES) from None
    if not loopback:
        raise InvalidValueError(
            field,
            value,
            "can be reached from other machines, and the service has no TLS and no authentication",
            f"listen on loopback or a Unix socket: {_EXAMPLES}",
        )
    return TcpAddress(host, int(port))


def _is_port(text: str) -> bool:
    # Of thousands of digits Python makes no number.
    short = len(text) <= len(str(MAX_PORT))
    return short and text.isascii() and text.isdigit() and int(text) <= MAX_PORT


def _check_unix(value: str, field: str) -> UnixAddress:
    path = value.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or not path.isprintable():
        raise InvalidValueError(field, value, "is not an absolute path", _EXAMPLES)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        fix = f"use a path of at most {MAX_SOCKET_PATH_BYTES} bytes: the kernel takes no more"
        raise InvalidValueError(field, value, "is too long", fix)
    return UnixAddress(path)


@contextlib.contextmanager
def listening(address: TcpAddress | UnixAddress) -> Iterator[tuple[socket.socket, str]]:
    """Yield the listening socket and its real address; afterwards both are gone.

    Raises AddressInUseError where somebody listens there, OSError for what else the system says.
    """
    make = _tcp_socket(address) if isinstance(address, TcpAddress) else _unix_socket(address)
    with make as (sock, real):
        sock.setblocking(False)  # noqa: FBT003 -- the library's parameter
        yield sock, real


@contextlib.contextmanager
def _tcp_socket(address: TcpAddress) -> Iterator[tuple[socket.socket, str]]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio switches Nagle off on sockets that say that they are TCP, and on no others.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address.host, address.port))
            sock.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(address) from None
            raise
        yield sock, str(TcpAddress(address.host, sock.getsockname()[1]))


@contextlib.contextmanager
def _unix_socket(address: UnixAddress) -> Iterator[tuple[socket.socket, str]]:
    path = Path(address.path)
    if path.is_socket():
        _remove_of_dead_process(path, address)
    elif path.exists():
        raise AddressInUseError(
            f"{path} exists and is not a socket; remove it, or listen elsewhere"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        before = os.umask(0o777 ^ _SOCKET_MODE)
        try:
            sock.bind(address.path)
            sock.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(address) from None
            raise
        finally:
            os.umask(before)
        inode = path.stat().st_ino
        try:
            yield sock, str(address)
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == inode:  # and not that of a successor
                    path.unlink()


def _remove_of_dead_process(path: Path, address: UnixAddress) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:  # full, or not ours to ask: somebody is there
            pass
    raise _in_use(address)


def _in_use(address: TcpAddress | UnixAddress) -> AddressInUseError:
    return AddressInUseError(
        f"{address} is in use by another process; stop it, or listen elsewhere (--listen)"
    )
