"""The ends of a client that nobody ordered: the interpreter exits, or the process forks."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import weakref
from typing import Final, Protocol

from offsetmgr.types import MAX_GROUP_CHARS

AT_EXIT_S: Final = 2.0
"""Seconds that all open clients together may delay the interpreter's exit."""


class Mortal(Protocol):
    """A client."""

    def close_at_exit(self, timeout_s: float) -> None: ...

    def renew_after_fork(self) -> None:
        """This is the child of a fork, where only the forking thread lives on."""


open_clients: weakref.WeakSet[Mortal] = weakref.WeakSet()
"""Those that are not closed, as long as somebody holds them."""


def own_name(base: str = "") -> str:
    """Return `base` with an end that no other process has, nor another client of this one."""
    end = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    return f"{base[: MAX_GROUP_CHARS - len(end) - 1]}.{end}" if base else end


def close_all() -> None:
    clients = list(open_clients)
    for client in clients:
        client.close_at_exit(AT_EXIT_S / len(clients))


def _renew_all() -> None:
    for client in list(open_clients):
        client.renew_after_fork()


atexit.register(close_all)
os.register_at_fork(after_in_child=_renew_all)
