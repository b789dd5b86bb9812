"""A group whose coordinator is slow, silent or refusing delays no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors import Future
from offsetmgr.coordinator.memory import Refuse
from tests.unit.core.core import LOADING, Core, at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.coordinator.base import CommitResult
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
