"""A service that has no room for new managers: what it has goes on, and the new ones are tried."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client.partitions import Partitions
from offsetmgr.errors import (
    OffsetTimeoutError,
    OverloadedError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import Fault, error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import ScriptedService, Seen

A, B, NEW = (ManagerKey("g", "orders", number) for number in range(3))
FULL = OverloadedError("no room")


def value(offset: int) -> OffsetAndMetadata:
    """An offset."""
    return OffsetAndMetadata(offset)


class Room:
    """A limit of managers for a scripted service; requests that exceed it are refused whole."""

    def __init__(self, service: ScriptedService, limit: int) -> None:
        self.limit = limit
        self.refused: list[Seen] = []
        self._service = service
        self._handle = service.handle
        service.handle = self.handle  # type: ignore[method-assign]

    def handle(self, seen: Seen) -> tuple[int, bytes]:
        """Refuse what asks for too many."""
        if seen.path in {"/v1/managers", "/v1/offsets"} and seen.method == "POST":
            named = [*seen.body.get("offsets", []), *seen.body.get("partitions", [])]
            keys = [ManagerKey(seen.body["group"], e["topic"], e["partition"]) for e in named]
            if len(self._service.managers.keys() | set(keys)) > self.limit:
                self.refused.append(seen)
                return 429, error_body("overloaded", "no room here")
        return self._handle(seen)


@pytest.fixture
def room(service: ScriptedService, client: OffsetClient) -> Room:
    """Two managers are made, and there is room for none more."""
    client.submit("g", {A.topic_partition: 1, B.topic_partition: 1}, sync=True)
    return Room(service, 2)


def test_what_the_service_has_goes_before_what_it_has_no_room_for(
    service: ScriptedService, client: OffsetClient, room: Room
) -> None:
    """A manager that is refused holds up no offset of another one."""
    client.spawn(*NEW)
    service.wait_for(lambda: bool(room.refused))
    client.submit("g", {A.topic_partition: 2, B.topic_partition: 2})
    assert client.flush(timeout=600) == ({A: value(2), B: value(2)}, {})


def test_a_flush_tells_apart_what_there_is_no_room_for(
    service: ScriptedService, client: OffsetClient, room: Room
) -> None:
    """Offsets submitted with that of a manager too many are committed; it is told the reason."""
    client.submit("g", {key.topic_partition: 2 for key in (A, B, NEW)})
    committed, uncommitted = client.flush(timeout=4)
    assert committed == {A: value(2), B: value(2)}
    assert "no room here" in str(uncommitted[NEW].error)
    assert service.kafka == {A: value(2), B: value(2)}
    assert room.refused


def test_a_sync_submit_with_a_manager_too_many(
    service: ScriptedService, client: OffsetClient, room: Room
) -> None:
    """The others are committed, and the error names the one that is not, and why."""
    offsets = {(key.topic, key.partition): 2 for key in (A, B, NEW)}
    with pytest.raises(OffsetTimeoutError, match=r"orders-2 of group g.*no room here") as caught:
        client.submit("g", offsets, sync=True, timeout=4)
    assert "orders-0" not in str(caught.value)
    assert service.kafka == {A: value(2), B: value(2)}
    assert room.refused


@pytest.mark.usefixtures("room")
def test_who_waits_for_a_manager_is_told_that_there_is_no_room(client: OffsetClient) -> None:
    """A claim and an initial offset end in their time, with the service's words."""
    with pytest.raises(OffsetTimeoutError, match="no room here"):
        client.claim("g", [NEW.topic_partition], timeout=1)
    with pytest.raises(OffsetTimeoutError, match="no room here"):
        client.spawn(*NEW).initial_offset(timeout=1)


