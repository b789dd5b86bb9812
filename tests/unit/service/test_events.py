"""Event streams: newest commits, bounded failures, and readers that come back or stand still."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from actors.testing import SimSystem
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import OffsetCommitError, OverloadedError, error_info
from offsetmgr.manager import Factory
from offsetmgr.service.events import (
    BATCH,
    FAILURES_KEPT,
    NEWS_KEPT,
    EventHub,
    Subscription,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

FIRST = 1_000
A, B = ManagerKey("g", "t", 0), ManagerKey("h", "t", 0)
OWNER = {A: "a", B: "b"}
LOST = b'event: dropped\ndata: {"count":%d,"group":"g","topic":"t","partition":0}\n\n'
"""So many of A's failures were not told."""


class Owners:
    """Client ``a`` owns A, client ``b`` owns B."""

    def owner(self, key: ManagerKey) -> str | None:
        """By the table."""
        return OWNER.get(key)

    def held(self, name: str) -> Sequence[ManagerKey]:
        """By the table."""
        return [key for key, owner in OWNER.items() if owner == name]


@pytest.fixture
def factory() -> Factory:
    """A factory whose time stands still."""
    return Factory(MemoryCoordinator(), system=SimSystem(1))


@pytest.fixture
def hub(factory: Factory) -> EventHub:
    """With room for two readers."""
    return EventHub(lambda: factory, Owners, streams=2, first_number=FIRST)


def error(key: ManagerKey) -> OffsetCommitError:
    """Something to tell."""
    return OffsetCommitError(key.group, key.topic, key.partition, 5, error_info(25))


async def deliver() -> None:
    """Let the loop hand over what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


def names(events: list[bytes]) -> list[str]:
    """Event names in order."""
    return [
        line[7:] for each in events for line in each.decode().split("\n") if line[:7] == "event: "
    ]


def run(test: Coroutine[None, None, None]) -> None:
    """On a loop of its own, as pytest has none."""
    asyncio.run(test)


@pytest.mark.fault(30)
def test_a_slow_reader_gets_the_newest_commit_alone(hub: EventHub) -> None:
    """Ten thousand commits wait as one."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        for offset in range(10_000):
            hub.committed(A, OffsetAndMetadata(offset))
        await deliver()
        (event,) = reader.take()
        assert b'"offset":9999' in event
        assert reader.take() == []

    run(test())


def test_a_reader_gets_its_own_events(hub: EventHub) -> None:
    """By client, and by group."""

    async def test() -> None:
        mine, group = hub.subscribe("a", None), hub.subscribe(None, "h")
        for key in (A, B):
            hub.committed(key, OffsetAndMetadata(1))
            hub.failed(key, error(key))
            hub.stopped(key)
        await deliver()
        assert {e.split(b'"group":"')[1][:1] for e in mine.take()} == {b"g"}
        assert {e.split(b'"group":"')[1][:1] for e in group.take()} == {b"h"}

    run(test())


@pytest.mark.fault(30)
def test_failures_are_bounded_and_the_loss_is_told(hub: EventHub) -> None:
    """A reader that stands still loses the oldest, and learns how many."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        for _ in range(2):
            for _ in range(FAILURES_KEPT):
                hub.failed(A, error(A))
            await deliver()
        assert len(reader.failures) == FAILURES_KEPT
        events = reader.take()
        assert events[0] == LOST % FAILURES_KEPT
        assert events[1].startswith(b"id: %d\nevent: failed\n" % (FIRST + FAILURES_KEPT))

    run(test())


def test_failures_lost_before_the_loop_turns_are_told_too(hub: EventHub) -> None:
    """The place between the threads is bounded as well, and nothing goes uncounted."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        for _ in range(FAILURES_KEPT + 7):
            hub.failed(A, error(A))
        await deliver()
        assert reader.take()[0] == LOST % 7

    run(test())


