"""What is told of commits, in whatever order it arrives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from offsetmgr.client.partitions import ClientPartition
from offsetmgr.types import ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import Json, ScriptedService

KEY = ManagerKey("g", "orders", 3)


def value(offset: int) -> OffsetAndMetadata:
    """An offset."""
    return OffsetAndMetadata(offset)


def event(offset: int) -> Json:
    """The data of an event."""
    return {**KEY._asdict(), **value(offset)._asdict()}


def held(*offsets: int, rewind_to: int | None = None) -> ClientPartition:
    """A partition to which `offsets` were submitted, with the versions 1, 2, and so on."""
    made = ClientPartition(-1)
    for version, offset in enumerate(offsets, start=1):
        made.submit(value(offset), version, rewind=offset == rewind_to)
    return made


def test_a_late_event_does_not_bring_an_older_offset_back(
    service: ScriptedService, client: OffsetClient
) -> None:
    """What a flush has told to be committed is not followed by what was committed before it."""
    manager = client.spawn(*KEY)
    stream, errors = manager.committed_offsets(), manager.errors()
    service.wait_for_readers()
    for offset in (5, 8):
        manager.submit(offset)
        client.flush()
    assert stream.get(timeout=10) == value(8)
    service.emit("committed", event(5))
    error = {"code": "NOT_COORDINATOR", "message": "m", "kafka_code": 16, "offset": 9}
    service.emit("failed", {**KEY._asdict(), "error": error}, 9)
    errors.get(timeout=10)  # both have arrived
    with pytest.raises(TimeoutError):
        stream.get(timeout=0)


def test_nobody_comes_between_what_is_known_and_what_is_told(client: OffsetClient) -> None:
    """Else a newer offset could be told first, and this one after it."""
    manager = client.spawn(*KEY)
    core, free = client._core, []

    def look() -> None:
        free.append(core.lock.acquire(blocking=False))
        if free[-1]:
            core.lock.release()

    def put(value: OffsetAndMetadata) -> None:
        del value
        other = threading.Thread(target=look)
        other.start()
        other.join()

    with mock.patch.object(manager._mail.committed, "put", put):
        core.committed(KEY, value(5))
    assert free == [False]


def test_events_in_order_are_told_while_newer_offsets_wait() -> None:
    """Each is news, as long as it is not lower."""
    partition = held(5, 8, 12)
    assert [partition.commit(value(offset), 0) for offset in (5, 8, 5, 8)] == [
        True,
        True,
        False,
        True,
    ]
    assert partition.committed == value(8)


def test_an_answer_that_an_event_has_overtaken() -> None:
    """The answer to an older request is no news either, though the event has no version."""
    partition = held(5, 8, 12)
    assert partition.commit(value(8), 0)
    assert not partition.commit(value(5), 1)
    assert (partition.committed, partition.committed_version) == (value(8), 1)


def test_an_older_event_after_all_is_committed() -> None:
    """A higher one is of before a rewind then."""
    partition = held(5, 9, 6, rewind_to=6)
    assert partition.commit(value(6), 3)
    assert not partition.commit(value(9), 0)
    assert not partition.commit(value(5), 0)
    assert partition.committed == value(6)


def test_a_rewind_goes_back() -> None:
    """A lower offset is news where a rewind may have brought it; an answer always says so."""
    partition = held(9, 4, 6, rewind_to=4)
    assert partition.commit(value(9), 1)
    assert partition.commit(value(4), 0)
    assert partition.commit(value(9), 0)
    assert partition.commit(value(6), 3)
    assert partition.committed == value(6)


def test_the_service_moves_the_newest_to_the_end_of_its_log() -> None:
    """What an answer says of the newest stands, and what an event says after a notice."""
    partition = held(5, 9)
    assert partition.commit(value(5), 1)
    assert partition.commit(value(3), 2)
    partition = held(5, 9)
    assert partition.commit(value(5), 1)
    assert not partition.commit(value(3), 0)
    partition.must_resend = True
    assert partition.commit(value(3), 0)


def test_what_nobody_here_has_submitted_is_told_as_it_comes() -> None:
    """The service commits what another life of the client has left, in its own order."""
    partition = held()
    assert [partition.commit(value(offset), 0) for offset in (5, 3)] == [True, True]
