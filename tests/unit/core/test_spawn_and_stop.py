"""One manager per key, and every stop and flush answers."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import Mock

import pytest

from actors.testing import SimSystem
from offsetmgr.codes import TIMED_OUT
from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse, Unknown
from offsetmgr.errors import (
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetRegressionError,
)
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import OffsetAndMetadata, StopResult
from tests.interrupted import interrupted
from tests.unit.core.core import GROUP_DENIED, LOADING, TOPIC_DENIED, Core, at, tp


class TestSpawn:
    def test_a_thousand_at_once_cost_one_fetch(self, core: Core) -> None:
        """Start-up does not ask for each partition."""
        core.factory.spawn_many("g", [tp(p) for p in range(1000)])
        core.advance(10.0)
        assert [len(request.partitions or ()) for request in core.requests("fetch")] == [1000]
        assert all(handle.initial.done() for handle in core.factory.managers())

    def test_spawned_one_by_one_they_cost_two(self, core: Core) -> None:
        """All that come while the first fetch is under way share the second."""
        core.factory.spawn("g", "t", 0)
        core.system.run_until_idle()
        for partition in range(1, 500):
            core.factory.spawn("g", "t", partition)
        core.advance(1.0)
        assert [len(request.partitions or ()) for request in core.requests("fetch")] == [1, 499]

    def test_those_that_exist_do_not_keep_the_others_from_starting(self, core: Core) -> None:
        """Each partition gets its handle or its error."""
        core.spawn(1)
        made = core.factory.spawn_many("g", [tp(0), tp(1), tp(2)])
        assert isinstance(made[tp(1)], ManagerExistsError)
        assert [type(made[tp(p)]) for p in (0, 2)] == [ManagerHandle, ManagerHandle]

    @pytest.mark.parametrize("error", [None, RuntimeError("no more threads")])
    def test_an_empty_group_leaves_nothing_behind(
        self, core: Core, error: Exception | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No actor, no name, no memory, and no hold on the group; also if its release fails."""
        release = Mock(side_effect=error)
        monkeypatch.setattr(core.coordinator, "release", release)
        before = core.system.actor_count()
        for handle in (core.spawn(0), core.spawn(1)):
            handle.stop()
        core.advance(60.0)
        assert core.system.actor_count() == before
        assert core.factory._groups == {}
        release.assert_called_once_with("g")