def test_losses_are_told_to_whom_they_concern(hub: EventHub) -> None:
    """By manager; a reader of others hears nothing of them."""

    async def test() -> None:
        mine, theirs = hub.subscribe("a", None), hub.subscribe("b", None)
        for _ in range(FAILURES_KEPT):
            hub.failed(A, error(A))
        hub.failed(B, error(B))
        hub.failed(B, error(B))
        await deliver()
        assert mine.take()[0] == LOST % 2
        assert names(theirs.take()) == ["failed", "failed"]

    run(test())


def test_the_names_of_the_lost_are_bounded(hub: EventHub) -> None:
    """Of more managers than are remembered the rest is counted without a name."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        for number in range(FAILURES_KEPT + 5):
            reader.lose(ManagerKey("g", "t", number))
        told = []
        while events := reader.take():
            told += events
        assert len(told) == FAILURES_KEPT + 1
        assert told[-1] == b'event: dropped\ndata: {"count":5}\n\n'

    run(test())


def test_a_reader_may_begin_where_it_first_heard_of_the_service(hub: EventHub) -> None:
    """From the newest id on no failure is missed, and one that was before is not told."""

    async def test() -> None:
        hub.failed(A, error(A))
        newest = hub.newest
        hub.failed(A, error(A))
        (event,) = hub.subscribe(None, None, after=newest).take()
        assert event.startswith(b"id: %d\n" % (newest + 1))

    run(test())


def test_a_reader_that_comes_back_gets_what_it_missed(hub: EventHub) -> None:
    """From the id it knows; a plain reader gets no old failures."""

    async def test() -> None:
        for _ in range(3):
            hub.failed(A, error(A))
        assert hub.subscribe(None, None).take() == []
        back = hub.subscribe(None, None, after=FIRST)
        ids = [e.split(b"\n")[0] for e in back.take()]
        assert ids == [b"id: %d" % (FIRST + 1), b"id: %d" % (FIRST + 2)]

    run(test())


def test_a_reader_that_was_away_too_long_learns_of_the_gap(hub: EventHub) -> None:
    """What has left the bounded memory is counted."""

    async def test() -> None:
        for _ in range(FAILURES_KEPT + 10):
            hub.failed(A, error(A))
        back = hub.subscribe(None, None, after=FIRST + 4)
        assert back.take()[0] == b'event: dropped\ndata: {"count":5}\n\n'
        earlier_service = hub.subscribe(None, None, after=7)
        assert len(earlier_service.failures) == FAILURES_KEPT
        assert earlier_service.take()[0].startswith(b"id: ")

    run(test())


def test_a_stop_after_a_commit_keeps_the_commit(hub: EventHub) -> None:
    """The last offset is told before the end; a new life hides the old end."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        hub.committed(A, OffsetAndMetadata(5))
        await deliver()
        hub.stopped(A)
        await deliver()
        assert names(reader.take()) == ["committed", "stopped"]
        hub.stopped(A)
        hub.committed(A, OffsetAndMetadata(6))
        await deliver()
        assert names(reader.take()) == ["committed"]

    run(test())


@pytest.mark.fault(30)
def test_a_reader_that_stands_still_while_managers_come_and_go_is_sent_away(hub: EventHub) -> None:
    """What waits for it has a bound; its stream ends, and the next one begins with what is."""

    async def test() -> None:
        reader = hub.subscribe(None, None)
        stream = hub.stream(reader)
        assert await anext(stream) == b": connected\n\n"
        for number in range(NEWS_KEPT + 1):
            hub.stopped(ManagerKey("g", "t", number))
        await deliver()
        hub.stopped(B)
        await deliver()
        assert not reader.news
        assert [each async for each in stream] == []

    run(test())


