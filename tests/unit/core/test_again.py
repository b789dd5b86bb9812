"""A manager's first commit is repeated once, for lag tools that had not heard of the topic yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.core import Core, at

if TYPE_CHECKING:
    from offsetmgr.manager import ManagerHandle


def first_commit(core: Core) -> ManagerHandle:
    """Let a manager commit 7 for the first time."""
    handle = core.spawn()
    handle.submit(7)
    core.advance(2.0)
    assert core.commits() == [{0: 7}]
    return handle


def test_an_unchanged_offset_is_committed_again_a_minute_later(core: Core) -> None:
    """Once, and read before: nothing is written over what it does not know."""
    first_commit(core)
    reads = len(core.requests("fetch"))
    core.advance(57.0)
    assert core.commits() == [{0: 7}]
    core.advance(5.0)
    assert core.commits() == [{0: 7}, {0: 7}]
    assert len(core.requests("fetch")) == reads + 1
    core.advance(36_000.0)
    assert core.commits() == [{0: 7}, {0: 7}]


def test_all_of_a_group_in_one_request() -> None:
    """As many as were committed together."""
    core = Core()
    handles = [core.spawn(partition) for partition in range(5)]
    for handle in handles:
        handle.submit(7)
    core.advance(70.0)
    assert core.commits() == [dict.fromkeys(range(5), 7)] * 2


def test_a_newer_commit_stands_for_it(core: Core) -> None:
    """The tool has heard of that."""
    handle = first_commit(core)
    core.advance(20.0)
    handle.submit(8)
    core.advance(600.0)
    assert core.commits() == [{0: 7}, {0: 8}]


def test_it_does_not_go_over_somebody_elses(core: Core) -> None:
    """They are told of as always."""
    handle = first_commit(core)
    core.put(at(3))
    core.advance(70.0)
    assert core.commits() == [{0: 7}]
    assert core.holds() == at(3)
    assert handle.errors().get(timeout=0).code == "OFFSET_CHANGED_EXTERNALLY"


@pytest.mark.parametrize("found", [None, 5])
def test_the_first_commit_over_a_found_offset_is_repeated_too(
    core: Core, found: int | None
) -> None:
    """What was found is committed again after a minute as well, where it stays."""
    if found is not None:
        core.put(at(found))
    core.spawn().submit(7)
    core.advance(600.0)
    assert core.commits() == [{0: 7}, {0: 7}]


def test_without_recommits_there_is_none() -> None:
    """Whoever switches them off has said so."""
    core = Core(recommit_interval_s=0)
    first_commit(core)
    core.advance(600.0)
    assert core.commits() == [{0: 7}]


def test_each_manager_has_its_own_first_commit(core: Core) -> None:
    """A successor does not know what its predecessor did."""
    handle = first_commit(core)
    core.advance(70.0)
    handle.stop()
    core.spawn().submit(9)
    core.advance(70.0)
    assert core.commits() == [{0: 7}, {0: 7}, {0: 9}, {0: 9}]
