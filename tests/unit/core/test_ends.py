"""Managers that end, and committers that begin, while somebody else's turn is not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.manager import ManagerHandle
from offsetmgr.manager.factory_actor import FactoryActor
from offsetmgr.manager.offset_manager import OffsetManager
from offsetmgr.types import StopResult
from tests.unit.core.core import (
    GROUP_DENIED,
    LOADING,
    POISON,
    TIMED_OUT,
    TOPIC_DENIED,
    Core,
    at,
    tp,
)
from tests.unit.core.planned import Group
from tests.unit.core.test_tray_threads import Other, WatchedLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors import Future
    from offsetmgr.manager.ticket import Ticket
    from offsetmgr.types import TopicPartition

IDLE_S = 60.0
VERIFY_S = 5.0


def test_who_ends_before_its_committer_has_heard_of_it_is_not_served_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end was told before it was announced, as another thread ran it at once."""
    core = Core()
    real = FactoryActor.spawn_child

    def spawn_child(factory: FactoryActor, kind: Any, *args: Any, **named: Any) -> Any:
        ref = real(factory, kind, *args, **named)
        if kind is OffsetManager:
            core.system._sim_dispatcher._ready.remove(ref.cell)
            ref.cell.run(10)
        return ref

    monkeypatch.setattr(FactoryActor, "spawn_child", spawn_child)
    handle = core.factory.spawn("g", "t", 0)
    stopped = core.stop(handle, 5.0)
    core.advance(2.0)
    assert stopped.get(timeout=0) == {handle.key: StopResult(None)}
    assert core.coordinator.released == ("g",)


