"""Errors of a coordinator, and the managers' reactions to them.

All offsets carry leader epoch 0, which is what the mock gives back in any case.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.faults.support import HASTY, TOPIC, WAIT_S, committing
from tests.kafka.mock_cluster import OFFSET_COMMIT, MockCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMED_OUT, _LOADING, _NOT_AVAILABLE, _NOT_COORDINATOR, _REBALANCING = 7, 14, 15, 16, 27
_RETRIABLE: Final = (_TIMED_OUT, _LOADING, _NOT_AVAILABLE, _REBALANCING)
_ENDLESS: Final = 1_000
"""More answers than anybody asks for in a test."""


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    """One mock broker with a topic."""
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=4)
        yield cluster


@pytest.mark.fault(1, 4)
def test_committed_never_falls_whatever_is_answered_in_between(
    mock: MockCluster, group: str
) -> None:
    """Each commit may be refused or lost: what Kafka has only rises, up to what was submitted."""
    rng = random.Random(1)  # noqa: S311 -- which faults, no secret
    with committing(mock.bootstrap_servers) as managers:
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
    with MockCluster(2) as mock, committing(mock.bootstrap_servers) as managers:
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
    with committing(mock.bootstrap_servers) as managers:
        handle = managers.spawn(group)
        mock.push_errors(OFFSET_COMMIT, *[_LOADING] * 3)
        handle.submit(7, leader_epoch=0)
        assert managers.flush(handle) is None
        assert managers.in_kafka(group) == 7
        assert set(managers.codes()) == {"COORDINATOR_LOAD_IN_PROGRESS"}
        assert mock.count(OFFSET_COMMIT) == 4


def test_a_commit_of_many_bytes_is_sent_in_parts_one_after_the_other(
    mock: MockCluster, group: str
) -> None:
    """No request is larger than what a broker takes; all of it is committed."""
    mock.create_topic("wide", 2_000)
    many = [TopicPartition("wide", number) for number in range(2_000)]
    offsets = dict.fromkeys(many, OffsetAndMetadata(1, "m" * 600, 0))
    with committing(mock.bootstrap_servers) as managers:
        answer = managers.kafka.commit(group, offsets, WAIT_S).get(timeout=WAIT_S)
        assert answer.failures == {}
        assert mock.count(OFFSET_COMMIT) > 1
        fetched = managers.kafka.fetch(group, many, WAIT_S).get(timeout=WAIT_S)
        assert fetched.offsets == offsets


def test_what_was_not_sent_by_the_deadline_is_not_in_doubt(mock: MockCluster, group: str) -> None:
    """The first part of a commit is, as it was not answered; the second was never sent."""
    mock.create_topic("wide", 2_000)
    where = [TopicPartition("wide", number) for number in range(2_000)]
    offsets = dict.fromkeys(where, OffsetAndMetadata(1, "m" * 600, 0))
    with committing(mock.bootstrap_servers) as managers:
        one = managers.kafka.commit(group, dict.fromkeys(where[:1], OffsetAndMetadata(1)), WAIT_S)
        assert one.get(timeout=WAIT_S).failures == {}
        mock.set_round_trip(rtt_ms=60_000)
        failures = managers.kafka.commit(group, offsets, 2.0).get(timeout=WAIT_S).failures
        assert failures.keys() == offsets.keys()
        assert {f.info.name for f in failures.values()} == {"_TIMED_OUT", "NOT_SENT"}
        mock.set_round_trip(rtt_ms=0)


@pytest.mark.fault(10)
def test_the_wait_for_a_coordinator_that_never_loads_is_bounded(
    mock: MockCluster, group: str
) -> None:
    """A waiting caller gets an answer by the deadline, with the reason; the offset stays dirty."""
    with committing(mock.bootstrap_servers) as managers:
        handle = managers.spawn(group)
        mock.push_errors(OFFSET_COMMIT, *[_LOADING] * _ENDLESS)
        handle.submit(7, leader_epoch=0)
        assert managers.flush(handle, 0.3) == 7
        mock.clear_errors(OFFSET_COMMIT)
        assert managers.flush(handle) is None
        assert managers.in_kafka(group) == 7


@pytest.mark.fault(11)
def test_a_slow_coordinator_blocks_neither_its_caller_nor_another_group(group: str) -> None:
    """Its own flush ends by the deadline, its handle answers, and others commit meanwhile."""
    with MockCluster(2) as mock, committing(mock.bootstrap_servers, HASTY) as managers:
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
    with committing(mock.bootstrap_servers, HASTY) as managers:
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
