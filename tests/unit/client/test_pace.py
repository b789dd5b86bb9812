"""When the sender speaks: pauses, heartbeats and leases, on a clock of the test's own."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given

from offsetmgr.client.pace import FIRST_PAUSE_S, LONGEST_PAUSE_S, MIN_LEASE_S, Pace


@given(seed=st.integers(), failures=st.integers(1, 200))
def test_pauses_grow_and_are_bounded(seed: int, failures: int) -> None:
    """However long the service is away, a pause is jittered and at most the longest one."""
    pace = Pace(random.Random(seed))  # noqa: S311 -- jitter is no secret
    pauses = []
    for _ in range(failures):
        pace.failed(100.0)
        pauses.append(pace.resume_at - 100.0)
    assert all(FIRST_PAUSE_S / 2 <= pause <= LONGEST_PAUSE_S for pause in pauses)
    assert all(pause >= LONGEST_PAUSE_S / 2 for pause in pauses[10:])


def test_an_answer_ends_the_pause() -> None:
    """After an answer pauses begin anew, from the shortest."""
    pace = Pace(random.Random(1))  # noqa: S311
    for _ in range(20):
        pace.failed(100.0)
    pace.heard(100.0)
    assert pace.resume_at <= 100.0
    pace.failed(100.0)
    assert pace.resume_at <= 100.0 + FIRST_PAUSE_S


def test_a_pause_that_was_asked_for() -> None:
    """A service that asks for a pause gets it, unless somebody waits."""
    pace = Pace(random.Random(1))  # noqa: S311
    pace.failed(100.0, at_least_s=3.0)
    assert pace.resume_at == 103.0
    pace.hurry()
    assert pace.resume_at <= 100.0


def test_heartbeats_follow_the_lease() -> None:
    """A heartbeat is due at once, and then a third of the lease after each answer."""
    pace = Pace(random.Random(1))  # noqa: S311
    assert pace.beat_at <= 0
    pace.heard(100.0)
    assert pace.beat_at == 110.0
    pace.lease(3.0)
    assert pace.beat_at == 101.0
    pace.lease(0.0)
    assert pace.beat_at == 100.0 + MIN_LEASE_S / 3


def test_a_lease_lapses() -> None:
    """A lease lapses when the service was not heard for longer than it."""
    pace = Pace(random.Random(1))  # noqa: S311
    assert not pace.lapsed(1e9)
    pace.heard(100.0)
    assert not pace.lapsed(130.0)
    assert pace.lapsed(130.1)
