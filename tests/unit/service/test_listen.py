"""Listening: whose address it is, and what is left behind."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.http.address import Address, listening

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path: pytest's own may be too long for a socket."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "offsetmgr.sock"


def test_the_socket_of_a_live_process_is_left_alone(path: Path) -> None:
    """Two services on one socket: the second says so, the first goes on."""
    with ExitStack() as stack:
        stack.enter_context(listening(Address("", 0, str(path))))
        second = listening(Address("", 0, str(path)))
        with pytest.raises(InvalidValueError, match="is in use"), second:
            pass
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(path))


def test_an_address_that_cannot_be_used_is_named(path: Path) -> None:
    """A mistyped path costs nobody a file."""
    path.write_text("precious")
    missing = Address("", 0, str(path.parent / "missing" / "offsetmgr.sock"))
    for address, problem in (
        (Address("", 0, str(path)), "is in use, or not a socket"),
        (missing, "cannot be used"),
        (Address("192.0.2.1", 0), "cannot be used"),
    ):
        with pytest.raises(InvalidValueError, match=problem) as caught, listening(address):
            pass
        assert caught.value.value == str(address)
    assert path.read_text() == "precious"
