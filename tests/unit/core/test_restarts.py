"""Actors that crash: they are started again, siblings are unhurt, nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog

from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import OffsetRegressionError
from offsetmgr.manager.factory_actor import Start
from offsetmgr.manager.group_committer import Expedite
from offsetmgr.manager.partition_state import Waiter
from offsetmgr.types import StopResult
from tests.unit.core.core import GROUP_DENIED, LOADING, POISON, TIMED_OUT, Core, at, tp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors import ActorRef
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import ManagerKey, OffsetAndMetadata

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def crashes() -> Iterator[list[str]]:
    """Collect what is logged: the crashes are meant."""
    with structlog.testing.capture_logs() as logs:
        seen: list[str] = []
        yield seen
        seen.extend(str(entry["event"]) for entry in logs)


def _ref(core: Core, handle: ManagerHandle, which: str) -> ActorRef[Any]:
    if which == "factory":
        return core.factory._ref
    return core.manager(handle) if which == "manager" else core.committer()


@pytest.mark.fault(33)
def test_a_crashed_manager_commits_what_was_submitted(core: Core) -> None:
    """Before the crash, and while it is down."""
    handle = core.spawn()
    handle.submit(5)
    core.manager(handle).tell(POISON)
    core.system.run_until_idle()
    handle.submit(6)
    core.advance(5.0)
    assert core.holds() == at(6)
    assert handle.status().phase == "ready"


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


@pytest.mark.parametrize("down", ["manager", "committer", "factory"])
def test_it_is_started_again_however_often_it_fails(core: Core, down: str) -> None:
    """To give up would be to stop committing in silence."""
    handle = core.spawn()
    for _ in range(30):
        _ref(core, handle, down).tell(POISON)
        core.advance(0.5)
    handle.submit(5)
    core.advance(120.0)
    assert core.holds() == at(5)


@pytest.mark.parametrize("down", ["manager", "committer", "factory"])
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


def test_a_stop_whose_message_crashed_the_manager_still_holds(core: Core) -> None:
    """The slot remembers that nothing more may come, so the restarted actor ends."""
    handle = core.spawn()
    handle.submit(5)
    handle._state.submits.close()
    core.manager(handle).tell(POISON)
    core.advance(5.0)
    assert core.holds() == at(5)
    assert core.factory.get(handle.key) is None


@pytest.mark.fault(33)
def test_a_crashed_committer_commits_all_that_is_dirty(core: Core) -> None:
    """It begins with reading, as if every outcome were unknown."""
    handles = [core.spawn(p) for p in range(3)]
    for handle in handles:
        handle.submit(5)
    core.committer().tell(POISON)
    core.advance(5.0)
    assert [core.holds(p) for p in range(3)] == [at(5)] * 3
    assert core.coordinator.most_in_flight("g") == 1


@pytest.mark.parametrize("down", ["committer", "factory"])
def test_a_request_under_way_is_waited_for(down: str) -> None:
    """A restart does not put a second one beside it, nor does it wait for ever."""
    core = Core(latency_s=2.0)
    handle = core.factory.spawn("g", "t", 0)
    core.advance(3.0)
    handle.submit(5)
    core.advance(1.5)
    assert core.coordinator.in_flight("g") == 1
    (core.committer() if down == "committer" else core.factory._ref).tell(POISON)
    core.advance(20.0)
    assert core.coordinator.most_in_flight("g") == 1
    assert core.holds() == at(5)
    handle.submit(6)
    core.advance(20.0)
    assert core.holds() == at(6)


@pytest.mark.parametrize("down", ["manager", "committer", "factory"])
def test_a_lost_commit_is_not_forgotten(core: Core, down: str) -> None:
    """What lands behind a newer one is put right, whoever crashed in between."""
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 9.0))
    handle = core.spawn()
    handle.submit(5)
    core.advance(1.5)
    handle.submit(6)
    core.advance(6.0)
    assert core.holds() == at(6)
    _ref(core, handle, down).tell(POISON)
    core.advance(60.0)
    assert core.holds() == at(6)
    assert handle.status().dirty is False


@pytest.mark.parametrize("down", ["manager", "committer", "factory"])
def test_what_cannot_be_put_right_is_dirty_and_visible(core: Core, down: str) -> None:
    """Whoever crashed in between: it is told, and tried again with the next flush."""
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 9.0))
    handle = core.spawn()
    handle.submit(5)
    core.advance(1.5)
    handle.submit(6)
    core.advance(9.0)
    assert core.holds() == at(5), "it has landed"
    _ref(core, handle, down).tell(POISON)
    core.coordinator.inject("commit", Refuse(GROUP_DENIED))
    core.advance(30.0)
    assert handle.status().dirty
    assert handle.status().last_error is not None
    assert core.flush([handle], 5.0) == [StopResult(at(6))]
    assert core.holds() == at(6)


def test_a_lost_commit_of_a_stopped_manager_is_not_forgotten(core: Core) -> None:
    """The answer of a stop holds, even where the factory is started again in between."""
    core.coordinator.inject("commit", Unknown(TIMED_OUT, 9.0))
    handle = core.spawn()
    handle.submit(5)
    core.advance(1.5)
    handle.submit(6)
    core.stop(handle, 20.0)
    core.advance(6.0)
    core.factory._ref.tell(POISON)
    core.advance(2.6)
    assert core.holds() == at(5), "it has landed"
    core.advance(60.0)
    assert core.holds() == at(6)


def test_a_restart_that_finds_somebody_elses_offset_tells_it(core: Core) -> None:
    """As any look at it would: it is the floor from then on."""
    handle = core.spawn()
    handle.submit(5)
    core.advance(2.0)
    core.put(at(40))
    core.committer().tell(POISON)
    core.advance(2.0)
    assert handle.errors().get(timeout=0).code == "OFFSET_CHANGED_EXTERNALLY"
    with pytest.raises(OffsetRegressionError):
        handle.submit(6)
    handle.rewind(6)
    core.advance(2.0)
    assert core.holds() == at(6)


@pytest.mark.parametrize("down", ["manager", "committer", "factory"])
def test_keep_alive_after_a_restart_leaves_somebody_elses_offset_alone(
    core: Core, down: str
) -> None:
    """The old offset of a restarted manager is not written over a newer one."""
    handle = core.spawn()
    handle.submit(5)
    core.advance(2.0)
    core.put(at(40))
    _ref(core, handle, down).tell(POISON)
    core.advance(5 * 86_400.0)
    assert core.holds() == at(40)


def test_a_crashed_committer_does_not_commit_what_nobody_has_compared(core: Core) -> None:
    """A lower offset that waits for the initial one is still compared with it."""
    core.put(at(10))
    core.coordinator.pause()
    handle = core.factory.spawn("g", "t", 0)
    handle.submit(5)
    core.advance(0.5)
    core.committer().tell(POISON)
    core.factory.flush([handle.key], 60.0)
    core.advance(1.0)
    core.coordinator.resume()
    core.advance(20.0)
    assert core.commits() == []
    assert core.holds() == at(10)


def test_a_crashed_factory_starts_each_manager_once(core: Core) -> None:
    """Those that were spawned while it was down included."""
    first = core.spawn(0)
    core.factory._ref.tell(POISON)
    second = core.factory.spawn("g", "t", 1)
    core.advance(5.0)
    assert core.system.actor_count() == 4  # factory, committer, two managers
    first.submit(1)
    second.submit(2)
    core.advance(3.0)
    assert (core.holds(0), core.holds(1)) == (at(1), at(2))


@pytest.mark.parametrize("method", ["committed", "failed", "requested", "stopped"])
def test_an_observer_that_raises_loses_nothing(
    core: Core, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It must not; if it does, in the middle of a step, the offset is committed all the same."""
    handle = core.spawn()
    core.coordinator.inject("commit", Unknown(TIMED_OUT, None))

    def raises(*_args: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a bad observer")

    monkeypatch.setattr(core.listener, method, raises)
    handle.submit(5)
    core.advance(30.0)
    assert core.holds() == at(5)
    future = core.stop(handle, 5.0)
    core.advance(5.0)
    assert future.get(timeout=0) == {handle.key: StopResult(at(5))}
    assert core.factory.get(handle.key) is None


def test_a_flush_of_many_does_not_hang_on_one_that_has_ended() -> None:
    """The others are committed at once."""
    core = Core(commit_interval_s=3600.0)
    first, second = core.spawn(0), core.spawn(1)
    first.submit(5)
    core.stop(second, 5.0)
    future = core.factory.flush([first.key, second.key], 10.0)
    core.advance(1.0)
    assert future.get(timeout=0)[first.key] == StopResult(at(5))


def test_whoever_was_told_of_a_commit_is_settled_though_its_observer_raises(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a commit of many: what somebody else commits next is not undone by it."""
    handles = [core.spawn(number) for number in range(3)]
    told = core.listener.committed

    def raises(key: ManagerKey, offset: OffsetAndMetadata) -> None:
        told(key, offset)
        if key.partition == 1:
            monkeypatch.undo()
            core.put(at(3), 1)
            raise RuntimeError("a bad observer")

    monkeypatch.setattr(core.listener, "committed", raises)
    for handle in handles:
        handle.submit(5)
    core.advance(30.0)
    assert [core.holds(number) for number in range(3)] == [at(5), at(3), at(5)]


def test_a_flush_of_one_that_has_ended_does_not_wait_for_its_successor() -> None:
    """It may be on its way while the partition changes hands."""
    core = Core(commit_interval_s=3600.0)
    core.spawn(1)
    gone = core.spawn(0)
    core.stop(gone, 5.0)
    core.advance(1.0)
    core.spawn(0).submit(5)
    waiter = Waiter([gone._state], core.system.clock.now() + 1000.0, 1000.0)
    assert gone._state.submits.group.tell(Expedite([gone._state], waiter))
    core.advance(1.0)
    assert waiter.future.get(timeout=0) == {gone.key: StopResult(None)}


def test_a_flush_of_what_is_committed_does_not_wait_for_its_keep_alive(core: Core) -> None:
    """The coordinator, which refuses that for the time being, has nothing to say about it."""
    handle = core.spawn()
    handle.submit(5)
    core.advance(2.0)
    core.coordinator.inject("commit", *[Refuse(LOADING)] * 1_000)
    core.advance(DAY_S + 60.0)
    assert len(core.commits()) > 2
    future = core.factory.flush([handle.key], 10.0)
    core.system.run_until_idle()
    assert future.get(timeout=0) == {handle.key: StopResult(at(5))}


@pytest.mark.parametrize("others", [(), (1,)], ids=["alone", "among others"])
def test_a_start_that_comes_late_takes_nobodys_name(core: Core, others: tuple[int, ...]) -> None:
    """Of a manager that has ended meanwhile: its successor goes on being served."""
    gone = core.spawn()
    for other in others:
        core.spawn(other)
    stopped = core.stop(gone, 5.0)
    core.advance(5.0)
    assert stopped.done()
    successor = core.spawn()
    core.factory._ref.tell(Start("g", {tp(): gone._state}))
    core.advance(1.0)
    successor.submit(5)
    core.advance(5.0)
    assert core.holds() == at(5)
    assert successor.status().phase == "ready"
