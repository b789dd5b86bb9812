"""Verification: changes by others and offsets outside their log are reported and followed."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import (
    Fault,
    OffsetCommitError,
    OffsetFetchError,
    OffsetNoticeError,
    OffsetRegressionError,
    Scope,
)
from offsetmgr.types import StopResult
from tests.unit.core.core import GROUP_DENIED, LOADING, TIMED_OUT, TOPIC_DENIED, Core, at, tp

if TYPE_CHECKING:
    from actors import Future
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import ManagerKey, StopResult


VERIFY_S = 60.0
UNSTABLE = 88


def begun(**settings: Any) -> tuple[Core, ManagerHandle]:
    core = Core(verify_interval_s=VERIFY_S, recommit_interval_s=0, **settings)
    handle = core.spawn()
    core.submit(handle, 13)
    return core, handle


def notices(core: Core) -> list[OffsetNoticeError]:
    return [e for _, e in core.listener.failures if isinstance(e, OffsetNoticeError)]


@pytest.mark.parametrize("theirs", [7, 40])
def test_a_change_is_reported_once_and_taken_over(theirs: int) -> None:
    """To the manager's user and to the observer (metrics, events, log), as data and in words.

    It counts as committed and is left alone, however long nothing is submitted.
    """
    core, handle = begun()
    core.put(at(theirs))
    core.advance(VERIFY_S + 2.0)
    error = handle.errors().get(timeout=0)
    assert isinstance(error, OffsetNoticeError)
    assert notices(core) == [error]
    assert (error.code, error.offset, error.retriable) == ("OFFSET_CHANGED_EXTERNALLY", 13, False)
    assert (error.info.scope, error.info.fault) == (Scope.PARTITION, Fault.OPERATOR)
    changed = f"offset 13: somebody else changed it: it is {theirs} now"
    assert f"committed offset of g/t/0 at {changed}" in str(error)
    core.advance(10 * VERIFY_S)
    assert len(notices(core)) == 1
    assert core.holds() == at(theirs)
    assert (handle.status().committed, handle.status().dirty) == (at(theirs), False)


def test_follow_makes_theirs_the_floor() -> None:
    """The committed offset does not fall without a rewind, whoever committed it."""
    core, handle = begun()
    core.put(at(40))
    core.advance(VERIFY_S)
    with pytest.raises(OffsetRegressionError, match="lower than 40"):
        handle.submit(14)
    handle.rewind(14)
    core.advance(2.0)
    assert core.holds() == at(14)
    core.submit(handle, 15)
    assert core.holds() == at(15)


def test_follow_goes_on_from_a_lower_one() -> None:
    """Also to what was submitted here before: it is not committed any more."""
    core, handle = begun()
    core.put(at(7))
    core.advance(VERIFY_S)
    core.submit(handle, 9)
    assert core.holds() == at(9)
    core.put(at(7))
    core.advance(VERIFY_S + 2.0)
    core.submit(handle, 9)
    assert core.holds() == at(9)


def test_follow_refuses_a_lower_offset_that_waits() -> None:
    """It stays dirty and visible, its waiters learn why at once, and a higher one goes."""
    core, handle = begun(retry_backoff_max_s=5.0)
    core.coordinator.inject("commit", *[Refuse(LOADING)] * 30)
    handle.submit(14)
    core.put(at(40))
    core.advance(3 * VERIFY_S)
    assert core.holds() == at(40)
    assert handle.status().dirty
    (result,) = core.flush([handle], 10.0)
    assert result.uncommitted == at(14)
    assert isinstance(result.error, OffsetCommitError)
    assert result.error.code == "OFFSET_CHANGED_EXTERNALLY"
    assert "somebody else committed 40, which is higher; rewind() to go back" in str(result.error)
    handle.submit(41)
    core.advance(120.0)
    assert core.holds() == at(41)
    assert not handle.status().dirty


def test_follow_does_not_bring_back_a_deleted_offset() -> None:
    """An operator may have meant it; what is submitted next is committed."""
    core, handle = begun()
    core.broker.forget("g")
    core.advance(10 * VERIFY_S)
    assert "nothing is committed any more" in str(notices(core)[0])
    assert core.holds() is None
    assert handle.status().committed is None
    core.submit(handle, 14)
    assert core.holds() == at(14)


def test_a_busy_job_does_not_cover_commits_that_somebody_else_repeats() -> None:
    """The look comes right before a commit, so a second writer is found in one round."""
    core, handle = begun()
    for offset in range(14, 14 + int(VERIFY_S) + 5):
        handle.submit(offset)
        core.advance(0.9)
        core.put(at(offset - 5, "theirs"))
        core.advance(0.1)
    assert notices(core)
    assert notices(core)[0].detail.startswith("somebody else changed it")


def test_a_round_is_one_request_for_the_group() -> None:
    """However many managers it has; and none where it is switched off."""
    core, _ = begun()
    for partition in range(1, 50):
        core.spawn(partition).submit(1)
    core.advance(2.0)
    before = len(core.requests("fetch"))
    core.advance(10 * VERIFY_S)
    assert 9 <= len(core.requests("fetch")) - before <= 11
    assert set(core.requests("fetch")[-1].partitions or ()) == {tp(p) for p in range(50)}
    off = Core(verify_interval_s=0, recommit_interval_s=0)
    off.spawn().submit(5)
    off.advance(3600.0)
    assert len(off.requests("fetch")) == 1


def test_flushes_without_pause_do_not_keep_the_group_from_its_looks() -> None:
    """Two that take turns: there is always an urgent commit, and the peers are looked at."""
    core = Core(verify_interval_s=5.0, recommit_interval_s=12.5)
    handles = [core.spawn(partition) for partition in range(4)]
    for handle in handles:
        handle.submit(1)
    core.advance(2.0)
    offsets = itertools.count(2)

    def again(handle: ManagerHandle) -> None:
        handle.submit(next(offsets))
        flushed = core.factory.flush([handle.key], 10.0)
        flushed.add_done_callback(
            lambda _: core.system.timers.call_after(0.001, lambda: again(handle))
        )

    again(handles[0])
    core.advance(0.005)
    again(handles[1])
    core.put(at(99), 2)
    for _ in range(15):
        core.advance(1.0)
    assert [notice.partition for notice in notices(core)] == [2]
    assert sum(3 in commit for commit in core.commits()) == 2
    assert len(core.commits()) > 250


class TestTheirsAndOurs:
    """One of our commits was under way when somebody else committed."""

    def test_a_given_up_commit_that_lands_late_does_not_stay_over_theirs(self) -> None:
        """Theirs is put back."""
        core = Core(verify_interval_s=5.0, recommit_interval_s=0, request_timeout_s=2.0)
        handle = core.spawn()
        core.submit(handle, 10)
        core.coordinator.inject("commit", Unknown(TIMED_OUT, 8.0))
        handle.submit(20)
        core.advance(1.5)
        core.put(at(100))
        core.advance(64.0)
        assert core.holds() == at(100)
        assert handle.status().dirty

    def test_a_rewind_that_was_committed_long_ago_permits_nothing(self) -> None:
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


TIMEOUT_S = 5.0


def expired_while_overlapping(core: Core, handles: list[ManagerHandle], for_s: float) -> int:
    """Return how many sync submits time out if two submitters keep the group busy."""
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
            core.system.timers.call_after(0.001, lambda: again(handle))

    for handle in handles:
        again(handle)
        core.advance(0.005)
    core.advance(for_s + 2 * TIMEOUT_S)
    return len(expired)


@pytest.mark.parametrize("lost", [False, True])
def test_unanswered_looks_hold_up_few_waiting_callers(*, lost: bool) -> None:
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
    assert expired_while_overlapping(core, handles, 40.0) <= 4


def test_theirs_is_put_back_where_a_late_commit_of_a_stopped_manager_replaces_it() -> None:
    """The kind: what somebody else has committed is forgotten with the manager that has noticed.

    A commit that it had given up before is older, also after its stop.
    """
    core = Core(verify_interval_s=10.0, recommit_interval_s=0)
    handle, other = core.spawn(0), core.spawn(1)
    core.submit(other, 5)  # so that the group is verified
    core.coordinator.inject("commit", Unknown(TIMED_OUT, lands_after_s=40.0))
    handle.submit(13)
    core.advance(10.0)
    core.submit(handle, 20)
    core.stop(handle, 1.0)
    core.advance(1.0)
    core.put(at(40))
    core.advance(25.0)  # a verification, and then the late commit
    assert core.holds() == at(40)
    core.advance(5.0)
    landed = core.holds()
    core.advance(30.0)
    assert (landed, core.holds()) == (at(13), at(40))


@pytest.mark.parametrize("code", [UNSTABLE, TOPIC_DENIED, LOADING, GROUP_DENIED])
def test_a_refused_look_before_a_commit_is_repeated_with_pauses_and_reported_once(
    code: int,
) -> None:
    """The kind: what the next commit waits for fails, and goes on failing.

    A lower offset makes the manager look, which Kafka refuses, as in an open transaction.
    """
    core, handle = begun(retry_backoff_max_s=5.0)
    core.coordinator.inject("fetch", *[Refuse(code)] * 30)
    before = len(core.requests("fetch"))
    with pytest.raises(OffsetRegressionError):
        handle.submit(5)
    core.advance(1.0)
    handle.submit(20)
    core.advance(59.0)
    assert 10 < len(core.requests("fetch")) - before < 30
    (failure,) = (error for _, error in core.listener.failures)
    assert isinstance(failure, OffsetFetchError)
    assert failure.info.code == code
    (result,) = core.flush([handle], 0.5)
    assert str(result.error) == str(failure)
    core.advance(VERIFY_S * 2)
    assert core.holds() == at(20)
    assert handle.status().last_error is None
