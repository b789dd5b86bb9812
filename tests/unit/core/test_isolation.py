"""A group whose coordinator is slow, silent or refusing delays no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors import Future
from offsetmgr.coordinator.base import CommitResult
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import OffsetCommitError
from offsetmgr.manager.group_committer import OVERDUE_S
from tests.unit.core.core import LOADING, Core, at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.coordinator.base import FetchResult
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

GROUPS = 1_000
TIMEOUT_S = 5.0


@pytest.fixture
def core() -> Core:
    """One factory with an interval of 1 s and a coordinator that answers within 10 ms."""
    return Core(request_timeout_s=TIMEOUT_S)


def silence(core: Core, monkeypatch: pytest.MonkeyPatch, group: str) -> Callable[[], None]:
    """Let commits of ``group`` never be answered at all; returns what ends that."""
    commit = core.coordinator.commit
    silent = [group]

    def mute(
        named: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        return Future() if named in silent else commit(named, offsets, timeout_s)

    monkeypatch.setattr(core.coordinator, "commit", mute)
    return silent.clear


@pytest.mark.parametrize("trouble", ["never", "stopped", "loading"])
def test_a_thousand_groups_commit_on_time_beside_one_in_trouble(
    core: Core, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Whatever ails its coordinator: never answering, stopped, loading."""
    bad = core.spawn(group="bad")
    handles = [core.spawn(group=f"g{n}") for n in range(GROUPS)]
    if trouble == "never":
        silence(core, monkeypatch, "bad")
    elif trouble == "stopped":
        core.coordinator.pause("bad")
    else:
        core.coordinator.inject("commit", *[Refuse(LOADING)] * 50, group="bad")
    bad.submit(7)
    for offset in (11, 12, 13):
        for handle in handles:
            handle.submit(offset)
        core.advance(1.1)
        held = [core.holds(group=f"g{n}") for n in range(GROUPS)]
        assert held == [at(offset)] * GROUPS
    assert bad.status().dirty


def test_a_request_that_is_never_answered_is_given_up(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as unknown, read back, and what is newest by then is committed."""
    handle = core.spawn()
    speak = silence(core, monkeypatch, "g")
    handle.submit(12)
    core.advance(1.0 + TIMEOUT_S + OVERDUE_S - 0.1)
    assert handle.status().last_error is None
    handle.submit(13)
    speak()
    core.advance(1.0)
    error = handle.errors().get(timeout=0)
    assert isinstance(error, OffsetCommitError)
    assert (error.code, error.offset) == ("_TIMED_OUT", 12)
    assert "did not answer by its deadline" in str(error)
    assert [r.operation for r in core.coordinator.requests[-2:]] == ["fetch", "commit"]
    assert core.holds() == at(13)


def test_a_fetch_that_is_never_answered_is_given_up(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The initial offset is asked for again."""
    fetch = core.coordinator.fetch

    def mute(group: str, partitions: object, timeout_s: float) -> Future[FetchResult]:
        del group, partitions, timeout_s
        return Future()

    monkeypatch.setattr(core.coordinator, "fetch", mute)
    handle = core.spawn()
    core.put(at(10))
    core.advance(1.0)
    monkeypatch.setattr(core.coordinator, "fetch", fetch)
    core.advance(TIMEOUT_S + OVERDUE_S)
    assert handle.initial_offset(timeout=0) == at(10)


def test_an_answer_that_comes_after_all_changes_nothing(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once given up it is the read-back that counts, and one request is in flight."""
    late: list[Future[CommitResult]] = []
    commit = core.coordinator.commit

    def hold(
        group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        if late:
            return commit(group, offsets, timeout_s)
        late.append(Future())
        return late[0]

    handle = core.spawn()
    monkeypatch.setattr(core.coordinator, "commit", hold)
    handle.submit(12)
    core.advance(2.0 + TIMEOUT_S + OVERDUE_S)
    committed = core.commits()
    late[0].set(CommitResult({}))
    core.advance(5.0)
    assert core.commits() == committed == [{0: 12}]
    assert not handle.status().dirty
