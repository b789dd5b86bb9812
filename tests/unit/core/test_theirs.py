"""Other people's commits, rewinds, and what was dropped: whose offset stands, and who is told."""

from __future__ import annotations

from contextlib import suppress

import pytest

from offsetmgr.coordinator.memory import Unknown
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.types import StopResult
from tests.unit.core.core import POISON, Core, at

TIMED_OUT = -185


class TestAfterSomebodyElse:
    """What was committed here before is no longer what stands."""

    def changed(self, theirs: int | None) -> Core:
        """50 was committed here, and ``theirs`` there since (None: deleted)."""
        core = Core(verify_interval_s=5.0, recommit_interval_s=0)
        core.spawn().submit(50)
        core.advance(2)
        if theirs is None:
            core.broker.forget("g")
        else:
            core.put(at(theirs))
        core.advance(10)
        return core

    def test_follow_commits_the_same_again_where_it_was_deleted(self) -> None:
        """It stands no more."""
        core = self.changed(None)
        (handle,) = core.factory.managers("g")
        handle.submit(50)
        assert core.flush([handle], 5.0) == [StopResult(at(50))]
        assert core.holds() == at(50)


class TestTheirsAndOurs:
    """What of ours was on its way when somebody else committed."""

    def lost(self) -> Core:
        """20 was given up, 100 is theirs, and then 20 lands."""
        core = Core(
            verify_interval_s=5.0,
            recommit_interval_s=0,
            request_timeout_s=2.0,
        )
        core.spawn().submit(10)
        core.advance(2)
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        (handle,) = core.factory.managers("g")
        handle.submit(20)
        core.advance(1.5)
        core.put(at(100))
        core.advance(64.0)
        return core

    def test_what_was_given_up_and_lands_late_does_not_stay_over_theirs(self) -> None:
        """Theirs is put back."""
        core = self.lost()
        assert core.holds() == at(100)
        (handle,) = core.factory.managers("g")
        assert handle.status().dirty

    def test_a_rewind_that_was_committed_long_ago_is_no_licence(self) -> None:
        """Also where each commit since has found something newer waiting."""
        core = Core(latency_s=0.05, verify_interval_s=0.5, recommit_interval_s=0)
        core.put(at(40))
        handle = core.spawn()
        core.advance(1.0)
        handle.rewind(30)
        for number in range(31, 331):
            handle.submit(number)
            core.advance(0.02)
        core.put(at(1_000_000))
        for number in range(331, 831):
            with suppress(OffsetRegressionError):
                handle.submit(number)
            core.advance(0.02)
        assert core.holds() == at(1_000_000)


class TestDropped:
    """A submit that was lower than what turned out to be committed."""

    @pytest.fixture
    def core(self) -> Core:
        """10 was submitted, and Kafka has 50."""
        core = Core()
        core.put(at(50))
        core.factory.spawn("g", "t", 0).submit(10)
        core.advance(3)
        return core

    @pytest.mark.parametrize("crash", ["manager", "committer"])
    def test_an_answer_at_the_deadline_says_so_too(self, core: Core, crash: str) -> None:
        """Whoever would have answered rests after a crash."""
        (handle,) = core.factory.managers("g")
        if crash == "manager":
            core.manager(handle).tell(POISON)
            answer = core.stop(handle, 0.01)
        else:
            core.committer().tell(POISON)
            answer = core.factory.flush([handle.key], 0.01)
        core.advance(0.02)
        (result,) = answer.get(timeout=0).values()
        assert result.uncommitted == at(10)
        assert isinstance(result.error, OffsetRegressionError)

    def test_a_stop_names_what_it_was_compared_with(self, core: Core) -> None:
        """Not the floor of a slot that is closed."""
        (handle,) = core.factory.managers("g")
        answer = core.stop(handle, 5.0)
        core.advance(1.0)
        (result,) = answer.get(timeout=0).values()
        assert isinstance(result.error, OffsetRegressionError)
        assert result.error.floor == 50
