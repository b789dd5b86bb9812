"""Reads that nobody waits for, beside commits that somebody does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from offsetmgr.coordinator.memory import Refuse, Unknown
from tests.unit.core.core import TIMED_OUT, UNKNOWN_TOPIC, Core, tp

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
