"""Real threads at the factory and its handles."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from actors import ActorSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import ManagerExistsError, ManagerStoppedError, OffsetRegressionError
from offsetmgr.manager import Factory, ManagerHandle
from offsetmgr.types import StopResult
from tests.together import together
from tests.unit.core.core import at, tp
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.core.core import Core


THREADS = 8
SUBMITS = 2_000


class Live:
    """A factory with threads of its own, and a coordinator that takes a moment."""

    def __init__(self) -> None:
        self.system = ActorSystem(threads=4, name="live")
        self.coordinator = MemoryCoordinator(
            call_after=self.system.timers.call_after, latency_s=0.001
        )
        settings = CommitSettings(commit_interval_s=0.005)
        self.factory = Factory(self.coordinator, settings, system=self.system)


@pytest.fixture
def live() -> Iterator[Live]:
    """It leaves no thread behind."""
    made = Live()
    yield made
    made.factory.stop(WAIT_S)
    assert made.system.stop(WAIT_S)


def test_eight_threads_on_one_manager(live: Live) -> None:
    """The highest offset is committed at last, whoever submitted it, and nothing ever falls."""
    handle = live.factory.spawn("g", "t", 0)
    seen: list[int] = []
    commit = live.coordinator.broker.commit

    def watch(group: str, offsets: object) -> object:
        seen.append(offsets[tp()].offset)  # type: ignore[index]
        return commit(group, offsets)  # type: ignore[arg-type]

    live.coordinator.broker.commit = watch  # type: ignore[method-assign,assignment]

    def hammer(index: int) -> None:
        for step in range(SUBMITS):
            try:
                handle.submit(step * THREADS + index)
            except OffsetRegressionError:
                continue  # another thread was faster

    together(THREADS, hammer)
    assert handle.stop(timeout=WAIT_S) == StopResult(at(SUBMITS * THREADS - 1))
    assert live.coordinator.broker.committed("g") == {tp(): at(SUBMITS * THREADS - 1)}
    assert seen == sorted(seen)
    assert live.coordinator.most_in_flight["g"] == 1


class Contended:
    """A lock that another thread takes first, for all of a submit and its commit."""

    def __init__(self, lock: threading.RLock, other: Callable[[], object]) -> None:
        self._lock = lock
        self._others = [other]

    def __enter__(self) -> None:
        while self._others:
            self._others.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("bulk", [False, True])
def test_a_submit_that_waits_for_another_thread_is_not_lost(core: Core, *, bulk: bool) -> None:
    """The kind: numbered before it had the lock, it counted as older than what is committed."""
    handle = core.spawn()

    def submit_first() -> None:
        core.submit(handle, 5)

    group = handle._manager.group
    group.lock = Contended(group.lock, submit_first)  # type: ignore[assignment]
    if bulk:
        core.factory.submit("g", {tp(): 7})
    else:
        handle.submit(7)
    core.advance(2.0)
    assert core.commits() == [{0: 5}, {0: 7}]


def test_of_eight_spawns_one_wins(live: Live) -> None:
    """The others learn who has it."""
    won: list[ManagerHandle] = []

    def race(index: int) -> None:
        for partition in range(50):
            try:
                won.append(live.factory.spawn("g", "t", partition, owner=str(index)))
            except ManagerExistsError:
                continue

    together(THREADS, race)
    assert sorted(handle.key.partition for handle in won) == list(range(50))


def test_spawning_and_stopping_the_same_key_over_and_over(live: Live) -> None:
    """After each stop the name is free, and what was submitted last is committed."""

    def churn(index: int) -> None:
        for step in range(1, 40):
            handle = live.factory.spawn("g", "t", index)
            handle.submit(step)
            assert handle.stop(timeout=WAIT_S) == StopResult(at(step))

    together(THREADS, churn)
    assert live.coordinator.broker.committed("g") == {tp(p): at(39) for p in range(THREADS)}
    assert live.factory.managers() == []


def test_eight_stops_of_one_manager_all_answer(live: Live) -> None:
    """While others still submit: what was accepted is committed."""
    handle = live.factory.spawn("g", "t", 0)
    accepted = [0] * THREADS
    answers: list[StopResult] = []

    def work(index: int) -> None:
        for step in range(1, SUBMITS):
            try:
                handle.submit(step)
            except OffsetRegressionError:
                continue
            except ManagerStoppedError:
                break
            accepted[index] = step
            if index == 0 and step == SUBMITS // 4:
                break
        answers.append(handle.stop(timeout=WAIT_S))

    together(THREADS, work)
    assert answers == [StopResult(at(max(accepted)))] * THREADS


def test_a_factory_of_its_own_leaves_no_thread_behind() -> None:
    """Without a system it makes one, and ends it."""
    before = threading.active_count()
    factory = Factory(MemoryCoordinator(), CommitSettings(commit_interval_s=0.01))
    handle = factory.spawn("g", "t", 0)
    handle.submit(3)
    assert factory.stop(WAIT_S) == {handle.key: StopResult(at(3))}
    assert threading.active_count() == before
