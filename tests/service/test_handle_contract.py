"""One handle, two ways to it, which keep the same promises; `LocalOffsets` has the first."""

from __future__ import annotations

from typing import Final

import pytest

from offsetmgr import (
    ManagerKey,
    ManagerStoppedError,
    OffsetAndMetadata,
    OffsetCommitError,
    OffsetManagerError,
    OffsetManagerHandle,
    OffsetRegressionError,
    Offsets,
    OffsetTimeoutError,
    StopResult,
    TopicPartition,
)
from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse
from tests.service.support import WAIT_S

WHERE: Final = TopicPartition("orders", 3)
METADATA_TOO_LARGE: Final = 12


def at(offset: int) -> OffsetAndMetadata:
    """Write an offset."""
    return OffsetAndMetadata(offset)


class Way:
    """A way to handles, and the Kafka behind it."""

    def __init__(self, opener: Offsets, coordinator: MemoryCoordinator) -> None:
        self.opener = opener
        self.coordinator = coordinator

    def spawn(self, partition: int = 3) -> OffsetManagerHandle:
        """Spawn a manager."""
        return self.opener.spawn("g", "orders", partition)

    def put(self, offset: int) -> None:
        """Commit as somebody else."""
        self.coordinator.broker.commit_externally("g", {WHERE: at(offset)})


@pytest.fixture
def way(offsets: Offsets, coordinator: MemoryCoordinator) -> Way:
    return Way(offsets, coordinator)


@pytest.mark.fault(34)
def test_the_initial_offset(way: Way) -> None:
    """It never changes; where nothing was committed it is None, never 0 or -1."""
    value = OffsetAndMetadata(7, "old", 1)
    way.coordinator.broker.commit_externally("g", {WHERE: value})
    handle = way.spawn()
    assert handle.key == ManagerKey("g", *WHERE)
    assert [handle.initial_offset(timeout=WAIT_S) for _ in range(2)] == [value] * 2
    assert handle.stop(timeout=WAIT_S) == StopResult(value)
    assert way.spawn(4).initial_offset(timeout=None) is None


def test_errors_end_with_the_error_of_the_stop(way: Way) -> None:
    """Once, also if the stop is answered before its event, or the event never comes."""
    handle = way.spawn()
    assert handle.initial_offset(timeout=WAIT_S) is None
    errors = handle.errors()
    for _ in range(50):
        way.coordinator.inject("commit", Refuse(METADATA_TOO_LARGE))
    handle.submit(5)
    result = handle.stop(timeout=WAIT_S)
    assert isinstance(result.error, OffsetCommitError)
    assert [str(error) for error in errors] == [str(result.error)]


@pytest.mark.parametrize("early", [True, False])
def test_the_first_committed_offset_is_the_one_submitted(way: Way, *, early: bool) -> None:
    """Not what was there before: also where the mailbox is asked for first, and after a flush."""
    way.put(1000)
    handle = way.spawn()
    stream = handle.committed_offsets() if early else None
    assert handle.initial_offset(timeout=WAIT_S) == at(1000)
    way.opener.flush(timeout=WAIT_S)
    handle.submit(1042)
    stream = stream or handle.committed_offsets()
    assert stream.get(WAIT_S) == at(1042)
    assert handle.stop(timeout=WAIT_S) == StopResult(at(1042))
    assert list(stream) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_submitted_offset_that_is_committed_already_is_reported(way: Way, *, known: bool) -> None:
    """A waiting caller gets its answer."""
    way.put(1000)
    handle = way.spawn()
    stream = handle.committed_offsets()
    if known:
        handle.initial_offset(timeout=WAIT_S)
    handle.submit(1000)
    assert stream.get(WAIT_S) == at(1000)
    assert not [r for r in way.coordinator.requests if r.operation == "commit"]


@pytest.mark.fault(3)
def test_a_lower_offset_is_refused_unless_it_is_a_rewind(way: Way) -> None:
    """At once, by what was submitted."""
    handle = way.spawn()
    handle.submit(20)
    with pytest.raises(OffsetRegressionError):
        handle.submit(19)
    handle.rewind(5, "again", 3)
    assert handle.stop(timeout=WAIT_S) == StopResult(OffsetAndMetadata(5, "again", 3))


def test_errors_say_all_that_is_known(way: Way) -> None:
    """Group, topic, partition, offset, code, whether it is tried again, and what to do."""
    handle = way.spawn()
    handle.initial_offset(timeout=WAIT_S)
    way.coordinator.inject("commit", *[Refuse(30, detail="grant READ on group g")] * 20)
    handle.submit(5)
    error = handle.errors().get(WAIT_S)
    assert isinstance(error, OffsetCommitError)
    assert (error.group, error.topic, error.partition, error.offset) == ("g", "orders", 3, 5)
    assert (error.code, error.retriable) == ("GROUP_AUTHORIZATION_FAILED", False)
    assert error.hint == "grant READ on group g"
    assert handle.errors().dropped == 0


def test_after_a_stop(way: Way) -> None:
    """Known values and unread results can be read; everything else raises."""
    way.put(3)
    handle = way.spawn()
    handle.initial_offset(timeout=WAIT_S)
    committed, errors = handle.committed_offsets(), handle.errors()
    handle.submit(7)
    handle.stop(timeout=WAIT_S)
    assert handle.initial_offset(timeout=0) == at(3)
    assert committed.get(WAIT_S) == at(7)
    assert list(errors) == []
    for ask in (committed.get, errors.get, lambda: handle.submit(8), lambda: handle.rewind(2)):
        with pytest.raises(ManagerStoppedError, match="g/orders/3 is stopped"):
            ask()


def test_stopped_before_the_initial_offset_was_known(way: Way) -> None:
    """There is none, and nobody waits for it."""
    way.coordinator.pause()
    handle = way.spawn()
    handle.stop(timeout=0)
    with pytest.raises(ManagerStoppedError):
        handle.initial_offset(timeout=None)


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_stop_says_why_something_is_left(way: Way, timeout: float) -> None:
    """Also where Kafka has said nothing, and where nobody waits."""
    way.coordinator.pause()
    handle = way.spawn()
    handle.submit(7)
    for result in (handle.stop(timeout=timeout), handle.stop(timeout=timeout)):
        assert result[:2] == (None, at(7))
        assert isinstance(result.error, OffsetManagerError)
        assert str(result.error)


def test_time_outs(way: Way) -> None:
    """0 does not wait; each says what did not come, by the product's own error."""
    way.coordinator.pause()
    handle = way.spawn()
    for timeout in (0, 0.05):
        with pytest.raises(OffsetTimeoutError, match="g/orders/3"):
            handle.initial_offset(timeout=timeout)
        for stream in (handle.committed_offsets(), handle.errors()):
            with pytest.raises(OffsetTimeoutError, match="g/orders/3"):
                stream.get(timeout)