class TestStop:
    """Managers end, and say what was committed and what was not."""

    @pytest.mark.parametrize("initial", [at(5), None], ids=["known", "never known"])
    def test_with_nothing_to_commit_it_is_answered_at_once(
        self, core: Core, initial: OffsetAndMetadata | None
    ) -> None:
        """No request, no wait; nor does it wait for an offset that was never known."""
        if initial is None:
            core.coordinator.pause()
        else:
            core.put(initial)
        handle = core.spawn()
        future = core.stop(handle, 10.0)
        core.system.run_until_idle()
        assert future.get(timeout=0) == {handle.key: StopResult(initial)}
        assert core.commits() == []

    def test_before_the_initial_offset_is_known(self) -> None:
        """It is fetched, compared and committed within the deadline."""
        core = Core(commit_interval_s=3600.0)
        core.put(at(5))
        handle = core.factory.spawn("g", "t", 0)
        handle.submit(7)
        future = core.stop(handle, 10.0)
        core.advance(0.1)
        assert future.get(timeout=0) == {handle.key: StopResult(at(7))}

    @pytest.mark.parametrize("flush", [True, False])
    def test_before_the_initial_offset_is_known_a_lower_one_is_not_committed(
        self, core: Core, *, flush: bool
    ) -> None:
        """Hurry does not excuse going back: it is reported as a regression."""
        core.put(at(10))
        handle = core.factory.spawn("g", "t", 0)
        handle.submit(5)
        ask = core.factory.flush if flush else core.factory.stop_managers
        future = ask([handle.key], 10.0)
        core.advance(5.0)
        result = future.get(timeout=0)[handle.key]
        assert (result.committed, result.uncommitted) == (at(10), at(5))
        assert isinstance(result.error, OffsetRegressionError)
        assert core.commits() == []

    def test_the_result_has_kafkas_last_answer_to_the_group(self, core: Core) -> None:
        """Also where that was the answer to a request that this partition was not in."""
        handle, other = core.spawn(0), core.spawn(1)
        core.coordinator.inject("commit", *[Refuse(GROUP_DENIED, detail="no ACL for etl")] * 9)
        other.submit(5)
        core.advance(1.5)
        handle.submit(7)
        result = handle.stop(timeout=0)
        assert result[:2] == (None, at(7))
        assert isinstance(result.error, OffsetCommitError)
        assert result.error.partition == 0
        assert "no ACL for etl" in str(result.error)

    def test_a_permanent_refusal_ends_it_early(self, core: Core) -> None:
        """There is nothing left to wait for; the error says why."""
        handle = core.spawn()
        core.coordinator.inject("commit", Refuse(TOPIC_DENIED))
        handle.submit(7)
        future = core.stop(handle, 60.0)
        core.advance(0.1)
        result = future.get(timeout=0)[handle.key]
        assert result.uncommitted == at(7)
        assert result.error is not None
        assert result.error.code == "TOPIC_AUTHORIZATION_FAILED"

    @pytest.mark.parametrize("patient_first", [False, True])
    def test_of_two_stops_the_longer_one_has_its_time(
        self, core: Core, *, patient_first: bool
    ) -> None:
        """A service that ends goes on with what a client gives up after a moment."""
        handle = core.spawn()
        core.coordinator.pause()
        handle.submit(7)
        times = (10.0, 1.0) if patient_first else (1.0, 10.0)
        futures = {timeout_s: core.stop(handle, timeout_s) for timeout_s in times}
        core.advance(2.0)
        assert futures[1.0].get(timeout=0)[handle.key][:2] == (None, at(7))
        assert not futures[10.0].done()
        core.coordinator.resume()
        core.advance(1.0)
        assert futures[10.0].get(timeout=0) == {handle.key: StopResult(at(7))}

    @pytest.mark.parametrize("steps", range(6))
    def test_the_committed_mailbox_ends_with_the_last_committed_offset(self, steps: int) -> None:
        """Also where the stop overtakes the acknowledgement."""
        core = Core(latency_s=0.5)
        handle = core.spawn()
        core.advance(0.9)
        handle.submit(7)
        core.advance(1.49)
        assert core.coordinator.in_flight("g") == 1
        core.system._manual_clock.advance(0.01)
        core.system.timers.fire_due()
        core.system.run_steps(steps)
        future = core.stop(handle, 5.0)
        core.advance(5.0)
        assert future.get(timeout=0) == {handle.key: StopResult(at(7))}
        assert list(handle.committed_offsets()) == [at(7)]