def test_a_commit_that_is_lost_as_the_factory_restarts_does_not_end_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new committer hears of it before its managers are named to it."""
    core = Core(
        on_external_change="pause",
        verify_interval_s=VERIFY_S,
        recommit_interval_s=60.0,
        request_timeout_s=2.0,
    )
    handle = core.spawn()
    handle.submit(50)
    core.advance(2.0)
    core.put(at(7))
    core.advance(2 * VERIFY_S)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
    while core.commits()[-1] != {0: 7}:  # theirs, kept from expiring
        core.advance(0.1)
    real = FactoryActor._start_committer

    def start_committer(factory: FactoryActor, tray: Any) -> Any:
        ref = real(factory, tray)
        # Another thread of the pool runs it, while this one goes on with its managers.
        core.system._manual_clock.advance(2.5)
        core.system.timers.fire_due()
        core.system._sim_dispatcher._ready.remove(ref.cell)
        ref.cell.run(10)
        return ref

    monkeypatch.setattr(FactoryActor, "_start_committer", start_committer)
    core.factory._ref.tell(POISON)
    core.advance(20.0)
    handle.submit(70)
    core.advance(20.0)
    assert core.holds() == at(7)
    assert handle.status().dirty


def test_a_new_manager_knows_nothing_of_a_pause_of_before() -> None:
    """Though the one before it ended with its committer, to which that was never told."""
    group = Group(on_external_change="pause", verify_interval_s=VERIFY_S)
    group.start(0, 1, committed=10)
    group.submit(20, urgent=True)
    group.answer(group.commit(after_s=0))
    group.wait()
    group.read({0: 7, 1: 10})
    del group.members[0]
    group.crash()
    group.fetch({tp(1): at(10)})
    group.start(0, committed=7)
    group.submit(8, urgent=True)
    assert [version.value for version in group.commit(after_s=0).versions.values()] == [at(8)]


@pytest.mark.parametrize(("code", "partitions"), [(TOPIC_DENIED, [tp()]), (GROUP_DENIED, None)])
def test_what_nobody_may_read_any_more_is_not_watched_for_ever(
    code: int, partitions: list[TopicPartition] | None
) -> None:
    """The group ends a quarter of an hour after its last manager, though a commit was lost."""
    core = Core(request_timeout_s=2.0)
    handle = core.spawn()
    handle.submit(10)
    core.advance(2.0)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
    handle.submit(15)
    core.advance(5.0)
    handle.submit(20)
    core.advance(2.0)
    core.coordinator._plan = lambda r: Refuse(code, partitions) if r.operation == "fetch" else None
    core.stop(handle, 1.0)
    core.advance(1_000.0)
    assert core.coordinator.released == ("g",)


class TestIdle:
    """Managers that end by themselves."""

    def test_a_pause_is_not_ended_by_its_managers_idleness(self) -> None:
        """Whoever submits next did not decide that it is over."""
        core = Core(
            on_external_change="pause",
            verify_interval_s=VERIFY_S,
            recommit_interval_s=0,
            idle_timeout_s=IDLE_S,
        )
        handle, peer = core.spawn(0), core.spawn(1)
        handle.submit(50)
        peer.submit(50)
        core.advance(2.0)
        core.put(at(7))
        core.advance(3 * IDLE_S)
        assert peer.status().phase == "stopped"
        handle.submit(51)
        core.advance(5.0)
        assert core.holds() == at(7)
        assert handle.status().dirty

    def test_whoever_finds_it_ended_finds_its_name_free(self) -> None:
        """At every step of its end: nobody is told that it is there and that it is not."""
        core = Core(idle_timeout_s=IDLE_S, recommit_interval_s=0, verify_interval_s=0)
        handle = core.spawn()
        handle.submit(1)
        core.advance(2.0)
        while not handle._desk.slot.closed:
            runnable = core.system._sim_dispatcher.pick()
            if runnable is not None:
                core.system._step(runnable)
            else:
                core.system._manual_clock.advance(1.0)
                core.system.timers.fire_due()
        (refused,) = core.factory.submit("g", {tp(): 2}).values()
        assert isinstance(refused, ManagerStoppedError)
        (again,) = core.factory.spawn_many("g", [tp()]).values()
        assert isinstance(again, ManagerHandle)
        assert core.factory.submit("g", {tp(): 2}) == {}
        core.advance(2.0)
        assert core.holds() == at(2)
        assert core.listener.ended == [(handle.key, StopResult(at(1)))]
        assert core.factory.managers() != []

    def test_between_its_end_and_its_name_nobody_comes(self) -> None:
        """A spawn in the middle of it waits until the name is free."""
        core = Core(idle_timeout_s=IDLE_S, recommit_interval_s=0, verify_interval_s=0)
        handle = core.spawn()
        core.advance(2.0)
        names, slot = core.factory._names, handle._desk.slot
        lock: Any = WatchedLock()
        names.lock = lock
        made: list[object] = []
        other = Other(lock, lambda: made.extend(core.factory.spawn_many("g", [tp()]).values()))

        class Closing(WatchedLock):
            """Somebody comes as the slot is closed."""

            def __exit__(self, *_: object) -> None:
                super().__exit__()
                if slot.closed:
                    other.interrupt()

        slot.tray.lock = Closing()  # type: ignore[assignment]
        core.advance(2 * IDLE_S)
        other.join()
        assert [type(each) for each in made] == [ManagerHandle]


def test_two_who_stop_a_manager_at_once_both_wait_for_it() -> None:
    """One comes in the middle of the other's asking; it gives both of them their time."""
    core = Core(retry_backoff_max_s=1.0)
    handle = core.spawn()
    refusing = [True]
    core.coordinator._plan = lambda r: (
        Refuse(LOADING) if refusing and r.operation == "commit" else None
    )
    handle.submit(1)
    core.advance(1.5)
    desk, cell, lock = handle._desk, core.manager(handle).cell, WatchedLock()
    desk.slot.tray.lock = lock  # type: ignore[assignment]
    patient: list[Future[Any]] = []
    other = Other(lock, lambda: patient.append(core.stop(handle, 30.0)))
    ready = core.system._sim_dispatcher._ready

    class Stops(tuple["Ticket", ...]):
        """Somebody comes while they are being copied."""

        __slots__ = ()

        def __iter__(self) -> Iterator[Ticket]:
            other.interrupt()
            if cell in ready:  # it has been told, and another thread of the pool runs it
                ready.remove(cell)
                cell.run(10)
            return super().__iter__()

    desk.stops = Stops()
    core.stop(handle, 5.0)
    other.join()
    core.advance(10.0)
    refusing.clear()
    core.advance(5.0)
    assert patient[0].get(timeout=0) == {handle.key: StopResult(at(1))}
