"""Managers that nobody uses end by themselves, where that is wanted."""

from __future__ import annotations

import pytest

from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import ManagerStoppedError
from offsetmgr.types import StopResult
from tests.unit.core.core import LOADING, Core, at

IDLE_S = 60.0
LATE_S = IDLE_S / 4 + 2.0


@pytest.fixture
def core() -> Core:
    """Managers end after a minute without a submit."""
    return Core(idle_timeout_s=IDLE_S, recommit_interval_s=0)


def test_it_ends_after_its_last_commit_and_its_owner_is_told(core: Core) -> None:
    """With what it has committed; the observer is what events come from."""
    handle = core.spawn()
    handle.submit(12)
    core.advance(IDLE_S)
    assert core.listener.ended == []
    core.advance(LATE_S)
    assert core.listener.ended == [(handle.key, StopResult(at(12)))]
    assert handle.status().phase == "stopped"
    assert core.factory.managers() == []
    with pytest.raises(ManagerStoppedError, match="spawn a new manager to submit again"):
        handle.submit(13)


def test_a_new_one_goes_on_where_it_ended(core: Core) -> None:
    """The name is free at once."""
    core.spawn().submit(12)
    core.advance(IDLE_S + LATE_S)
    again = core.spawn()
    assert again.initial_offset(timeout=0) == at(12)
    again.submit(13)
    core.advance(IDLE_S)
    assert core.holds() == at(13)
    assert again.status().phase == "ready"


def test_who_is_used_lives(core: Core) -> None:
    """Each new submit counts; its idle peer ends all the same."""
    used, peer = core.spawn(0), core.spawn(1)
    for offset in range(20):
        used.submit(offset)
        core.advance(IDLE_S / 2)
    assert used.status().phase == "ready"
    assert peer.status().phase == "stopped"


def test_what_is_not_committed_yet_is_not_given_up(core: Core) -> None:
    """However long Kafka refuses it."""
    handle = core.spawn()
    core.coordinator.inject("commit", *[Refuse(LOADING)] * 30)
    handle.submit(12)
    core.advance(4 * IDLE_S)
    assert handle.status().phase == "ready"
    core.advance(20 * IDLE_S)
    assert core.holds() == at(12)
    assert handle.status().phase == "stopped"


def test_one_that_waits_for_its_initial_offset_is_not_idle(core: Core) -> None:
    """It has not begun."""
    core.coordinator.inject("fetch", *[Refuse(LOADING)] * 12)
    handle = core.spawn()
    core.advance(2 * IDLE_S)
    assert handle.status().phase == "fetching"


def test_it_is_off_unless_asked_for() -> None:
    """Managers live as long as their client does."""
    core = Core()
    handle = core.spawn()
    handle.submit(12)
    core.advance(30 * 86_400.0)
    assert handle.status().phase == "ready"
