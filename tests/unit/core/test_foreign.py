"""A committed offset that somebody else has changed is reported and followed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import (
    Fault,
    OffsetCommitError,
    OffsetNoticeError,
    OffsetRegressionError,
    Scope,
)
from tests.unit.core.core import LOADING, Core, at, tp

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle

VERIFY_S = 60.0


def begun(**settings: Any) -> tuple[Core, ManagerHandle]:
    """A manager that has committed 13."""
    core = Core(verify_interval_s=VERIFY_S, recommit_interval_s=0, **settings)
    handle = core.spawn()
    handle.submit(13)
    core.advance(2.0)
    return core, handle


def notices(core: Core) -> list[OffsetNoticeError]:
    """What was told so far."""
    return [e for _, e in core.listener.failures if isinstance(e, OffsetNoticeError)]


def test_it_is_told_once_with_what_was_and_what_is_and_what_to_do() -> None:
    """To the manager's user and to the observer (metrics, events, log), as data and in words."""
    core, handle = begun()
    core.put(at(40))
    core.advance(VERIFY_S + 2.0)
    error = handle.errors().get(timeout=0)
    assert isinstance(error, OffsetNoticeError)
    assert notices(core) == [error]
    assert (error.code, error.offset, error.retriable) == ("OFFSET_CHANGED_EXTERNALLY", 13, False)
    assert (error.info.scope, error.info.fault) == (Scope.PARTITION, Fault.OPERATOR)
    assert "committed offset of g/t/0 at offset 13: somebody else changed it: it is 40 now" in str(
        error
    )
    core.advance(10 * VERIFY_S)
    assert len(notices(core)) == 1


@pytest.mark.parametrize("theirs", [7, 40])
def test_follow_takes_theirs_over(theirs: int) -> None:
    """It counts as committed and is left alone, however long nothing is submitted."""
    core, handle = begun()
    core.put(at(theirs))
    core.advance(10 * VERIFY_S)
    assert core.holds() == at(theirs)
    assert handle.status().committed == at(theirs)
    assert not handle.status().dirty


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
    handle.submit(15)
    core.advance(2.0)
    assert core.holds() == at(15)


def test_follow_goes_on_from_a_lower_one() -> None:
    """Also to what was submitted here before: it is not committed any more."""
    core, handle = begun()
    core.put(at(7))
    core.advance(VERIFY_S)
    handle.submit(9)
    core.advance(2.0)
    assert core.holds() == at(9)
    core.put(at(7))
    core.advance(VERIFY_S + 2.0)
    handle.submit(9)
    core.advance(2.0)
    assert core.holds() == at(9)


def test_follow_refuses_what_waits_and_is_lower() -> None:
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


def test_follow_does_not_bring_back_what_was_deleted() -> None:
    """An operator may have meant it; what is submitted next is committed."""
    core, handle = begun()
    core.broker.forget("g")
    core.advance(10 * VERIFY_S)
    assert "nothing is committed any more" in str(notices(core)[0])
    assert core.holds() is None
    assert handle.status().committed is None
    handle.submit(14)
    core.advance(2.0)
    assert core.holds() == at(14)


def test_its_peers_go_on() -> None:
    """The others of the group are committed on time."""
    core, handle = begun()
    peer = core.spawn(1)
    core.put(at(40))
    core.advance(VERIFY_S)
    for offset in (5, 6, 7):
        peer.submit(offset)
        if offset == 6:
            handle.submit(50)
        core.advance(1.1)
        assert core.holds(1) == at(offset)


def test_a_busy_job_does_not_cover_what_somebody_else_commits_again_and_again() -> None:
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


def test_who_flushes_without_pause_does_not_keep_the_group_from_its_looks() -> None:
    """Two that take turns: there is always an urgent commit, and the peers are looked at."""
    core = Core(verify_interval_s=20.0, recommit_interval_s=50.0)
    handles = [core.spawn(partition) for partition in range(4)]
    for handle in handles:
        handle.submit(1)
    core.advance(2.0)
    offsets = itertools.count(2)

    def again(handle: ManagerHandle) -> None:
        handle.submit(next(offsets))
        flushed = core.factory.flush([handle.key], 10.0)
        flushed.add_done_callback(
            lambda _: core.system.timers.call_after(0.0001, lambda: again(handle))
        )

    again(handles[0])
    core.advance(0.005)
    again(handles[1])
    core.put(at(99), 2)
    for _ in range(60):
        core.advance(1.0)
    assert [notice.partition for notice in notices(core)] == [2]
    assert sum(3 in commit for commit in core.commits()) == 2
    assert len(core.commits()) > 1_000


def test_a_group_that_cannot_be_read_goes_on_committing() -> None:
    """A look that fails is taken again with the next round."""
    core, handle = begun()
    core.coordinator.inject("fetch", *[Unknown(7, None)] * 3)
    for offset in range(14, 14 + int(VERIFY_S)):
        handle.submit(offset)
        core.advance(2.0)
        assert core.holds() == at(offset)
    assert notices(core) == []


def test_what_waits_above_theirs_is_still_the_floor() -> None:
    """It goes over theirs, so that nothing lower may come after it."""
    core, handle = begun(retry_backoff_max_s=5.0)
    core.coordinator.inject("commit", *[Refuse(LOADING)] * 30)
    handle.submit(14)
    core.put(at(7))
    core.advance(VERIFY_S + 2.0)
    assert notices(core)
    with pytest.raises(OffsetRegressionError, match="lower than 14"):
        handle.submit(9)
    core.advance(180.0)
    assert core.holds() == at(14)


def test_a_lost_commit_of_ours_does_not_undo_theirs() -> None:
    """It was sent before they committed and lands after that: theirs is put back."""
    core, handle = begun()
    core.coordinator.inject("commit", Unknown(7, lands_after_s=VERIFY_S + 20.0))
    handle.submit(14)
    core.advance(5.0)
    handle.submit(15)
    core.advance(5.0)
    core.put(at(40, "theirs"))
    core.advance(VERIFY_S)
    assert len(notices(core)) == 1
    seen = set()
    for _ in range(600):
        core.advance(0.1)
        seen.add(core.holds())
    assert at(14) in seen
    core.advance(600.0)
    assert core.holds() == at(40, "theirs")
    assert not handle.status().dirty
    handle.rewind(16)
    core.advance(2.0)
    assert core.holds() == at(16)


def test_theirs_kept_from_expiring_leaves_dirty_what_waits() -> None:
    """What was refused as lower than theirs is not committed by committing theirs again."""
    core = Core(verify_interval_s=VERIFY_S, recommit_interval_s=600.0, retry_backoff_max_s=5.0)
    handle = core.spawn()
    handle.submit(13)
    core.advance(2.0)
    core.coordinator.inject("commit", *[Refuse(LOADING)] * 14)
    handle.submit(14)
    core.put(at(40))
    core.advance(3 * VERIFY_S)
    core.advance(1_200.0)
    assert core.commits()[-1] == {0: 40}
    assert handle.status().dirty
    (result,) = core.flush([handle], 10.0)
    assert (result.committed, result.uncommitted) == (at(40), at(14))
