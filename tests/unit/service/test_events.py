"""Event streams: newest commits, bounded failures, and readers that come back or stand still."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import ManualClock, SimSystem
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import OffsetCommitError, OffsetFetchError, error_info
from offsetmgr.manager import Factory
from offsetmgr.repeats import INTERVAL_S
from offsetmgr.service.access import ALL_RIGHTS, Requester
from offsetmgr.service.events import FAILURES_KEPT, NEWS_KEPT, EventHub, EventStream
from offsetmgr.service.messages import Caller, EventsQuery
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.logs import capture_logs

pytestmark = pytest.mark.anyio

AT_S = 0.001
FIRST = 1_000
"""The first failure's number, from the time."""
A, B = ManagerKey("g", "t", 0), ManagerKey("h", "t", 0)
ANYBODY = Requester(rights=ALL_RIGHTS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hub(clock: ManualClock) -> EventHub:
    """With room for two readers."""
    factory = Factory(MemoryCoordinator(), system=SimSystem(1))
    return EventHub(factory, clock, wall=lambda: AT_S, streams=2, managers=0)


def error(key: ManagerKey) -> OffsetCommitError:
    return OffsetCommitError(key.group, key.topic, key.partition, 5, error_info(25))


async def deliver() -> None:
    """Let the loop hand over what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


def names(events: list[bytes]) -> list[str]:
    return [
        line[7:] for each in events for line in each.decode().split("\n") if line[:7] == "event: "
    ]


@pytest.mark.fault(30)
async def test_a_slow_reader_gets_the_newest_commit_alone(hub: EventHub) -> None:
    """Ten thousand commits wait as one."""
    reader = await hub.events(ANYBODY, EventsQuery())
    for offset in range(10_000):
        hub.committed({A: OffsetAndMetadata(offset)})
    await deliver()
    (event,) = hub.take(reader)
    assert b'"offset":9999' in event
    assert hub.take(reader) == []


@pytest.mark.fault(30)
async def test_failures_are_bounded_and_dropped_ones_are_counted(hub: EventHub) -> None:
    """A reader that hangs or was away loses the oldest, and learns how many."""
    reader = await hub.events(ANYBODY, EventsQuery())
    for _ in range(FAILURES_KEPT + 7):
        hub.failed(A, error(A))
    for late in (reader, await hub.events(ANYBODY, EventsQuery(after=FIRST - 1))):
        events = hub.take(late)
        assert events[0] == b'event: dropped\ndata: {"count":7}\n\n'
        assert events[1].startswith(b"id: %d\nevent: failed\n" % (FIRST + 7))
        while batch := hub.take(late):
            events += batch
        assert len(events) == FAILURES_KEPT + 1


@pytest.mark.parametrize("after", [7, FIRST + 1_000], ids=["before", "clock set back"])
async def test_a_reader_of_an_earlier_process_gets_all_failures_of_this_one(
    hub: EventHub, after: int
) -> None:
    """The kind: a number of the other process is taken for one of this, and failures for told."""
    hub.failed(A, error(A))
    reader = await hub.events(ANYBODY, EventsQuery(after=after))
    assert names(hub.take(reader)) == ["failed"]
    hub.failed(A, error(A))
    assert names(hub.take(reader)) == ["failed"]


def test_a_failure_is_logged_at_once_and_repetitions_are_counted(
    hub: EventHub, clock: ManualClock
) -> None:
    """A thousand partitions of a group that fail with one code at every retry are one line."""
    with capture_logs() as logs:
        for number in range(1_000):
            key = ManagerKey("g", "t", number)
            hub.failed(key, error(key))
        hub.failed(B, error(B))
        hub.failed(B, OffsetFetchError(*B, None, error_info(14), ""))
        clock.advance(INTERVAL_S)
        hub.failed(A, error(A))
    assert [(each["event"], each["group"], each["not_shown_before"]) for each in logs] == [
        ("commit_failed", "g", 0),
        ("commit_failed", "h", 0),
        ("fetch_failed", "h", 0),
        ("commit_failed", "g", 999),
    ]
    assert "live members" in logs[0]["error"]


async def test_a_reader_of_failures_alone_hears_of_nothing_else(hub: EventHub) -> None:
    """A page gets, next to ten thousand commits a second, the failures, each with its time."""
    reader = await hub.events(ANYBODY, EventsQuery(only="failed"))
    hub.committed({A: OffsetAndMetadata(5)})
    hub.stopped(A)
    hub.failed(B, error(B))
    await deliver()
    (event,) = hub.take(reader)
    assert names([event]) == ["failed"]
    assert b'"at":0.001' in event


async def test_a_commit_is_offered_to_readers_of_its_client_alone(
    hub: EventHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: work that grows with the clients, here a comparison for each commit and reader."""
    offered: list[EventStream] = []

    def wants(reader: EventStream, *_: object) -> bool:
        offered.append(reader)
        return True

    monkeypatch.setattr(EventStream, "wants", wants)
    callers = [Caller(name=name) for name in ("etl", "other")]
    mine, _ = [await hub.events(ANYBODY._replace(caller=each), EventsQuery()) for each in callers]
    hub.factory.spawn(*A, owner="etl")
    hub.committed({A: OffsetAndMetadata(5)})
    assert offered == [mine]
    assert names(hub.take(mine)) == ["committed"]


async def test_a_stop_after_a_commit_keeps_the_commit(hub: EventHub) -> None:
    """The last offset is told before the end; a new life hides the old end."""
    reader = await hub.events(ANYBODY, EventsQuery())
    hub.committed({A: OffsetAndMetadata(5)})
    await deliver()
    hub.stopped(A)
    await deliver()
    assert names(hub.take(reader)) == ["committed", "stopped"]
    hub.stopped(A)
    hub.committed({A: OffsetAndMetadata(6)})
    await deliver()
    assert names(hub.take(reader)) == ["committed"]


@pytest.mark.fault(30)
async def test_a_reader_that_stalls_while_managers_come_and_go_is_disconnected(
    hub: EventHub,
) -> None:
    """A stream's queue has a limit; beyond it the stream ends, and the next one begins afresh."""
    reader = await hub.events(ANYBODY, EventsQuery())
    stream = hub.stream(reader)
    assert await anext(stream) == b": connected\n\n"
    for number in range(NEWS_KEPT + 1):
        hub.stopped(ManagerKey("g", "t", number))
    await deliver()
    hub.stopped(B)
    await deliver()
    assert not reader.news
    assert [each async for each in stream] == []
