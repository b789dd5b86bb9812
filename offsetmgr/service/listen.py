"""Where the service listens: loopback or a Unix socket, and nothing else for now."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG: Final = 1024
MAX_PORT: Final = 65_535
MAX_SOCKET_PATH_BYTES: Final = 107
"""What the kernel takes (``sun_path`` without its NUL)."""

LOCK_SUFFIX: Final = ".lock"
"""The socket file's path with this is locked while a service starts there."""

_SOCKET_MODE: Final = 0o600
_EXAMPLES: Final = "give 127.0.0.1:8741 or unix:///run/offsetmgr.sock"


class AddressInUseError(OffsetManagerError):
    """Somebody else listens there."""

    code = "address_in_use"


class TcpAddress(NamedTuple):
    """A loopback address; port 0 takes a free one."""

    host: str
    port: int

    def hosts(self) -> frozenset[str] | None:
        """What a Host header may say; a page that resolves its own name to us says other."""
        bare = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset({"localhost", "127.0.0.1", "[::1]", bare})

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class UnixAddress(NamedTuple):
    """A socket file that its owner alone may use."""

    path: str

    def hosts(self) -> frozenset[str] | None:
        """Any: no browser speaks to a socket file."""
        return None

    def __str__(self) -> str:
        return f"unix://{self.path}"


def check_listen(value: object, field: str = "listen") -> TcpAddress | UnixAddress:
    """An address to listen on.  Raises InvalidValueError."""
    if not isinstance(value, str):
        raise InvalidValueError(field, value, "is not text", _EXAMPLES)
    if value.startswith("unix:"):
        return _check_unix(value, field)
    host, colon, port = value.rpartition(":")
    if not colon or not _is_port(port):
        raise InvalidValueError(field, value, "is no address with a port", _EXAMPLES)
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        return TcpAddress("127.0.0.1", int(port))
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidValueError(field, value, "is no IP address", _EXAMPLES) from None
    if not loopback:
        raise InvalidValueError(
            field,
            value,
            "can be reached from other machines, which this version has no TLS and no "
            "authentication for",
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
        raise InvalidValueError(field, value, "is no absolute path", _EXAMPLES)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        fix = f"use a path of at most {MAX_SOCKET_PATH_BYTES} bytes: the kernel takes no more"
        raise InvalidValueError(field, value, "is too long", fix)
    return UnixAddress(path)


@contextlib.contextmanager
def listening(address: TcpAddress | UnixAddress) -> Iterator[tuple[socket.socket, str]]:
    """The listening socket and its real address; afterwards both are gone.

    Raises AddressInUseError where somebody listens there, OSError for what else the system says.
    """
    sock = _listen_tcp(address) if isinstance(address, TcpAddress) else _listen_unix(address)
    try:
        sock.setblocking(False)  # noqa: FBT003 -- the library's parameter
        if isinstance(address, TcpAddress):
            yield sock, str(TcpAddress(address.host, sock.getsockname()[1]))
        else:
            inode = Path(address.path).stat().st_ino
            try:
                yield sock, str(address)
            finally:
                _unlink_own(Path(address.path), inode)
    finally:
        sock.close()


def _listen_tcp(address: TcpAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio switches Nagle off on sockets that say that they are TCP, and on no others.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise AddressInUseError(
            f"{address} is in use by another process; stop it, or listen elsewhere (--listen)"
        ) from None
    return sock


def _listen_unix(address: UnixAddress) -> socket.socket:
    path = Path(address.path)
    # A socket that is bound and does not listen yet looks like that of a dead process.
    with _starting_alone(path):
        _clear_stale(path)
        return _bind_unix(address)


@contextlib.contextmanager
def _starting_alone(path: Path) -> Iterator[None]:
    """No other service starts at ``path`` meanwhile; nothing of the lock is left afterwards."""
    lock = Path(f"{path}{LOCK_SUFFIX}")
    # Not through a link that somebody else may have put into a folder for all.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(lock, flags, _SOCKET_MODE)
            stack.callback(os.close, descriptor)
            alone = _lock(descriptor, lock)
        except OSError as error:
            problem = f"cannot lock {path} for the start: {error.strerror}"
            raise OSError(error.errno, problem, str(lock)) from None
        if not alone:
            raise AddressInUseError(
                f"another process is starting on {path} (it holds {lock}); stop it, or listen "
                "elsewhere (--listen)"
            )
        stack.callback(lock.unlink, missing_ok=True)
        yield


def _lock(descriptor: int, lock: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who held it until now has removed it, and a third process may have made another one.
        return os.path.samestat(os.fstat(descriptor), lock.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _bind_unix(address: UnixAddress) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 ^ _SOCKET_MODE)
    try:
        sock.bind(address.path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise AddressInUseError(f"{address.path} was taken by another process just now") from None
    finally:
        os.umask(before)
    return sock


def _clear_stale(path: Path) -> None:
    """Remove the socket file of a process that is dead; anything else at ``path`` is an error."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressInUseError(f"{path} exists and is no socket; remove it, or listen elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:  # full, or not ours to ask: somebody is there
            pass
    raise AddressInUseError(
        f"another process listens on {path}; stop it, or listen elsewhere (--listen)"
    )


def _unlink_own(path: Path, inode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_ino == inode:
            path.unlink()
