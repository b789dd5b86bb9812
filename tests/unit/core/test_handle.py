"""What the user of one in-process manager holds."""

from __future__ import annotations

import threading

import pytest

from actors import MailboxClosed
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, OffsetManagerHandle, StopResult
from tests.unit.core.core import GROUP_DENIED, LOADING, TOPIC_DENIED, Core, at


def test_it_is_the_handle_that_every_way_to_a_manager_gives(core: Core) -> None:
    """In process and through the service users write the same code."""
    handle: OffsetManagerHandle = core.spawn()
    assert handle.key == ManagerKey("g", "t", 0)
    assert repr(handle) == "<ManagerHandle g/t/0 ready>"


def test_the_initial_offset_is_there_for_every_reader(core: Core) -> None:
    """It comes once, and stays."""
    core.put(OffsetAndMetadata(7, "note", 3))
    handle = core.spawn()
    assert [handle.initial_offset(timeout=0) for _ in range(3)] == [
        OffsetAndMetadata(7, "note", 3)
    ] * 3
    assert handle.initial.closed


@pytest.mark.fault(34)
def test_nothing_committed_is_none(core: Core) -> None:
    """Never 0, never -1."""
    assert core.spawn().initial_offset(timeout=0) is None


def test_an_initial_offset_that_does_not_come_says_why(core: Core) -> None:
    """The wait ends with the coordinator's last answer as its cause."""
    core.coordinator.inject("fetch", *[Refuse(LOADING)] * 1000)
    handle = core.spawn()
    with pytest.raises(OffsetTimeoutError, match="COORDINATOR_LOAD_IN_PROGRESS") as caught:
        handle.initial_offset(timeout=0)
    assert caught.value.__cause__ is handle.status().last_error
    assert isinstance(caught.value, TimeoutError)


def test_an_initial_offset_that_nobody_answered_says_so(core: Core) -> None:
    """There is no cause to name yet."""
    handle = core.factory.spawn("g", "t", 0)
    with pytest.raises(OffsetTimeoutError, match="has not answered yet"):
        handle.initial_offset(timeout=0)


