"""systemd is told how the service stands."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from offsetmgr.service.notify import notify


def test_a_state_reaches_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one datagram, at a path or at an abstract name."""
    with TemporaryDirectory() as folder:
        for bound, named in [
            (str(Path(folder) / "n.sock"), None),
            ("\0offsetmgr-test-notify", "@offsetmgr-test-notify"),
        ]:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
                systemd.bind(bound)
                systemd.settimeout(5)
                monkeypatch.setenv("NOTIFY_SOCKET", named or bound)
                notify("READY=1")
                assert systemd.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/notify.sock"])
def test_without_a_listener_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Not under systemd, or with a socket that is gone, the service goes on."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")
