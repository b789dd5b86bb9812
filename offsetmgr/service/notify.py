"""Tells systemd (``Type=notify``) how it stands; silent where nobody asked."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send ``state``, such as ``READY=1``, to the socket that NOTIFY_SOCKET names."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    # Whoever listens there may be gone; that must not end the service.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        sock.setblocking(False)  # noqa: FBT003 -- the library's parameter
        sock.sendto(state.encode(), address)
