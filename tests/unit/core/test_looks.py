"""Reads that nobody waits for, beside commits that somebody does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from offsetmgr.coordinator.memory import Refuse, Unknown
from tests.unit.core.core import TIMED_OUT, TOPIC_DENIED, UNKNOWN_TOPIC, Core, at, tp

if TYPE_CHECKING:
    from actors import Future
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import ManagerKey, StopResult

TIMEOUT_S = 5.0


def expired_while_overlapping(core: Core, handles: list[ManagerHandle], for_s: float) -> int:
    """How many sync submits run out of time, where two submitters never let the group rest."""
    clock, until_s = core.system.clock, core.system.clock.now() + for_s
    offsets = itertools.count(10)
    expired: list[StopResult] = []

    def again(handle: ManagerHandle) -> None:
        handle.submit(next(offsets))
        core.factory.flush([handle.key], TIMEOUT_S).add_done_callback(
            lambda done: answered(handle, done)
        )

    def answered(handle: ManagerHandle, done: Future[dict[ManagerKey, StopResult]]) -> None:
        expired.extend(each for each in done.get().values() if each.uncommitted)
        if clock.now() < until_s:
            core.system.timers.call_after(0.0001, lambda: again(handle))

    for handle in handles:
        again(handle)
        core.advance(0.005)
    core.advance(for_s + 2 * TIMEOUT_S)
    return len(expired)


@pytest.mark.parametrize("lost", [False, True])
def test_looks_that_are_not_answered_hold_up_few_who_wait(*, lost: bool) -> None:
    """Commits are well and fetches hang: one that nobody waits for is tried again rarely."""
    core = Core(
        verify_interval_s=0 if lost else 5.0, request_timeout_s=TIMEOUT_S, retry_backoff_max_s=30.0
    )
    handles = [core.spawn(0), core.spawn(1)]
    handles[0].submit(1)
    core.advance(2.0)
    if lost:  # it is looked for now and then
        core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
        handles[0].submit(2)
        core.advance(8.0)
    core.coordinator._plan = lambda r: Unknown(TIMED_OUT, None) if r.operation == "fetch" else None
    assert expired_while_overlapping(core, handles, 100.0) <= 8


def test_what_cannot_be_read_back_is_not_asked_for_at_once_because_it_is_old() -> None:
    """Its own pause counts, though it is due to be kept alive."""
    core = Core(request_timeout_s=2.0, recommit_interval_s=10.0, verify_interval_s=0)
    handle = core.spawn()
    handle.submit(1)
    core.advance(2.0)
    core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
    core.coordinator._plan = lambda r: (
        Refuse(UNKNOWN_TOPIC, [tp()]) if r.operation == "fetch" else None
    )
    handle.submit(2)
    core.advance(60.0)
    assert len(core.requests("fetch")) < 30


@pytest.mark.parametrize("hanging", ["look", "initial", "unknown"])
@pytest.mark.parametrize("gap_s", [0.0001, 0.3])
def test_reads_of_others_that_are_not_answered_hold_up_few_flushes(
    hanging: str, gap_s: float
) -> None:
    """Commits are well and fetches hang: one who flushes now and then does not wait for each."""
    core = Core(verify_interval_s=0, request_timeout_s=TIMEOUT_S, retry_backoff_max_s=30.0)
    other, handle = core.spawn(0), core.spawn(1)
    other.submit(1)
    core.advance(2.0)
    if hanging == "look":
        core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
        other.submit(2)
        core.advance(8.0)
    core.coordinator._plan = lambda r: Unknown(TIMED_OUT, None) if r.operation == "fetch" else None
    if hanging == "initial":
        core.factory.spawn("g", "t", 2)
    if hanging == "unknown":
        core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
        other.submit(2)
    core.advance(8.0)  # else both go out with the one commit that is lost
    slow = 0
    until_s = core.system.clock.now() + 100.0
    for offset in itertools.count(10):
        asked_at = core.system.clock.now()
        if asked_at >= until_s:
            break
        handle.submit(offset)
        flushed = core.factory.flush([handle.key], TIMEOUT_S)
        while not flushed.done():
            core.advance(0.01)
        slow += core.system.clock.now() - asked_at > 1.0
        core.advance(gap_s)
    assert slow <= 12


def test_an_offset_of_unknown_age_is_kept_alive_soon_though_a_read_back_was_refused() -> None:
    """What the manager found is as old as it was."""
    core = Core(request_timeout_s=2.0, verify_interval_s=0)
    core.put(at(5))
    handle = core.spawn()
    core.coordinator.inject("commit", Unknown(TIMED_OUT, None))
    core.coordinator.inject("fetch", Refuse(UNKNOWN_TOPIC, [tp()]), Refuse(TOPIC_DENIED, [tp()]))
    handle.submit(6)  # it is parked, and stays dirty
    core.advance(200.0)
    assert core.commits()[1:] == [{0: 5}]
