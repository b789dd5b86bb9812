"""Health: what an outage says, and that systemd hears only of a service that works."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from actors.testing import ManualClock, SimSystem
from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse
from offsetmgr.service import health
from offsetmgr.service.health import Health, watchdog
from tests.logs import capture_logs

if TYPE_CHECKING:
    from actors import Future
    from offsetmgr.coordinator.base import Failure


@pytest.mark.anyio
async def test_an_outage_is_logged_once_for_each_cause() -> None:
    """However its text changes, and whichever of the causes comes again."""
    coordinator = MemoryCoordinator()
    refused = "{0}:9092/{0}: Connect failed (after {0}ms, {0} identical error(s) suppressed)"
    for number in range(1, 10):
        coordinator.inject("check", Refuse(7, detail=refused.format(number)))
        coordinator.inject("check", Refuse(7, detail="no route to host"))
    checked = Health(coordinator, ManualClock(), lambda: False, lambda: "")
    with capture_logs() as logs:
        for _ in range(20):
            await checked.check()
    assert [entry["event"] for entry in logs] == [
        "kafka_unreachable",
        "kafka_unreachable",
        "kafka_reachable",
    ]


@pytest.mark.anyio
async def test_a_check_that_raises_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a task of the background dies, and its last word stands forever."""
    monkeypatch.setattr(health, "CHECK_INTERVAL_S", 0.0)
    coordinator, clock = MemoryCoordinator(), ManualClock()
    checked = Health(coordinator, clock, lambda: False, lambda: "")
    ask = coordinator.check

    def fails_first(timeout_s: float) -> Future[Failure | None]:
        monkeypatch.setattr(coordinator, "check", ask)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(coordinator, "check", fails_first)
    watching = asyncio.create_task(checked.watch())
    with capture_logs() as logs:
        for _ in range(20):
            await asyncio.sleep(0)
    assert checked.state().ready
    assert [entry["event"] for entry in logs] == ["check_failed", "kafka_reachable"]
    watching.cancel()
    clock.advance(health.READY_WINDOW_S + 1)
    assert checked.state().kafka == "no answer in time"


@pytest.mark.anyio
async def test_the_watchdog_waits_for_the_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """While timers and actors stand still, systemd hears nothing."""
    with (
        TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        systemd.bind(str(Path(folder) / "n.sock"))
        systemd.setblocking(False)  # noqa: FBT003 -- the library's parameter
        monkeypatch.setenv("NOTIFY_SOCKET", str(Path(folder) / "n.sock"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        system = SimSystem(1)
        task = asyncio.create_task(watchdog(system))
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        system.advance(1.0)
        told = await asyncio.get_running_loop().sock_recv(systemd, 100)
        assert told == b"WATCHDOG=1"
        task.cancel()
