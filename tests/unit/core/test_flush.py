"""Flushes and submits of many managers at once."""

from __future__ import annotations

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import ManagerStoppedError, OffsetRegressionError
from offsetmgr.manager import Submission
from offsetmgr.types import ManagerKey, StopResult
from tests.unit.core.core import GROUP_DENIED, Core, at, tp


class TestFlush:
    def test_of_clean_managers_is_answered_at_once(self, core: Core) -> None:
        """No request is made."""
        handle = core.spawn()
        core.submit(handle, 5)
        assert core.flush([handle], 10.0) == [StopResult(at(5))]
        assert core.commits() == [{0: 5}]

    def test_says_that_the_last_submit_was_dropped(self, core: Core) -> None:
        """Until another one is taken: who looks later must not think that it stands."""
        core.put(at(10))
        handle = core.factory.spawn("g", "t", 0)
        handle.submit(4)
        core.advance(1.0)
        [result] = core.flush([handle], 10.0)
        assert (result.committed, result.uncommitted) == (at(10), at(4))
        assert isinstance(result.error, OffsetRegressionError)
        assert (result.error.offset, result.error.floor) == (4, 10)
        handle.submit(10)
        assert core.flush([handle], 10.0) == [StopResult(at(10))]
        handle.submit(11)
        assert core.flush([handle], 10.0) == [StopResult(at(11))]

    def test_waits_for_the_offset_that_was_newest_when_it_was_asked_for(self) -> None:
        """Later submits do not delay it."""
        core = Core(commit_interval_s=3600.0)
        handle = core.spawn()
        handle.submit(5)
        future = core.factory.flush([handle.key], 10.0)
        core.advance(0.005)
        handle.submit(6)
        core.advance(0.01)
        assert future.get(timeout=0) == {handle.key: StopResult(at(5))}

    def test_tries_an_offset_refused_for_good_once_more(self, core: Core) -> None:
        """The caller may have repaired it; if not, the answer comes at once."""
        handle = core.spawn()
        core.coordinator.inject("commit", Refuse(GROUP_DENIED), Refuse(GROUP_DENIED))
        core.submit(handle, 5)
        (result,) = core.flush([handle], 10.0)
        assert result.uncommitted == at(5)
        assert core.flush([handle], 10.0) == [StopResult(at(5))]
        assert len(core.listener.failures) == 2

    def test_of_many_groups_is_one_commit_each(self) -> None:
        """Groups do not wait for each other."""
        core = Core(commit_interval_s=3600.0)
        handles = [core.spawn(p, group) for group in ("g", "h") for p in range(3)]
        for handle in handles:
            handle.submit(5)
        core.coordinator.pause("h")
        future = core.factory.flush([handle.key for handle in handles], 1.0)
        core.advance(1.0)
        left = {key.group for key, result in future.get(timeout=0).items() if result.uncommitted}
        assert left == {"h"}
        assert core.commits("g") == [{0: 5, 1: 5, 2: 5}]

    def test_leaves_out_unknown_managers(self, core: Core) -> None:
        """An unknown key is nobody's; and without any key it is answered at once."""
        key = ManagerKey("g", "t", 9)
        assert core.factory.flush([key], 5.0).get(timeout=0) == {}
        assert core.factory.stop_managers([key], 5.0).get(timeout=0) == {}


class TestGroupwiseSubmit:
    """Many offsets of one group at once, as a service gets them."""

    def test_the_refused_do_not_hold_back_the_others(self, core: Core) -> None:
        """Each refusal is an error of its own."""
        core.put(at(10), 1)
        core.spawn(0)
        core.spawn(1)
        core.advance(1.0)
        offsets = {tp(0): Submission(3), tp(1): Submission(5), tp(2): Submission(1)}
        refused = core.factory.submit("g", offsets)
        assert {where: type(error) for where, error in refused.items()} == {
            tp(1): OffsetRegressionError,
            tp(2): ManagerStoppedError,
        }
        assert "spawn it first" in str(refused[tp(2)])
        core.advance(2.0)
        assert core.holds(0) == at(3)
