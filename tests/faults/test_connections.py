"""Brokers that move or are away, and connections that break or only look alive."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from offsetmgr.errors import Verdict
from offsetmgr.kafka import config
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.faults.proxy import Proxy
from tests.faults.support import HASTY, TOPIC, committing_to_mock
from tests.kafka.mock_cluster import OFFSET_COMMIT, OFFSET_FETCH, MockCluster
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_COORDINATOR = 16


@contextmanager
def behind_a_proxy(partitions: int = 1) -> Iterator[tuple[MockCluster, Proxy]]:
    """A mock broker that clients reach through a proxy alone."""
    with MockCluster() as mock, Proxy(mock.bootstrap_servers) as proxy:
        mock.create_topic(TOPIC, partitions)
        mock.advertise("127.0.0.1", proxy.port)
        yield mock, proxy


@pytest.mark.fault(15)
def test_a_reset_in_the_middle_of_a_response_is_unknown_and_then_verified(group: str) -> None:
    """The commit that landed is read back and acknowledged, and not sent a second time."""
    with (
        behind_a_proxy() as (mock, proxy),
        committing_to_mock(f"127.0.0.1:{proxy.port}") as managers,
    ):
        handle = managers.spawn(group)
        handle.submit(1)
        assert managers.flush(handle) is None
        commits, fetches = mock.count(OFFSET_COMMIT), mock.count(OFFSET_FETCH)
        proxy.cut_response(OFFSET_COMMIT)
        handle.submit(2, leader_epoch=0)  # which is what the mock gives back in any case
        assert managers.flush(handle) is None
        assert proxy.was_cut.is_set()
        assert [error.code for _, error in managers.told.failures] == ["_TRANSPORT"]
        assert mock.count(OFFSET_COMMIT) == commits + 1
        assert mock.count(OFFSET_FETCH) == fetches + 1
        assert managers.in_kafka(group) == 2


@pytest.mark.parametrize("named", [(), (0,)], ids=["none", "its peer"])
@pytest.mark.fault(15)
def test_a_commit_answer_that_leaves_a_partition_out_acknowledges_nothing(
    group: str, named: tuple[int, ...]
) -> None:
    """Its outcome is unknown: read back and sent again; only what is named is committed."""
    with (
        behind_a_proxy(partitions=2) as (mock, proxy),
        committing_to_mock(f"127.0.0.1:{proxy.port}") as managers,
    ):
        left_out = managers.spawn(group, 1)
        proxy.replacements[OFFSET_COMMIT] = commit_answer(named)
        fetches = mock.count(OFFSET_FETCH)
        both = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
        answer = managers.kafka.commit(group, dict.fromkeys(both, OffsetAndMetadata(1)), WAIT_S)
        failures = answer.get(timeout=WAIT_S).failures
        assert failures.keys() == {each for each in both if each.partition not in named}
        assert {each.info.verdict for each in failures.values()} == {Verdict.UNKNOWN}
        left_out.submit(2, leader_epoch=0)
        assert managers.flush(left_out, 0.3) == 2
        until(lambda: mock.count(OFFSET_FETCH) > fetches)
        stopped = left_out.stop(timeout=0.3)
        assert (stopped.committed, stopped.uncommitted) == (None, OffsetAndMetadata(2, "", 0))
        assert list(left_out.committed_offsets()) == []
        assert managers.told.acknowledged == []
        assert "_UNDERFLOW" in managers.codes()
        proxy.replacements.clear()
        again = managers.spawn(group, 1)
        again.submit(3, leader_epoch=0)
        assert managers.flush(again) is None
        assert managers.in_kafka(group, 1) == 3


def commit_answer(partitions: tuple[int, ...]) -> bytes:
    """An OffsetCommit response (version 8 or 9) that says "no error" of these alone."""
    topic = TOPIC.encode()
    each = [struct.pack(">ihx", partition, 0) for partition in partitions]
    named = bytes([len(topic) + 1]) + topic + bytes([len(each) + 1]) + b"".join(each) + b"\0"
    tags_and_throttle_ms = bytes(5)
    return tags_and_throttle_ms + (b"\2" + named if each else b"\1") + b"\0"


@pytest.mark.fault(14)
def test_a_half_open_connection_is_found_within_the_socket_timeout(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes back and nobody says so: it is given up, and a new one takes over."""
    monkeypatch.setattr(config, "FORCED", {**config.FORCED, "socket.timeout.ms": 1_000})
    with (
        behind_a_proxy() as (_, proxy),
        committing_to_mock(f"127.0.0.1:{proxy.port}", HASTY) as managers,
    ):
        handle = managers.spawn(group)
        handle.submit(1)
        assert managers.flush(handle) is None
        before = proxy.connections
        proxy.swallow()
        handle.submit(2)
        assert managers.flush(handle) is None
        assert proxy.connections > before
        assert managers.in_kafka(group) == 2
        assert "_TIMED_OUT" in managers.codes()


@pytest.mark.chaos
@pytest.mark.fault(9)
def test_brokers_that_have_all_moved_away_are_found_by_the_first_address(group: str) -> None:
    """Nobody is left at any address that was learned: a new client asks at the configured one."""
    with MockCluster() as old, MockCluster() as new, Proxy(old.bootstrap_servers) as first:
        for mock in (old, new):
            mock.create_topic(TOPIC)
        with committing_to_mock(f"127.0.0.1:{first.port}", HASTY) as managers:
            handle = managers.spawn(group)
            handle.submit(1)
            assert managers.flush(handle) is None
            assert managers.kafka.check(WAIT_S).get(timeout=WAIT_S) is None
            old.set_down(1)
            first.turn_to(new.bootstrap_servers)
            handle.submit(2)
            assert managers.flush(handle) is None
            assert new.count(OFFSET_COMMIT) == 1
            until(lambda: managers.kafka.check(1.0).get(timeout=WAIT_S) is None)


@pytest.mark.fault(9)
def test_a_coordinator_that_moves_is_found_again_and_order_is_kept(group: str) -> None:
    """Submits go on while it moves: what Kafka has never falls, and ends with the newest."""
    with MockCluster(2) as mock, committing_to_mock(mock.bootstrap_servers) as managers:
        mock.create_topic(TOPIC)
        mock.set_coordinator(group, 1)
        handle = managers.spawn(group)
        handle.submit(1, leader_epoch=0)
        assert managers.flush(handle) is None
        mock.push_errors(OFFSET_COMMIT, NOT_COORDINATOR)
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


@pytest.mark.fault(13)
def test_an_outage_keeps_the_newest_offset_alone(group: str) -> None:
    """However much is submitted meanwhile, memory is flat and one commit ends it."""
    with MockCluster() as mock, committing_to_mock(mock.bootstrap_servers, HASTY) as managers:
        mock.create_topic(TOPIC, partitions=4)
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
