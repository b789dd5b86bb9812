"""Every code that the coordinator can answer, to a fetch and to a commit: by its class alone."""

from __future__ import annotations

import pytest

from offsetmgr.codes import OFFSET_CHANGED
from offsetmgr.coordinator.memory import Refuse, Unknown
from offsetmgr.errors import ERRORS, CoordinatorError, ErrorInfo, Scope, Verdict
from tests.unit.core.core import TIMED_OUT, Core, at, tp

OWN = {code for code in ERRORS if code >= OFFSET_CHANGED}
INFOS = [info for info in ERRORS.values() if info.code not in {TIMED_OUT, *OWN}]
"""No coordinator answers with a code of our own, and nobody answers with a time-out."""

SETTLED_S = 120.0
"""Longer than the longest pause."""


@pytest.fixture
def core() -> Core:
    made = Core(recommit_interval_s=0)
    made.put(at(10))
    made.put(at(10), 1)
    return made


def codes(core: Core) -> list[str]:
    return [error.code for _, error in core.listener.failures]


def incident(info: ErrorInfo) -> Refuse | Unknown:
    """The code for partition 0, and for all where it speaks of the group."""
    if info.verdict is Verdict.UNKNOWN:
        return Unknown(info.code, None)
    return Refuse(info.code, None if info.scope is Scope.GROUP else [tp(0)])


@pytest.mark.parametrize("info", INFOS, ids=lambda i: i.name)
def test_a_commit_is_tried_again_exactly_where_that_can_help(core: Core, info: ErrorInfo) -> None:
    """Told in any case; retriable: committed at last.  Permanent: told once, dirty, not looped.

    An error of one partition does not hold back its peer, which the same request commits.
    """
    handle, peer = core.spawn(), core.spawn(1)
    core.coordinator.inject("commit", incident(info))
    peer.submit(22)
    handle.submit(12)
    core.advance(1.1)
    assert core.holds(1) == at(22) or info.scope is Scope.GROUP
    core.advance(SETTLED_S)
    error = handle.errors().get(timeout=0)
    assert isinstance(error, CoordinatorError)
    assert (error.info, error.offset) == (info, 12)
    if info.retriable or info.verdict is Verdict.UNKNOWN:
        assert core.holds() == at(12)
        assert not handle.status().dirty
    else:
        told = 2 if info.scope is Scope.GROUP else 1
        assert codes(core) == [info.name] * told
        assert core.commits() == [{0: 12, 1: 22}]
        assert handle.status().dirty
        handle.submit(13)
        core.advance(SETTLED_S)
        assert core.holds() == at(13)


@pytest.mark.parametrize("info", INFOS, ids=lambda i: i.name)
def test_a_fetch_is_tried_again_until_it_is_answered(core: Core, info: ErrorInfo) -> None:
    """Told once and not at each try; then the manager is ready as if nothing had been."""
    core.coordinator.inject("fetch", *[incident(info)] * 5)
    handle = core.spawn()
    assert codes(core) == [info.name]
    core.advance(SETTLED_S)
    assert codes(core) == [info.name]
    assert handle.initial_offset(timeout=0) == at(10)
    assert handle.status().last_error is None
