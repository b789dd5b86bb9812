"""The address of the service: loopback or a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG: Final = 1024
MAX_SOCKET_PATH_BYTES: Final = 107
"""The kernel's limit (``sun_path`` without its NUL)."""

_EXAMPLES: Final = "give 127.0.0.1:8741 or unix:///run/offsetmgr.sock"


class AddressInUseError(OffsetManagerError):
    code = "address_in_use"


class Address(NamedTuple):
    """A loopback address, or the path of a socket that its owner alone may use."""

    host: str
    port: int
    """0 takes a free one."""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address of a setting.  Raises InvalidValueError."""
        if text.startswith("unix:"):
            return cls("", 0, _socket_path(text))
        try:
            split = urlsplit(f"//{text}")
            host, port = split.hostname, split.port
        except ValueError:  # of a port, or of brackets
            host = port = None
        if host is None or port is None or split.netloc != text or "@" in text:
            raise InvalidValueError("listen", text, "is not an address with a port", _EXAMPLES)
        if host == "localhost":
            host = "127.0.0.1"
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            raise InvalidValueError("listen", text, "is not an IP address", _EXAMPLES) from None
        if not loopback:
            raise InvalidValueError(
                "listen",
                text,
                "can be reached from other machines, and the service has no TLS and no "
                "authentication",
                f"listen on loopback or a Unix socket: {_EXAMPLES}",
            )
        return cls(host, port)

    def hosts(self) -> frozenset[str] | None:
        """Return what a Host header may say; a page that resolves its own name to us says other.

        None for any: no browser speaks to a socket file.
        """
        bare = f"[{self.host}]" if ":" in self.host else self.host
        return None if self.path else frozenset({"localhost", "127.0.0.1", "[::1]", bare})

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix://{self.path}" if self.path else f"http://{host}:{self.port}"


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or not path.isprintable():
        raise InvalidValueError("listen", text, "is not an absolute path", _EXAMPLES)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        fix = f"use a path of at most {MAX_SOCKET_PATH_BYTES} bytes: the kernel takes no more"
        raise InvalidValueError("listen", text, "is too long", fix)
    return path


@contextlib.contextmanager
def listening(address: Address) -> Iterator[tuple[socket.socket, str]]:
    """Yield the listening socket and its real address; afterwards both are gone.

    Raises AddressInUseError where somebody listens there, OSError for what else the system says.
    """
    with contextlib.ExitStack() as stack:
        try:
            if address.path:
                sock = stack.enter_context(_unix_socket(Path(address.path)))
            else:
                sock = stack.enter_context(_tcp_socket(address))
                address = address._replace(port=sock.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise AddressInUseError(
                f"{address} is in use by another process; stop it, or listen elsewhere (--listen)"
            ) from None
        sock.setblocking(False)  # noqa: FBT003 -- the library's parameter
        yield sock, str(address)


@contextlib.contextmanager
def _tcp_socket(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio switches Nagle off on sockets that say that they are TCP, and on no others.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
        yield sock


@contextlib.contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    if path.is_socket():
        _remove_of_dead_process(path)
    elif path.exists():
        raise AddressInUseError(
            f"{path} exists and is not a socket; remove it, or listen elsewhere"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        before = os.umask(0o177)  # for its owner alone
        try:
            sock.bind(str(path))
            sock.listen(BACKLOG)
        finally:
            os.umask(before)
        inode = path.stat().st_ino
        try:
            yield sock
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == inode:  # and not that of a successor
                    path.unlink()


def _remove_of_dead_process(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:  # full, or not ours to ask: somebody is there
            pass
    raise OSError(errno.EADDRINUSE, "a process listens there")