def test_a_stop_ends_the_wait_for_the_initial_offset(core: Core) -> None:
    """Nobody waits for what will not come."""
    core.coordinator.pause()
    handle = core.spawn()
    core.stop(handle, 1.0)
    core.advance(1.0)
    with pytest.raises(ManagerStoppedError, match="was stopped before its initial offset"):
        handle.initial_offset(timeout=0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((-1,), "offset"),
        ((2**63,), "offset"),
        ((True,), "offset"),
        ((1.0,), "offset"),
        ((1, "x" * 4096), "metadata"),
        ((1, None), "metadata"),
        ((1, "", -1), "leader_epoch"),
        ((1, "", True), "leader_epoch"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", ["submit", "rewind"])
@pytest.mark.fault(25, 28)
def test_bad_values_are_refused_at_the_door(
    core: Core, method: str, arguments: tuple[object, ...], field: str
) -> None:
    """Nothing is done with them."""
    handle = core.spawn()
    with pytest.raises(InvalidValueError) as caught:
        getattr(handle, method)(*arguments)
    assert caught.value.field == field
    core.advance(5.0)
    assert core.commits() == []


@pytest.mark.parametrize("offset", [0, 2**63 - 1])
@pytest.mark.fault(28)
def test_the_edges_of_64_bits_are_committed_as_they_are(core: Core, offset: int) -> None:
    """Nothing on the way treats an offset as anything but a number."""
    core.spawn().submit(offset, "m", 2**31 - 1)
    core.advance(2.0)
    assert core.holds() == OffsetAndMetadata(offset, "m", 2**31 - 1)


@pytest.mark.fault(3)
def test_a_lower_offset_is_refused_at_once(core: Core) -> None:
    """By what was submitted and by what was committed before; a rewind says it is meant."""
    core.put(at(10))
    handle = core.spawn()
    with pytest.raises(OffsetRegressionError):
        handle.submit(9)
    handle.submit(20)
    with pytest.raises(OffsetRegressionError):
        handle.submit(19)
    handle.rewind(5)
    core.advance(2.0)
    assert core.holds() == at(5)
    assert handle.status().regressions == 2


def test_the_committed_mailbox_holds_the_newest_and_closes_with_the_manager(core: Core) -> None:
    """Unread values are replaced; iteration ends after the last."""
    handle = core.spawn()
    for offset in (1, 2, 3):
        handle.submit(offset)
        core.advance(1.5)
    core.stop(handle, 5.0)
    core.advance(1.0)
    assert list(handle.committed_offsets()) == [at(3)]
    with pytest.raises(MailboxClosed):
        handle.committed_offsets().get(timeout=0)


def test_errors_are_bounded_and_what_is_dropped_is_counted() -> None:
    """An hour without a reader costs a few errors' room."""
    core = Core(error_limit=3)
    handle = core.spawn()
    core.coordinator.inject("commit", *[Refuse(TOPIC_DENIED)] * 10)
    for offset in range(10):
        handle.submit(offset)
        core.advance(1.5)
    stream = handle.errors()
    assert stream.dropped == 7
    told = [stream.get(timeout=0) for _ in range(3)]
    assert all(isinstance(error, OffsetCommitError) for error in told)
    assert [getattr(error, "offset", None) for error in told] == [7, 8, 9]


def test_an_error_carries_all_that_is_known(core: Core) -> None:
    """Group, topic, partition, offset, code, retriable and hint."""
    core.coordinator.inject("commit", Refuse(GROUP_DENIED, detail="no ACL for etl"))
    handle = core.spawn(3)
    handle.submit(1042)
    core.advance(1.5)
    error = handle.errors().get(timeout=0)
    assert isinstance(error, OffsetCommitError)
    assert (error.group, error.topic, error.partition, error.offset) == ("g", "t", 3, 1042)
    assert (error.code, error.retriable) == ("GROUP_AUTHORIZATION_FAILED", False)
    assert error.hint == "no ACL for etl"


def test_the_status_shows_a_manager_from_all_sides(core: Core) -> None:
    """What an operator asks: how far, how long ago, what is left and why."""
    core.put(at(5))
    handle = core.factory.spawn("g", "t", 0)
    assert handle.status() == ("fetching", None, None, None, False, None, 0)
    core.advance(0.5)
    handle.submit(7)
    assert handle.status() == ("ready", at(7), at(5), None, True, None, 0)
    core.advance(2.0)
    status = handle.status()
    assert (status.committed, status.dirty) == (at(7), False)
    assert status.committed_at is not None
    assert 1.5 <= status.committed_at <= 2.5
    core.coordinator.pause()
    handle.submit(8)
    core.stop(handle, 3.0)
    core.advance(0.1)
    assert handle.status().phase == "stopping"
    core.advance(5.0)
    assert handle.status().phase == "stopped"
    assert handle.status().dirty


def test_stop_blocks_until_it_is_answered(core: Core) -> None:
    """The answer of a stop is what was committed."""
    handle = core.spawn()
    handle.submit(7)
    assert handle.stop(timeout=5.0) == StopResult(at(7))
    assert handle.stop(timeout=5.0) == StopResult(at(7))


@pytest.mark.parametrize("method", ["submit", "rewind"])
def test_nothing_can_be_submitted_after_a_stop(core: Core, method: str) -> None:
    """It says what to do instead."""
    handle = core.spawn()
    handle.stop()
    with pytest.raises(ManagerStoppedError, match="spawn a new manager"):
        getattr(handle, method)(1)


@pytest.mark.fault(11)
def test_a_submit_takes_no_lock_that_the_coordinator_holds(core: Core) -> None:
    """A coordinator that hangs for ever does not delay a submit from any thread."""
    handle = core.spawn()
    core.coordinator.pause()
    handle.submit(1)
    core.advance(1.5)

    def hammer() -> None:
        for offset in range(2, 10_000):
            handle.submit(offset)

    thread = threading.Thread(target=hammer)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    assert handle.status().submitted == at(9_999)
    assert len(core.manager(handle).cell._inbox) <= 1
