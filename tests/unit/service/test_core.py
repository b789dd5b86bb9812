"""The service's operations around the real core: leases and limits, in simulated time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.service.access import ALL_RIGHTS, Requester
from offsetmgr.service.audit import AuditLog
from offsetmgr.service.core import OffsetService
from offsetmgr.service.events import EventHub
from offsetmgr.service.messages import (
    Caller,
    FlushRequest,
    HeartbeatRequest,
    OpenEntry,
    OpenRequest,
    StopRequest,
    SubmitEntry,
    SubmitRequest,
)
from offsetmgr.service.sessions import Registry
from tests.logs import capture_logs
from tests.unit.core.core import Core

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


pytestmark = pytest.mark.anyio

LEASE_S = 30.0
LONG_S = 300.0
ALL = StopRequest(timeout_s=LONG_S)
FLUSH = FlushRequest(timeout_s=LONG_S)


def client(name: str, identity: str = "") -> Requester:
    return Requester(identity, rights=ALL_RIGHTS, caller=Caller(name))


def offsets(*partitions: int, wait: bool = False) -> SubmitRequest:
    entries = [SubmitEntry("t", partition, 5) for partition in partitions]
    return SubmitRequest("g", entries, wait=wait, timeout_s=LONG_S)


def managers(*partitions: int) -> OpenRequest:
    return OpenRequest("g", [OpenEntry("t", partition) for partition in partitions])


class Scene:
    """A service whose Kafka stands still until it is told to go on."""

    def __init__(self, managers: int = 100) -> None:
        self.core = Core()
        self.core.coordinator.pause()
        self.registry = Registry(
            lease_s=LEASE_S,
            clients=9,
            managers=managers,
            groups=4,
            share=lambda identity, limit: limit // 2 if identity else limit,
        )
        audit = AuditLog("", lambda: 0.0)
        clock, factory = self.core.system.clock, self.core.factory
        hub = EventHub(factory, clock, wall=lambda: 0.0, streams=1, managers=managers)
        self.service = OffsetService(factory, self.registry, clock, audit, hub)

    async def begun(self, asked: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have a request come as far as it does by itself."""
        task = asyncio.create_task(asked)
        await asyncio.sleep(0)
        assert not task.done()
        return task

    def pass_time(self, seconds: float) -> int:
        """Let leases run out; how many clients are left."""
        for _ in range(round(seconds)):
            self.core.advance(1.0)
            self.service.sweep()
        return len(self.registry.clients())


@pytest.mark.parametrize(
    "ask",
    [
        lambda service, me: service.submit(me, offsets(0, wait=True)),
        lambda service, me: service.flush(me, FLUSH),
        lambda service, me: service.stop(me, ALL),
    ],
    ids=["submit", "flush", "stop"],
)
async def test_a_lease_does_not_lapse_while_a_request_is_under_way(
    ask: Callable[[OffsetService, Requester], Coroutine[Any, Any, Any]],
) -> None:
    """A client that waits for its answer is not silent; it has a lease's time from then on."""
    scene, me = Scene(), client("me")
    await scene.service.submit(me, offsets(0))
    waiting = await scene.begun(ask(scene.service, me))
    await scene.service.heartbeat(me, HeartbeatRequest())
    assert scene.pass_time(4 * LEASE_S) == 1
    scene.core.coordinator.resume()
    scene.core.advance(LEASE_S)
    await waiting
    assert scene.pass_time(LEASE_S) == 1
    assert scene.pass_time(1) == 0


async def test_an_answer_does_not_end_the_lease_of_a_client_that_waits_for_another() -> None:
    """A script with two flushes, and no heartbeats, lost its managers in the middle of one."""
    scene, me = Scene(), client("me")
    await scene.service.submit(me, offsets(0))
    waiting = await scene.begun(scene.service.flush(me, FLUSH))
    short = await scene.begun(scene.service.flush(me, FlushRequest(timeout_s=1.0)))
    scene.pass_time(2)
    await short
    assert scene.pass_time(2 * LEASE_S) == 1
    scene.core.coordinator.resume()
    scene.core.advance(LEASE_S)
    await waiting
    assert scene.pass_time(LEASE_S + 1) == 0


@pytest.mark.parametrize("way", ["stop", "lapse"])
@pytest.mark.parametrize("limit", ["managers", "groups"])
async def test_a_stopping_manager_counts_for_the_share_of_its_identity(
    way: str, limit: str
) -> None:
    """The kind: an identity gives its share back, and takes it again before it is free.

    It could use up all managers, and all fenced groups, while Kafka was slow.
    """
    scene, me, other = Scene(managers=8), client("a", "etl"), client("b", "admin")
    groups = ["g", "h"] if limit == "groups" else ["g"]
    for group in groups:
        wanted = [OpenEntry("t", number) for number in range(1 if len(groups) > 1 else 4)]
        await scene.service.open(me, OpenRequest(group, wanted))
    if way == "stop":
        stop = await scene.begun(scene.service.stop(me, ALL))
    else:
        scene.pass_time(LEASE_S + 1)
    new = OpenRequest("new", [OpenEntry("t", 0)])
    (refused,) = (await scene.service.open(me, new)).managers
    assert refused.error is not None
    assert "its share is used up" in refused.error.message
    (made,) = (await scene.service.open(other, new)).managers
    assert made.error is None
    if way == "stop":
        stop.cancel()


async def test_managers_on_their_way_out_count() -> None:
    """The limit is for all that are there; the place of one is free as soon as it has stopped."""
    scene, me = Scene(managers=2), client("me")
    await scene.service.submit(me, offsets(0, 1))
    stop = await scene.begun(scene.service.stop(me, ALL))
    [refused] = (await scene.service.open(me, managers(2))).managers
    assert refused.error is not None
    assert "limits.managers); wait for the 2 that are being stopped" in refused.error.message
    scene.core.coordinator.resume()
    scene.core.advance(1)
    await stop
    answer = await scene.service.open(me, managers(2, 3))
    assert [each.error for each in answer.managers] == [None, None]


async def test_a_client_that_gave_all_back_goes_without_a_warning() -> None:
    """It was closed; only what lapses with managers is news for an operator."""
    scene, closed = Scene(), client("closed")
    await scene.service.submit(closed, offsets(0))
    stop = await scene.begun(scene.service.stop(closed, ALL))
    scene.core.coordinator.resume()
    scene.core.advance(1)
    await stop
    await scene.service.submit(client("killed"), offsets(1))
    with capture_logs() as told:
        assert scene.pass_time(LEASE_S + 1) == 0
    lapsed = [(each["client"], each["log_level"]) for each in told if "client_" in each["event"]]
    assert lapsed == [("killed", "warning")]
