"""Listening: whose address it is, and what is left behind."""

from __future__ import annotations

import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from offsetmgr.service.listen import AddressInUseError, TcpAddress, UnixAddress, listening

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path: pytest's own may be too long for a socket."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "offsetmgr.sock"


def test_a_port_in_use_is_named() -> None:
    """One line says which address, and what to do."""
    with listening(TcpAddress("127.0.0.1", 0)) as (sock, _):
        port = sock.getsockname()[1]
        with (
            pytest.raises(AddressInUseError, match=f"http://127.0.0.1:{port} is in use"),
            listening(TcpAddress("127.0.0.1", port)),
        ):
            pass


def test_port_0_tells_the_real_one() -> None:
    """The address is what a client can use."""
    with listening(TcpAddress("127.0.0.1", 0)) as (sock, address):
        assert address == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_a_tcp_socket_says_that_it_is_one() -> None:
    """Or asyncio leaves Nagle's algorithm on, and every answer waits 40 ms."""
    with listening(TcpAddress("127.0.0.1", 0)) as (sock, _):
        assert sock.proto == socket.IPPROTO_TCP


def test_a_socket_file_is_its_owners_alone_and_goes_afterwards(path: Path) -> None:
    """Mode 0600, and nothing is left."""
    with listening(UnixAddress(str(path))) as (_, address):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert address == f"unix://{path}"
    assert not list(path.parent.iterdir())


def test_the_socket_of_a_dead_process_is_replaced(path: Path) -> None:
    """A kill -9 leaves the file; the next start must not need a hand."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    with listening(UnixAddress(str(path))), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_the_socket_of_a_live_process_is_left_alone(path: Path) -> None:
    """Two services on one socket: the second says so, the first goes on."""
    with ExitStack() as stack:
        stack.enter_context(listening(UnixAddress(str(path))))
        with (
            pytest.raises(AddressInUseError, match="is in use by another process"),
            listening(UnixAddress(str(path))),
        ):
            pass
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(path))


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    """A mistyped path must not cost anybody a file."""
    path.write_text("precious")
    with (
        pytest.raises(AddressInUseError, match="is not a socket"),
        listening(UnixAddress(str(path))),
    ):
        pass
    assert path.read_text() == "precious"


def test_the_socket_of_a_successor_is_left_alone(path: Path) -> None:
    """Who stops late does not remove the file that another has put there meanwhile."""
    with ExitStack() as successor:
        with listening(UnixAddress(str(path))):
            path.unlink()
            successor.enter_context(listening(UnixAddress(str(path))))
        assert path.exists()