class TestFactoryStop:
    def test_stops_all_within_the_deadline(self, core: Core) -> None:
        """The committed and the uncommitted offsets of every manager."""
        first, second = core.spawn(0, "g"), core.spawn(0, "h")
        core.coordinator.pause("h")
        first.submit(1)
        second.submit(2)
        began = core.system.clock.now()
        results = core.factory.stop(2.0)
        assert results[first.key] == StopResult(at(1))
        assert results[second.key][:2] == (None, at(2))
        assert core.system.clock.now() - began <= 2.0 + 1.0

    def test_nothing_starts_after_it_and_every_call_returns(self, core: Core) -> None:
        """Neither a handle that outlives the factory nor a second stop hangs."""
        handle = core.spawn()
        handle.submit(3)
        assert core.factory.stop(5.0) == {handle.key: StopResult(at(3))}
        core.system.run_until_idle()
        assert core.factory.stop(2.0) == {}
        assert handle.stop(timeout=1.0) == StopResult(at(3))
        with pytest.raises(ManagerStoppedError, match="the factory is stopped"):
            core.factory.spawn("g", "t", 0)

    def test_a_signal_handler_stops_it_in_the_middle_of_a_spawn_too(self) -> None:
        """The kind: a manager that starts behind the stop that its spawn did not see."""
        for place in range(1, 200):
            core = Core()

            def spawn(core: Core = core) -> None:
                with suppress(ManagerStoppedError):
                    core.factory.spawn("g", "t", 0)

            was_interrupted = interrupted(spawn, place, core.factory.begin_stop, "/manager/")
            core.advance(5.0)
            if not was_interrupted:
                break
            assert core.factory.managers() == []
        assert place > 20

    def test_nothing_starts_after_its_system_was_stopped(self, core: Core) -> None:
        """It says so, and does not keep the name."""
        core.system.stop()
        for _ in range(2):
            with pytest.raises(ManagerStoppedError, match="the actor system of the factory"):
                core.factory.spawn("g", "t", 0)
        assert core.factory.managers() == []

    def test_a_stop_without_an_actor_system_says_why_something_is_left(self, core: Core) -> None:
        """Nobody is there any more who could commit it."""
        handle = core.spawn()
        handle.submit(3)
        core.system.stop()
        result = handle.stop(timeout=1.0)
        assert result.uncommitted == at(3)
        assert "offset 3 is not committed: the actor system was stopped" in str(result.error)
        with pytest.raises(ManagerStoppedError):
            handle.submit(4)

    def test_the_end_of_its_actor_system_answers_all_callers(self, core: Core) -> None:
        """The kind: a wait that only a timer of the stopped system would have ended."""
        handle = core.spawn()
        core.coordinator.pause("g")
        core.coordinator.pause("h")
        new = core.factory.spawn("h", "t", 0)
        handle.submit(3)
        flush, stop = core.factory.flush([handle.key], 60.0), core.stop(handle, 60.0)
        core.advance(1.0)
        core.system.stop()
        for answer in flush, stop:
            assert answer.get(timeout=0)[handle.key].uncommitted == at(3)
        assert list(handle.committed_offsets()) == []
        with pytest.raises(ManagerStoppedError):
            new.initial_offset(timeout=0)

    def test_a_stopped_manager_is_not_read_for_a_regression_before_its_stop(
        self, core: Core
    ) -> None:
        """The kind: what was queued before the stop is collected after it."""
        handle = core.spawn()
        handle.submit(3)
        core.advance(5.0)
        reads = len(core.requests("fetch"))
        with pytest.raises(OffsetRegressionError):
            handle.submit(2)
        core.stop(handle, 1.0)
        core.advance(1.0)
        assert len(core.requests("fetch")) == reads

    @pytest.mark.parametrize("crashes", [False, True])
    def test_a_late_commit_of_the_manager_before_is_the_floor(self, *, crashes: bool) -> None:
        """The kind: what lands after the initial offset was read is committed all the same."""
        core = Core(request_timeout_s=1.0)
        before = core.spawn()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        before.submit(17)
        core.stop(before, 0.5)
        core.advance(2.0)
        after = core.spawn()
        assert after.initial_offset(timeout=0) is None
        while core.holds() is None:
            core.advance(1.0)
        if crashes:
            after._manager.begin_again()
        core.advance(400.0)
        assert after.status().committed == at(17)
        with pytest.raises(OffsetRegressionError):
            after.submit(13)

    @pytest.mark.parametrize("spawns", [False, True])
    def test_a_correction_that_a_stop_cut_short_is_made_after_it(self, *, spawns: bool) -> None:
        """The kind: an older commit landed behind what users were told, and a stop came first.

        The stop says that 13 is committed: it, or the next manager, sees to that.
        """
        core = Core(request_timeout_s=1.0, verify_interval_s=5.0)
        handle = core.spawn()
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        core.submit(handle, 11)
        core.submit(handle, 13)
        assert core.holds() == at(13)
        while core.holds() == at(13):
            core.advance(0.1)
        core.coordinator.inject("commit", *[Refuse(LOADING)] * 10)
        while not handle.status().dirty:
            core.advance(0.1)
        handle.submit(18)
        (result,) = core.system.wait(core.stop(handle, 0.1), 1.0).values()
        assert (result.committed, result.uncommitted, core.holds()) == (at(13), at(18), at(11))
        if spawns:
            assert core.spawn().initial_offset(timeout=0) == at(13)
        core.advance(400.0)
        assert core.holds() == at(13)

    def test_it_leaves_the_system_it_was_given(self) -> None:
        """Only a system of its own ends with it."""
        system = SimSystem(1)
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        Factory(coordinator, system=system).stop(1.0)
        system.run_until_idle()
        again = Factory(coordinator, system=system)
        handle = again.spawn("g", "t", 0)
        system.advance(1.0)
        assert handle.initial_offset(timeout=0) is None