def test_what_there_was_no_room_for_is_tried_until_there_is(
    service: ScriptedService, client: OffsetClient, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    """The offset of a refused manager is committed as soon as another one is given back."""
    client.submit("g", {NEW.topic_partition: 7})
    service.wait_for(lambda: len(room.refused) > 2)
    assert "no room here" in caplog.text
    client.stop_managers(group="g", partitions=[A.topic_partition])
    service.wait_for(lambda: NEW in service.taken)
    assert client.flush().committed[NEW] == value(7)


def test_room_for_some_of_a_group_is_used(
    service: ScriptedService, client: OffsetClient, room: Room
) -> None:
    """New managers are asked for in smaller requests, until one fits; the others wait on."""
    client.submit("g", {("orders", number): 7 for number in (5, 6, 7)})
    service.wait_for(lambda: bool(room.refused))
    room.limit = 4
    service.wait_for(lambda: len(service.taken) == 2)
    assert len(service.managers) == 4
    committed, uncommitted = client.flush(timeout=0.5)
    assert (len(committed), len(uncommitted)) == (4, 1)


def test_a_refusal_beside_offsets_that_never_end(
    service: ScriptedService, client: OffsetClient, room: Room
) -> None:
    """However much is submitted to what the service has, the others get their turns."""
    client.spawn(*NEW)
    offset = 1
    while len(room.refused) < 3:
        offset += 1
        client.submit("g", {A.topic_partition: offset})
    client.flush()
    assert service.kafka[A] == value(offset)


def test_a_service_that_is_busy_with_all_is_left_alone_for_a_while(
    service: ScriptedService, client: OffsetClient
) -> None:
    """A refusal of what it has managers for is about something else: nothing is sent at once."""
    client.submit("g", {A.topic_partition: 1}, sync=True)
    hold = threading.Event()
    service.script("/v1/offsets", Fault(hold=hold, act=False, status=429, body=error_body("full")))
    client.submit("g", {A.topic_partition: 2})
    service.wait_for(lambda: len(service.of("/v1/offsets")) == 2)
    times, paused = client.core.times, []
    failed = times.failed

    def noted(now: float, at_least_s: float = 0.0) -> None:
        paused.append(at_least_s)
        failed(now, at_least_s)

    times.failed = noted  # type: ignore[method-assign]
    hold.set()
    assert client.flush().committed == {A: value(2)}
    assert len(paused) == 1


# What the partitions makes of it


def full(partitions: Partitions) -> None:
    """Its next request asks for too much."""
    batch = partitions.take()
    assert batch is not None
    assert partitions.exceed(batch, FULL)
    partitions.give_back(batch)


@pytest.mark.parametrize(("wanted", "limit"), [(3, 2), (1000, 1), (1000, 499), (1000, 999)])
def test_what_room_there_is_is_found_by_halves(wanted: int, limit: int) -> None:
    """It takes few refusals, each of which is followed by a pause."""
    partitions = Partitions()
    for number in range(wanted):
        partitions.add(ManagerKey("g", "orders", number))
    made: set[ManagerKey] = set()
    refusals = 0
    while len(made) < limit:
        batch = partitions.take()
        assert batch is not None
        keys = {item.key for item in batch.items}
        if len(made | keys) <= limit:
            made |= keys
            partitions.accept(batch, {})
        else:
            refusals += 1
            assert refusals <= 4 * wanted.bit_length()
            assert partitions.exceed(batch, FULL)
            partitions.give_back(batch)
    assert partitions.take()


END: dict[str, Callable[[Partitions], object]] = {
    "stopped": lambda partitions: partitions.stop([NEW]),
    "removed": lambda partitions: partitions.remove([NEW]),
}


@pytest.mark.parametrize("end", END)
def test_what_is_given_up_is_asked_for_no_more(end: str) -> None:
    """A manager that was never made is not made for a stop."""
    partitions = Partitions()
    partitions.add(NEW)
    full(partitions)
    END[end](partitions)
    assert partitions.take() is None


def test_a_refusal_of_what_the_service_has_is_no_lack_of_room() -> None:
    """Nor is one that an earlier process of the service gave."""
    partitions = Partitions()
    partitions.add(A)
    first = partitions.take()
    assert first is not None
    partitions.renew()
    assert not partitions.exceed(first, FULL)
    again = partitions.take()
    assert again is not None
    partitions.accept(again, {})
    partitions.submit(A, value(1))
    offsets = partitions.take()
    assert offsets is not None
    assert not partitions.exceed(offsets, FULL)
    assert not (partitions.quota_error is not None)
