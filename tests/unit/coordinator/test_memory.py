"""The in-memory coordinator: the port's contract, and the faults that can be scripted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.testing import SimSystem
from offsetmgr.coordinator.memory import (
    Incident,
    MemoryCoordinator,
    Refuse,
    Respond,
    Unknown,
)
from offsetmgr.errors import Verdict
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors import Future
    from offsetmgr.coordinator.base import CommitResult, Failure

G = "orders-etl"
P0, P1, P2 = (TopicPartition("orders", p) for p in range(3))
ALL = (P0, P1, P2)


def at(*offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("orders", p): OffsetAndMetadata(o) for p, o in enumerate(offsets)}


class Scheduled:
    """A coordinator that answers when its simulated time comes."""

    def __init__(self, seed: int = 0) -> None:
        system = SimSystem(seed)
        self.coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        self.broker = self.coordinator.broker
        self.advance = system.advance

    def commit(self, *offsets: int, timeout_s: float = 5.0) -> Future[CommitResult]:
        return self.coordinator.commit(G, at(*offsets), timeout_s)


def names(failures: Mapping[TopicPartition, Failure]) -> dict[TopicPartition, str]:
    return {partition: failure.info.name for partition, failure in failures.items()}


@pytest.mark.parametrize(
    ("lost", "committed"),
    [
        pytest.param(Unknown(), at(1, 2), id="landed"),
        pytest.param(Unknown(lands_after_s=None), {}, id="never landed"),
        pytest.param(Unknown(partitions=[P0]), at(1), id="half applied"),
    ],
)
def test_a_commit_of_unknown_outcome_answers_the_same_in_any_case(
    lost: Unknown, committed: dict[TopicPartition, OffsetAndMetadata]
) -> None:
    """The answer is the same if it landed, did not, or half did."""
    immediate = MemoryCoordinator()
    immediate.inject("commit", lost)
    failures = immediate.commit(G, at(1, 2), 1).get(timeout=0).failures
    assert names(failures) == {P0: "_TIMED_OUT", P1: "_TIMED_OUT"}
    assert {f.info.verdict for f in failures.values()} == {Verdict.UNKNOWN}
    assert immediate.broker.committed(G) == committed


def test_a_paused_broker_answers_nobody() -> None:
    """Every kind of request has its deadline; on resume what is held takes effect, in order."""
    scheduled = Scheduled()
    coordinator = scheduled.coordinator
    coordinator.pause()
    futures: list[Future[Any]] = [
        scheduled.commit(1, timeout_s=5),
        coordinator.fetch(G, None, 5),
        coordinator.topic_logs(["orders"], 5),
        coordinator.check(5),
    ]
    scheduled.advance(4.9)
    assert not any(each.done() for each in futures)
    second = scheduled.commit(2, timeout_s=60)
    scheduled.advance(0.1)
    assert all("_TIMED_OUT" in repr(each.get(timeout=0)) for each in futures)
    assert not second.done()
    coordinator.resume()
    assert second.get(timeout=0).failures == {}
    assert scheduled.broker.committed(G) == at(2)


incidents = st.one_of(
    st.builds(Respond, st.sampled_from([0.0, 0.5, 3.0, 9.0])),
    st.builds(Refuse, st.sampled_from([14, 25, 29]), st.sampled_from([None, (P0,), (P1, P2)])),
    st.builds(
        Unknown,
        st.sampled_from([-185, -195, 7]),
        st.sampled_from([None, 0.0, 2.0, 8.0]),
        st.sampled_from([None, (P0,), (P1, P2)]),
    ),
)


@given(
    seed=st.integers(0, 2**32),
    script=st.lists(st.tuples(incidents, st.integers(0, 50), st.integers(0, 8)), max_size=12),
)
def test_every_request_is_answered_by_its_deadline(
    seed: int, script: list[tuple[Incident, int, int]]
) -> None:
    """Any script: each commit is answered once, by its deadline, for each of its partitions.

    A partition that was not refused is in effect or was overwritten; nothing but what was
    submitted is ever committed; and what was clearly refused never takes effect.
    """
    scheduled = Scheduled(seed)
    submitted = {0}
    refused_everywhere = set[int]()
    for number, (incident, offset, pause_s) in enumerate(script, 1):
        value = offset * 100 + number
        submitted.add(value)
        scheduled.coordinator.inject("commit", incident)
        answer = scheduled.commit(value, value, value, timeout_s=5)
        scheduled.advance(5)
        assert answer.done()
        failures = answer.get(timeout=0).failures
        assert set(failures) <= set(ALL)
        if isinstance(incident, Refuse) and incident.partitions is None:
            refused_everywhere.add(value)
        scheduled.advance(pause_s)
    scheduled.advance(20)
    committed = {value.offset for value in scheduled.broker.committed(G).values()}
    assert committed <= submitted - refused_everywhere
    assert scheduled.coordinator.in_flight(G) == 0
