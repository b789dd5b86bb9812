"""State after the crash of an actor; the simulation crashes them at every other moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.manager.offset_manager import OffsetManager, Phase
from offsetmgr.manager.plan import CommitPlan
from offsetmgr.types import ManagerKey, StopResult
from tests.unit.core.core import POISON, Core, at

if TYPE_CHECKING:
    from actors import ActorRef
    from offsetmgr.manager import ManagerHandle


def _ref(core: Core, handle: ManagerHandle, which: str) -> ActorRef[Any]:
    return core.manager(handle) if which == "manager" else core.committer()


@pytest.mark.fault(33)
def test_its_siblings_are_unhurt(core: Core) -> None:
    """They neither restart nor wait."""
    broken, other = core.spawn(0), core.spawn(1)
    other.submit(5)
    before = len(core.requests("fetch"))
    core.manager(broken).tell(POISON)
    core.advance(1.05)
    assert core.holds(1) == at(5)
    assert other.status().phase == "ready"
    asked = core.requests("fetch")[before:]
    assert all(len(request.partitions or ()) == 1 for request in asked)


@pytest.mark.parametrize("down", ["manager", "committer"])
def test_it_is_started_again_however_often_it_fails(core: Core, down: str) -> None:
    """To give up would be to stop committing in silence."""
    handle = core.spawn()
    for _ in range(30):
        _ref(core, handle, down).tell(POISON)
        core.advance(0.5)
    handle.submit(5)
    core.advance(120.0)
    assert core.holds() == at(5)


@pytest.mark.parametrize("down", ["manager", "committer"])
def test_a_stop_while_it_is_down_ends_it(core: Core, down: str) -> None:
    """In time, with what was submitted committed, and the name free."""
    handle = core.spawn()
    handle.submit(5)
    _ref(core, handle, down).tell(POISON)
    core.system.run_until_idle()
    future = core.stop(handle, 10.0)
    core.advance(9.0)
    assert future.get(timeout=0) == {handle.key: StopResult(at(5))}
    assert core.factory.get(handle.key) is None
    again = core.factory.spawn("g", "t", 0)
    core.advance(1.0)
    assert again.initial_offset(timeout=0) == at(5)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_crash_at_the_end_of_a_stop_commits_nothing_later(
    core: Core, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """The kind: an index still names a manager whose last step failed before it was entered.

    A new one has come while a read is in flight, so the plan does not know it yet.
    """
    if not is_new:
        core.spawn(0)
    core.coordinator.pause()
    core.factory.spawn("g", "t", 1)  # a read is in flight, so nothing is committed meanwhile
    core.system.run_until_idle()
    handle = core.factory.get(ManagerKey("g", "t", 0)) or core.factory.spawn("g", "t", 0)
    handle.submit(5)
    future = core.stop(handle, 1.0)
    index, failures = CommitPlan.index, [RuntimeError("in the middle of a step")]

    def fail(plan: CommitPlan, manager: OffsetManager) -> None:
        if failures and manager.phase is Phase.STOPPED:
            raise failures.pop()
        index(plan, manager)

    monkeypatch.setattr(CommitPlan, "index", fail)
    core.advance(2.0)
    assert future.get(timeout=0)[handle.key].uncommitted == at(5)
    core.coordinator.resume()
    core.advance(60.0)
    assert core.holds(0) is None
