"""Other people's commits, rewinds, and what was dropped: whose offset stands, and who is told."""

from __future__ import annotations

from contextlib import suppress

import pytest

from offsetmgr.coordinator.memory import Unknown
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager.requests import CommitRequest
from offsetmgr.manager.slot import Standing
from offsetmgr.types import StopResult
from tests.unit.core.core import POISON, Core, at
from tests.unit.core.planned import Group

TIMED_OUT = -185


class TestAfterSomebodyElse:
    """What was committed here before is no longer what stands."""

    def changed(self, policy: str, theirs: int | None) -> Core:
        """50 was committed here, and ``theirs`` there since (None: deleted)."""
        core = Core(on_external_change=policy, verify_interval_s=5.0, recommit_interval_s=0)
        core.spawn().submit(50)
        core.advance(2)
        if theirs is None:
            core.broker.forget("g")
        else:
            core.put(at(theirs))
        core.advance(10)
        return core

    @pytest.mark.parametrize("theirs", [10, None])
    def test_pause_ends_with_a_rewind_to_where_it_was(self, theirs: int | None) -> None:
        """And with nothing else; a submit of the same waits visibly."""
        core = self.changed("pause", theirs)
        (handle,) = core.factory.managers("g")
        handle.submit(50)
        (result,) = core.flush([handle], 5.0)
        assert result.uncommitted == at(50)
        assert core.holds() == (None if theirs is None else at(theirs))
        handle.rewind(50)
        assert core.flush([handle], 5.0) == [StopResult(at(50))]
        assert core.holds() == at(50)

    def test_follow_commits_the_same_again_where_it_was_deleted(self) -> None:
        """It stands no more."""
        core = self.changed("follow", None)
        (handle,) = core.factory.managers("g")
        handle.submit(50)
        assert core.flush([handle], 5.0) == [StopResult(at(50))]
        assert core.holds() == at(50)

    @pytest.mark.parametrize("early", [False, True])
    def test_a_rewind_to_what_is_committed_is_no_licence_for_later(self, *, early: bool) -> None:
        """A run's first position is a rewind, and mostly is what is committed."""
        core = Core(on_external_change="pause", verify_interval_s=5.0, recommit_interval_s=0)
        core.put(at(50))
        handle = core.factory.spawn("g", "t", 0)
        if not early:
            handle.submit(50)
            core.advance(3)
        handle.rewind(50)
        core.advance(3)
        core.put(at(10))
        core.advance(10)
        handle.submit(70)
        core.advance(15)
        assert core.holds() == at(10)

    def test_what_is_submitted_as_theirs_settles_does_not_pass_a_pause(self) -> None:
        """By somebody who listens for what is committed."""
        core = self.changed("pause", 60)
        (handle,) = core.factory.managers("g")
        told: list[int] = []

        def listen() -> None:
            if not told:
                told.append(1)
                handle.submit(70)

        handle.committed_offsets().add_listener(listen)
        handle.submit(60)
        core.advance(10)
        assert told
        assert core.holds() == at(60)

    def test_a_lost_commit_sent_twice_does_not_stay_behind_theirs(self) -> None:
        """The first copy lands after both the second one and somebody else's."""
        group = Group(verify_interval_s=5.0, on_external_change="follow")
        group.start(0, committed=10)
        group.submit(100, urgent=True)
        group.answer(group.commit(after_s=0), {0: TIMED_OUT})
        group.now += 40
        group.read({0: 10})
        group.answer(group.commit(after_s=40))
        group.wait()
        group.read({0: 200})
        group.wait()
        group.read({0: 100})
        request = group.due()
        assert isinstance(request, CommitRequest)
        assert [version.value for version in request.versions.values()] == [at(200)]


class TestTheirsAndOurs:
    """What of ours was on its way when somebody else committed."""

    def lost(self, policy: str) -> Core:
        """20 was given up, 100 is theirs, and then 20 lands."""
        core = Core(
            on_external_change=policy,
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

    @pytest.mark.parametrize("policy", ["pause", "follow"])
    def test_what_was_given_up_and_lands_late_does_not_stay_over_theirs(self, policy: str) -> None:
        """Theirs is put back, and a pause goes on."""
        core = self.lost(policy)
        assert core.holds() == at(100)
        (handle,) = core.factory.managers("g")
        assert handle.status().dirty
        if policy == "pause":
            handle.submit(130)
            core.advance(5.0)
            assert core.holds() == at(100)

    @pytest.mark.parametrize("policy", ["pause", "follow"])
    def test_a_rewind_that_was_committed_long_ago_is_no_licence(self, policy: str) -> None:
        """Also where each commit since has found something newer waiting."""
        core = Core(
            latency_s=0.05, on_external_change=policy, verify_interval_s=0.5, recommit_interval_s=0
        )
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

    def test_it_is_told_again_to_an_instance_that_asks_again(self, core: Core) -> None:
        """The one before may have died with the news."""
        (handle,) = core.factory.managers("g")
        found = handle._desk.slot.establish(at(50))
        assert found.standing is Standing.REGRESSED
        assert found.submitted is not None
        assert found.submitted.value == at(10)
