"""Commits to the broker: intervals, refusals, unknown outcomes, recommits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import OffsetRegressionError
from tests.unit.core.core import GROUP_DENIED, LOADING, TIMED_OUT, TOPIC_DENIED, Core, at, tp

if TYPE_CHECKING:
    from offsetmgr.coordinator.memory import Incident, Operation


DAY_S = 86_400.0


def test_only_the_newest_of_an_interval_is_committed(core: Core) -> None:
    """A hot loop of submits costs one request a second."""
    handle = core.spawn()
    for step in range(100):
        for offset in range(100):
            handle.submit(step * 100 + offset)
        core.advance(0.1)
    assert 9 <= len(core.commits()) <= 10
    core.advance(2.0)
    assert core.holds() == at(9_999)


def test_equal_offset_with_new_metadata_is_committed(core: Core) -> None:
    """Metadata alone is worth a commit."""
    core.put(at(7, "old"))
    core.submit(core.spawn(), 7, "new")
    assert core.holds() == at(7, "new")


def test_a_rewind_that_is_taken_back_makes_no_request(core: Core) -> None:
    """The newest offset is committed."""
    core.put(at(7))
    handle = core.spawn()
    handle.rewind(3)
    handle.submit(7)
    core.advance(5.0)
    assert core.commits() == []
    assert handle.status().dirty is False


def test_a_lower_submit_is_reported_when_the_initial_offset_comes(core: Core) -> None:
    """At the time nobody knew; then it is dropped, reported and counted, and not committed."""
    core.put(at(10))
    handle = core.factory.spawn("g", "t", 0)
    handle.submit(5)
    core.advance(5.0)
    assert core.commits() == []
    error = handle.errors().get(timeout=0)
    assert isinstance(error, OffsetRegressionError)
    assert (error.offset, error.floor) == (5, 10)
    status = handle.status()
    assert (status.regressions, status.dirty, status.submitted) == (1, False, at(10))
    core.submit(handle, 11)
    assert core.holds() == at(11)


def test_a_rewind_above_an_offset_that_waits_goes_back_too(core: Core) -> None:
    """It is below what turns out to be committed."""
    core.put(at(10))
    handle = core.factory.spawn("g", "t", 0)
    handle.submit(5)
    assert core.factory.submit("g", {tp(): 7}, rewind=True) == {}
    core.advance(5.0)
    assert core.holds() == at(7)


class TestRefusals:
    @pytest.mark.parametrize("offset", [5, 6])
    def test_a_new_submit_tries_again(self, core: Core, offset: int) -> None:
        """Also of the same offset: whoever repairs an ACL need not wait for new records."""
        core.coordinator.inject("commit", Refuse(GROUP_DENIED))
        handle = core.spawn()
        handle.submit(5)
        core.advance(5.0)
        handle.submit(offset)
        core.advance(5.0)
        assert core.holds() == at(offset)
        assert handle.status().last_error is None

    @pytest.mark.fault(13)
    def test_an_outage_of_an_hour_costs_little_and_ends_by_itself(self, core: Core) -> None:
        """Pauses grow to 30 s; then what is newest is committed."""
        handle = core.spawn()
        core.coordinator.inject("commit", *[Refuse(LOADING)] * 100_000)
        for minute in range(60):
            handle.submit(minute)
            core.advance(60.0)
        asked = len(core.commits())
        assert 100 <= asked <= 260
        core.coordinator._incidents.clear()
        core.advance(31.0)
        assert core.holds() == at(59)
        assert len(core.system.timers) < 100

    def test_a_partition_that_cannot_be_read_does_not_delay_new_managers(self, core: Core) -> None:
        """Its pauses are its own."""
        core.coordinator.inject("fetch", *[Refuse(TOPIC_DENIED, [tp(0)])] * 50)
        core.spawn(0)
        core.advance(60.0)
        for partition in range(1, 5):
            assert core.spawn(partition).initial.done()


def stop_before_it_lands(core: Core) -> None:
    """Stop a manager that has committed 6, and let a commit of 5 land over it after that."""
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 9.0))
    handle = core.spawn()
    handle.submit(5)
    core.advance(1.5)
    handle.submit(6)
    future = core.stop(handle, 20.0)
    core.advance(6.0)
    assert future.get(timeout=0)[handle.key].committed == at(6)
    core.advance(2.6)
    assert core.holds() == at(5), "it has landed"


class TestUnknownOutcomes:
    @pytest.mark.parametrize(
        "corrections", [[], [Unknown(TIMED_OUT, None)], [Unknown(7, None)] * 3, [Refuse(LOADING)]]
    )
    def test_a_commit_that_lands_after_the_stop_is_put_right(
        self, core: Core, corrections: list[Incident]
    ) -> None:
        """The answer of a stop holds, though nobody is there and the first corrections fail."""
        stop_before_it_lands(core)
        core.coordinator.inject("commit", *corrections)
        core.advance(90.0)
        assert core.holds() == at(6)

    @pytest.mark.parametrize(
        ("operation", "code"), [("commit", TOPIC_DENIED), ("fetch", GROUP_DENIED)]
    )
    def test_a_late_commit_that_may_not_be_put_right_is_reported(
        self, core: Core, operation: Operation, code: int
    ) -> None:
        """The kind: a group that stays at an older offset than was acknowledged, in silence."""
        stop_before_it_lands(core)
        core.listener.failures.clear()
        core.coordinator.inject(operation, Refuse(code))
        core.advance(90.0)
        (error,) = [error for _, error in core.listener.failures]
        assert "committed offset of g/t/0 at offset 6: an older commit may have" in str(error)
        assert core.holds() == at(5)

    @pytest.mark.parametrize("operation", ["commit", "fetch", "topic_ids"])
    @pytest.mark.parametrize("fault", ["raises", "has no future", "answers nothing"])
    def test_a_coordinator_that_breaks_its_contract_stops_nothing(
        self, core: Core, operation: str, fault: str
    ) -> None:
        """The kind: an answer of another type is an unknown outcome like any other."""

        def wrong(*_args: object) -> Future[Any] | None:
            if fault == "raises":
                raise RuntimeError("no more threads")
            answer: Future[Any] = Future()
            answer.set(None)
            return answer if fault == "answers nothing" else None

        core.create_topic(10)
        first = core.spawn(0)
        right = getattr(core.coordinator, operation)
        setattr(core.coordinator, operation, wrong)
        handle = core.spawn(1)
        core.advance(1.0)
        first.submit(5)
        core.advance(5.0)
        setattr(core.coordinator, operation, right)
        handle.submit(6)
        core.advance(30.0)
        assert (core.holds(0), core.holds(1)) == (at(5), at(6))
        assert "client failed: " in str(core.listener.failures[0][1])


class TestKeepAlive:
    """Idle offsets do not expire while their manager lives."""

    @pytest.fixture
    def core(self) -> Core:
        return Core(verify_interval_s=3_600.0)

    @pytest.mark.fault(34)
    @pytest.mark.parametrize(
        ("initial", "submitted"),
        [(None, 5), (5, None), (4, 5)],
        ids=["first of its group", "initial offset", "over an initial offset"],
    )
    def test_an_unchanged_offset_is_committed_again_soon_and_then_once_a_day(
        self, core: Core, initial: int | None, submitted: int | None
    ) -> None:
        """Read first, then written.

        The first time after a minute: an initial offset may be about to expire when its manager
        starts, and Burrow may miss the first commit over it.
        """
        if initial is not None:
            core.put(at(initial))
        handle = core.spawn(0)
        if submitted is not None:
            handle.submit(submitted)
        core.advance(59.0)
        first = [] if submitted is None else [{0: 5}]
        reads = len(core.requests("fetch"))
        assert core.commits() == first
        core.advance(61.0)
        assert core.commits() == [*first, {0: 5}]
        assert len(core.requests("fetch")) == reads + 1
        core.advance(7.5 * DAY_S)
        assert core.commits() == [*first, *[{0: 5}] * 8]
        assert core.holds(0) == at(5)

    def test_it_can_be_switched_off(self) -> None:
        """Idle commits can be turned off."""
        core = Core(recommit_interval_s=0, verify_interval_s=0)
        core.spawn().submit(5)
        core.advance(10 * DAY_S)
        assert core.commits() == [{0: 5}]

    def test_it_ends_with_the_manager(self, core: Core) -> None:
        """A dead job's offsets may expire."""
        handle = core.spawn()
        handle.submit(5)
        handle.stop()
        core.advance(5 * DAY_S)
        assert core.commits() == [{0: 5}]
