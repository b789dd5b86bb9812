"""The handle of one in-process manager."""

from __future__ import annotations

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetCommitError, OffsetTimeoutError
from offsetmgr.types import OffsetAndMetadata
from tests.together import together
from tests.unit.core.core import LOADING, TOPIC_DENIED, Core, at


def test_an_initial_offset_that_does_not_come_says_why(core: Core) -> None:
    """The wait ends with the coordinator's last answer as its cause."""
    core.coordinator.inject("fetch", *[Refuse(LOADING)] * 1000)
    handle = core.spawn()
    with pytest.raises(OffsetTimeoutError, match="COORDINATOR_LOAD_IN_PROGRESS") as caught:
        handle.initial_offset(timeout=0)
    assert caught.value.__cause__ is handle.status().last_error
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("offset", [0, 2**63 - 1])
@pytest.mark.fault(28)
def test_the_edges_of_64_bits_are_committed_as_they_are(core: Core, offset: int) -> None:
    """Nothing on the way treats an offset as anything but a number."""
    core.spawn().submit(offset, "m", 2**31 - 1)
    core.advance(2.0)
    assert core.holds() == OffsetAndMetadata(offset, "m", 2**31 - 1)


def test_errors_are_bounded_and_dropped_ones_are_counted() -> None:
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


def test_the_status_shows_a_manager_from_all_sides(core: Core) -> None:
    """An operator sees the offset, its age, and what is uncommitted and why."""
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


@pytest.mark.fault(11)
def test_a_submit_takes_no_lock_that_the_coordinator_holds(core: Core) -> None:
    """A coordinator that hangs forever does not delay a submit from any thread."""
    handle = core.spawn()
    core.coordinator.pause()
    handle.submit(1)
    core.advance(1.5)

    def hammer(_thread: int) -> None:
        for offset in range(2, 10_000):
            handle.submit(offset)

    together(1, hammer)
    assert handle.status().submitted == at(9_999)
    assert len(core.manager(handle).actor_inbox) <= 1
