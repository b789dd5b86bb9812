"""systemd hears of the service only while loop, timers and actors answer."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from actors import ActorSystem, PooledActor
from offsetmgr.service.watchdog import Watchdog, interval_s

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0


class Stuck(PooledActor):
    """Holds the thread that runs it."""

    def on_receive(self, message: threading.Event) -> None:
        """Wait."""
        message.wait(WAIT_S)


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Its end of NOTIFY_SOCKET."""
    with (
        TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening,
    ):
        path = str(Path(folder) / "n.sock")
        listening.bind(path)
        listening.setblocking(False)  # noqa: FBT003 -- the library's parameter
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield listening


def test_a_ping_waits_for_the_actors(systemd: socket.socket) -> None:
    """While every thread of the actors is held there is none; it comes when one is free."""
    release = threading.Event()

    async def test(system: ActorSystem) -> None:
        watchdog = Watchdog(system)
        await asyncio.wait_for(watchdog.ping(), WAIT_S)
        assert systemd.recv(100) == b"WATCHDOG=1"
        for number in range(2):
            system.spawn(Stuck, name=f"stuck-{number}").tell(release)
        ping = asyncio.create_task(watchdog.ping())
        fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        system.timers.call_after(0.0, lambda: loop.call_soon_threadsafe(fired.set_result, None))
        await asyncio.wait_for(fired, WAIT_S)  # by now the ping stands before the actors
        assert not ping.done()
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        release.set()
        await asyncio.wait_for(ping, WAIT_S)
        assert systemd.recv(100) == b"WATCHDOG=1"

    with ActorSystem(threads=2, name="test") as system:
        asyncio.run(test(system))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_systemd_says_whether_it_wants_to_hear(env: dict[str, str], expected: float | None) -> None:
    """Of this process, and how often."""
    assert interval_s(env) == expected