def test_news_of_live_managers_are_no_reason_to_send_a_reader_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are never more of those than managers; only those of others are counted."""
    monkeypatch.setattr("offsetmgr.service.events.NEWS_KEPT", 3)
    system = SimSystem(4)
    factory = Factory(MemoryCoordinator(), system=system)
    hub = EventHub(lambda: factory, Owners, streams=1, first_number=FIRST)
    live = [factory.spawn("g", "t", partition).key for partition in range(10)]
    system.run_until_idle()

    async def test() -> None:
        reader = hub.subscribe(None, "g")
        for key in live:
            hub.committed(key, OffsetAndMetadata(1))
        for partition in range(3):
            hub.stopped(ManagerKey("g", "gone", partition))
        await deliver()
        assert len(reader.news) == 13
        hub.stopped(ManagerKey("g", "gone", 3))
        await deliver()
        assert reader.closed

    run(test())


def test_a_failure_on_its_way_is_told_once_to_a_reader_that_comes(hub: EventHub) -> None:
    """It is among what is kept already; who asks for nothing old does not hear of it at all."""

    async def test() -> None:
        first = hub.subscribe(None, None)
        for _ in range(FAILURES_KEPT + 2):
            hub.failed(A, error(A))
        back = hub.subscribe(None, None, after=FIRST + 1)
        await deliver()
        assert [each.number for each in back.failures] == [*range(FIRST + 2, FIRST + 1_002)]
        assert names(back.take())[0] == "failed"
        assert first.take()[0] == LOST % 2
        assert len(first.failures) + BATCH - 1 == FAILURES_KEPT
        hub.unsubscribe(first)
        hub.failed(A, error(A))
        plain = hub.subscribe(None, None)
        await deliver()
        assert plain.take() == []

    run(test())


def test_readers_are_limited_and_make_room(hub: EventHub) -> None:
    """The limit is named; who goes makes room."""

    async def test() -> None:
        first, _ = hub.subscribe(None, None), hub.subscribe(None, None)
        with pytest.raises(OverloadedError, match="event_streams"):
            hub.subscribe(None, None)
        hub.unsubscribe(first)
        hub.subscribe(None, None)

    run(test())


def test_a_stream_begins_with_what_is_committed_and_ends_with_the_hub(factory: Factory) -> None:
    """Each manager with a committed offset first; no stream outlives the service."""
    system = SimSystem(2)
    coordinator = MemoryCoordinator()
    factory = Factory(coordinator, system=system)
    hub = EventHub(lambda: factory, Owners, streams=2, first_number=FIRST)
    handle = factory.spawn("g", "t", 0)
    system.run_until_idle()
    handle.submit(41)
    system.advance(5.0)

    async def collect(reader: Subscription) -> bytes:
        return b"".join([chunk async for chunk in hub.stream(reader)])

    async def test() -> None:
        reading = asyncio.create_task(collect(hub.subscribe("a", None)))
        await deliver()
        hub.close()
        text = await asyncio.wait_for(reading, 10)
        assert text.startswith(b": connected\n\nevent: committed\n")
        assert b'"offset":41' in text
        assert await collect(hub.subscribe(None, None)) == text

    run(test())


def test_a_stream_never_goes_back_at_its_start() -> None:
    """A commit that is still on its way when the newer state is read does not come after it."""
    system = SimSystem(3)
    factory = Factory(MemoryCoordinator(), system=system)
    hub = EventHub(lambda: factory, Owners, streams=1, first_number=FIRST)
    handle = factory.spawn("g", "t", 0)
    system.run_until_idle()
    handle.submit(41)
    system.advance(5.0)

    async def test() -> None:
        reader = hub.subscribe("a", None)
        hub.committed(A, OffsetAndMetadata(40))
        stream = hub.stream(reader)
        seen = [await anext(stream), await anext(stream)]
        await deliver()
        seen += reader.take()
        offsets = [int(each) for each in re.findall(rb'"offset":(\d+)', b"".join(seen))]
        assert offsets == sorted(offsets)
        assert offsets

    run(test())
