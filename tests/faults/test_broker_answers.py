"""Errors of a coordinator, and the managers' reactions to them.

All offsets carry leader epoch 0, which is what the mock gives back in any case.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from tests.faults.support import HASTY, TOPIC, committing_to_mock
from tests.kafka.mock_cluster import OFFSET_COMMIT, MockCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMED_OUT, _LOADING, _NOT_AVAILABLE, _NOT_COORDINATOR, _REBALANCING = 7, 14, 15, 16, 27
_RETRIABLE: Final = (_TIMED_OUT, _LOADING, _NOT_AVAILABLE, _REBALANCING)


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=4)
        yield cluster


@pytest.mark.fault(1, 4)
def test_no_answer_in_between_lets_the_committed_offset_fall(mock: MockCluster, group: str) -> None:
    """Each commit may be refused or lost: what Kafka has only rises, up to what was submitted."""
    rng = random.Random(1)  # noqa: S311 -- which faults, no secret
    with committing_to_mock(mock.bootstrap_servers) as managers:
        handle = managers.spawn(group)
        seen: list[int] = []
        for offset in range(1, 101):
            if offset % 5 == 0:
                mock.push_errors(OFFSET_COMMIT, rng.choice(_RETRIABLE))
            handle.submit(offset, leader_epoch=0)
            found = managers.in_kafka(group) or 0
            assert found <= offset
            seen.append(found)
        assert managers.flush(handle) is None
        assert seen == sorted(seen)
        assert managers.in_kafka(group) == 100
        told = [committed.offset for _, committed in managers.told.acknowledged]
        assert told == sorted(told)
        assert len(set(managers.codes())) > 1


@pytest.mark.fault(9)
def test_a_coordinator_that_moves_is_found_again_and_order_is_kept(group: str) -> None:
    """Submits go on while it moves: what Kafka has never falls, and ends with the newest."""
    with MockCluster(2) as mock, committing_to_mock(mock.bootstrap_servers) as managers:
        mock.create_topic(TOPIC)
        mock.set_coordinator(group, 1)
        handle = managers.spawn(group)
        handle.submit(1, leader_epoch=0)
        assert managers.flush(handle) is None
        mock.push_errors(OFFSET_COMMIT, _NOT_COORDINATOR)
        mock.set_coordinator(group, 2)
        seen: list[int] = []
        for offset in range(2, 100):
            handle.submit(offset, leader_epoch=0)
            seen.append(managers.in_kafka(group) or 0)
        assert managers.flush(handle) is None
        assert managers.flush(handle) is None
        mock.set_down(1)
        handle.submit(100, leader_epoch=0)
        assert managers.flush(handle) is None
        seen.append(managers.in_kafka(group) or 0)
        assert seen == sorted(seen)
        assert seen[-1] == 100
        assert "NOT_COORDINATOR" in managers.codes()


@pytest.mark.fault(10)
def test_a_coordinator_that_is_loading_is_waited_for(mock: MockCluster, group: str) -> None:
    """Asked again after a pause, once each time; when it has loaded the newest is committed."""
    with committing_to_mock(mock.bootstrap_servers) as managers:
        handle = managers.spawn(group)
        mock.push_errors(OFFSET_COMMIT, *[_LOADING] * 3)
        handle.submit(7, leader_epoch=0)
        assert managers.flush(handle) is None
        assert managers.in_kafka(group) == 7
        assert set(managers.codes()) == {"COORDINATOR_LOAD_IN_PROGRESS"}
        assert mock.count(OFFSET_COMMIT) == 4


@pytest.mark.fault(11)
def test_a_slow_coordinator_blocks_neither_its_caller_nor_another_group(group: str) -> None:
    """Its own flush ends by the deadline, its handle answers, and others commit meanwhile."""
    with MockCluster(2) as mock, committing_to_mock(mock.bootstrap_servers, HASTY) as managers:
        mock.create_topic(TOPIC)
        slow, quick = f"{group}-slow", f"{group}-quick"
        for number, name in enumerate((slow, quick), 1):
            mock.set_coordinator(name, number)
        held, free = managers.spawn(slow), managers.spawn(quick)
        mock.set_round_trip(rtt_ms=2_000, broker=1)
        held.submit(1, leader_epoch=0)
        for offset in range(1, 6):
            free.submit(offset, leader_epoch=0)
            assert managers.flush(free) is None
        assert managers.flush(held, 0.1) == 1
        held.submit(2, leader_epoch=0)
        assert held.status().submitted is not None
        error = managers.commit_error(held, 1)
        assert (error.code, error.retriable) == ("_TIMED_OUT", True)


@pytest.mark.fault(13)
def test_an_outage_keeps_the_newest_offset_alone(mock: MockCluster, group: str) -> None:
    """However much is submitted meanwhile, memory is flat and one commit ends it."""
    with committing_to_mock(mock.bootstrap_servers, HASTY) as managers:
        handles = [managers.spawn(group, partition) for partition in range(4)]
        mock.set_down(1)
        for handle in handles:
            handle.submit(1, leader_epoch=0)
        managers.commit_error(handles[0], 1)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for offset in range(2, 10_002):
            for handle in handles:
                handle.submit(offset, leader_epoch=0)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # 40,000 offsets of some 100 bytes each would be 4 MB; retries meanwhile take a little.
        assert after - before < 500_000
        commits = mock.count(OFFSET_COMMIT)
        mock.set_up(1)
        assert [managers.flush(handle) for handle in handles] == [None] * 4
        assert [managers.in_kafka(group, n) for n in range(4)] == [10_001] * 4
        assert mock.count(OFFSET_COMMIT) - commits < 20  # one, but for what a slow machine repeats
