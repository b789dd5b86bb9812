"""The coordinator on a real Kafka, and on librdkafka's mock, where things go wrong."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.coordinator.base import CommitResult, PartitionLog
from offsetmgr.coordinator.kafka import QUESTIONS, KafkaCoordinator
from offsetmgr.errors import Verdict
from offsetmgr.kafka import config
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.kafka.leaders import await_coordinator, coordinator_of, give_back_to_preferred
from tests.kafka.mock_cluster import OFFSET_COMMIT, OFFSET_FETCH, MockCluster
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors import Future
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

REQUEST_S = 5.0
"""The time limit of a request in the service."""

DEADLINE_S = 1.0
"""Of requests that are not to be answered."""

PAUSED_S = 0.5
"""The same while a broker is paused."""


def only(answer: Future[CommitResult]) -> Failure | None:
    failures = answer.get(timeout=WAIT_S).failures
    return next(iter(failures.values()), None)


def name_of(failure: Failure | None) -> str:
    return "" if failure is None else failure.info.name


def fetched(
    kafka: KafkaCoordinator, group: str
) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
    """All that a group has committed; a broker that was paused for long may be no coordinator."""
    while (answer := kafka.fetch(group, None, WAIT_S).get(timeout=WAIT_S)).group_failure:
        assert answer.group_failure.info.retriable
    return answer.offsets


def one(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, 0): OffsetAndMetadata(offset)}


@pytest.mark.fault(2)
def test_a_paused_broker(breakable_kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """A stopped broker: the deadline is kept, the outcome unknown; what lands late is read back."""
    topic = new_topic(2, on=breakable_kafka)
    with KafkaCoordinator(breakable_kafka.bootstrap_servers, clients=2) as kafka:
        assert only(kafka.commit(group, one(topic, 1), WAIT_S)) is None
        breakable_kafka.broker(1).pause()
        try:
            lost = only(kafka.commit(group, one(topic, 2), PAUSED_S))
            checked = kafka.check(PAUSED_S).get(timeout=WAIT_S)
        finally:
            breakable_kafka.broker(1).resume()
        assert lost is not None
        assert lost.info.verdict is Verdict.UNKNOWN
        assert lost.info.retriable
        assert checked is not None
        # The next request over the group's connection waits for the lost commit.
        later = {TopicPartition(topic, 1): OffsetAndMetadata(7)}
        commit_until_taken(kafka, group, later)
        assert fetched(kafka, group) == {**one(topic, 2), **later}
        assert kafka.check(WAIT_S).get(timeout=WAIT_S) is None


@pytest.mark.fault(12)
def test_all_brokers_are_down_at_the_start(group: str) -> None:
    """The coordinator starts, keeps its deadlines and names the cause."""
    with socket.socket() as taken:  # bound, so that nobody else listens there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with KafkaCoordinator(address, clients=2) as kafka:
            committed = kafka.commit(group, one("t", 1), DEADLINE_S)
            fetched = kafka.fetch(group, None, DEADLINE_S)
            logs = kafka.topic_logs(["t"], DEADLINE_S)
            failure = only(committed)
            assert failure is not None
            assert failure.info.verdict is Verdict.UNKNOWN
            assert address in failure.detail
            assert fetched.get(timeout=WAIT_S).group_failure is not None
            assert logs.get(timeout=WAIT_S)["t"].failure is not None
            assert kafka.check(DEADLINE_S).get(timeout=WAIT_S) is not None


def test_open_transactions(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """The last stable offset is where one begins; the end of the log where none is.

    A partition whose offset it is about to commit fails, and no other.
    """
    topic = new_topic(2)
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**config, "transactional.id": group})
    producer.init_transactions(WAIT_S)
    member = Consumer({**config, "group.id": group}).consumer_group_metadata()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with KafkaCoordinator(kafka.bootstrap_servers, clients=2) as reader:

        def ends() -> list[PartitionLog]:
            logs = reader.topic_logs([topic], WAIT_S, stable=True).get(timeout=WAIT_S)
            return list(logs[topic].partitions.values())

        empty = PartitionLog(0, 0, last_stable_offset=0)
        for begin in (0, 4):
            producer.begin_transaction()
            for _ in range(3):
                producer.produce(topic, b"x", partition=1)
            assert producer.flush(WAIT_S) == 0
            producer.send_offsets_to_transaction([KafkaPartition(topic, 0, 7)], member, WAIT_S)
            during = reader.fetch(group, [first, second], WAIT_S).get(timeout=WAIT_S)
            assert name_of(during.failures[first]) == "UNSTABLE_OFFSET_COMMIT"
            assert during.offsets == {second: None}
            assert ends() == [empty, PartitionLog(0, begin + 3, last_stable_offset=begin)]
            producer.commit_transaction(WAIT_S)
            # A marker of its end is a record of the log; the producer does not wait for it.
            eventually(ends, [empty, PartitionLog(0, begin + 4, last_stable_offset=begin + 4)])


def test_offsets_at_a_time(kafka: DevKafka, new_topic: TopicFactory) -> None:
    """The first record of that time or later; none where all are older, or none was asked for."""
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for second in (10, 20, 30):
        producer.produce(topic, b"x", partition=1, timestamp=second * 1_000)
    assert producer.flush(WAIT_S) == 0
    with KafkaCoordinator(kafka.bootstrap_servers, clients=2) as reader:
        for at_ms, offset in ((20_000, 1), (20_001, 2), (30_001, None), (None, None)):
            logs = reader.topic_logs([topic], WAIT_S, at_ms).get(timeout=WAIT_S)
            assert logs[topic].partitions == {
                0: PartitionLog(0, 0),
                1: PartitionLog(0, 3, offset_at=offset),
            }


class TestMock:
    """Faults only librdkafka's mock cluster offers."""

    @pytest.mark.fault(10, 22)
    def test_codes(self, group: str) -> None:
        """A code of the broker reaches the partition as the table has it; the next try is clean.

        On an admin client's handle, librdkafka ends the process with SIGSEGV at 15 and 16.
        """
        with MockCluster() as mock, KafkaCoordinator(mock.bootstrap_servers, clients=2) as kafka:
            mock.create_topic("t")
            for code, name, verdict in (
                (14, "COORDINATOR_LOAD_IN_PROGRESS", Verdict.REFUSED),
                (15, "COORDINATOR_NOT_AVAILABLE", Verdict.UNKNOWN),
                (16, "NOT_COORDINATOR", Verdict.UNKNOWN),
                (30, "GROUP_AUTHORIZATION_FAILED", Verdict.REFUSED),
                (87, "INVALID_RECORD", Verdict.UNKNOWN),  # not in the table
            ):
                mock.push_errors(OFFSET_COMMIT, code)
                failure = only(kafka.commit(group, one("t", 1), WAIT_S))
                assert failure is not None
                assert (failure.info.name, failure.info.verdict) == (name, verdict)
                assert only(kafka.commit(group, one("t", 1), WAIT_S)) is None
                mock.push_errors(OFFSET_FETCH, code)
                found = kafka.fetch(group, [TopicPartition("t", 0)], WAIT_S).get(timeout=WAIT_S)
                assert [each.info.name for each in found.failures.values()] == [name]

    def test_a_group_always_commits_over_the_same_client(self, group: str) -> None:
        """Writes of one connection stay in order; clients are made when they are used."""
        before = set(threading.enumerate())
        with MockCluster() as mock, KafkaCoordinator(mock.bootstrap_servers, clients=8) as kafka:
            mock.create_topic("t")
            for offset in range(8):
                assert only(kafka.commit(group, one("t", offset), WAIT_S)) is None
            made = set(threading.enumerate()) - before
            assert [each.name for each in made].count("kafka-commits") == 1

    @pytest.mark.fault(11)
    def test_a_slow_broker_does_not_delay_others(
        self, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Groups of another broker behind the same client are committed meanwhile.

        However many wait for the slow one.
        """
        patient = {**config.FORCED, "socket.timeout.ms": 60_000}
        monkeypatch.setattr(config, "FORCED", patient)
        with MockCluster(2) as mock, KafkaCoordinator(mock.bootstrap_servers, clients=1) as kafka:
            mock.create_topic("t")
            slow = [f"{group}-slow-{number}" for number in range(64)]
            quick = f"{group}-quick"
            for name in (*slow, quick):
                mock.set_coordinator(name, 2 if name == quick else 1)
                assert only(kafka.commit(name, one("t", 1), WAIT_S)) is None
            mock.set_round_trip(rtt_ms=60_000, broker=1)
            held = [kafka.commit(name, one("t", 2), WAIT_S) for name in slow]
            # Sometimes librdkafka asks the slow broker where the coordinator of the other group is.
            while only(kafka.commit(quick, one("t", 2), DEADLINE_S)) is not None:
                assert not any(future.done() for future in held)
            assert not any(future.done() for future in held)
            kafka.close(timeout=0.0)

    def test_questions_to_a_silent_cluster_use_a_limited_number_of_threads(self) -> None:
        """Each takes one while it is asked; the others wait for their deadline unasked."""
        with MockCluster() as mock, KafkaCoordinator(mock.bootstrap_servers, clients=1) as kafka:
            assert kafka.check(WAIT_S).get(timeout=WAIT_S) is None
            mock.set_round_trip(rtt_ms=60_000)
            asked = [kafka.check(DEADLINE_S) for _ in range(2 * QUESTIONS)]
            assert "NOT_SENT" in {name_of(each.get(timeout=WAIT_S)) for each in asked}
            kafka.close(timeout=0.0)


@pytest.mark.chaos
@pytest.mark.fault(9)
def test_coordinator_moves_while_both_brokers_live(
    kafka3: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """A coordinator that moves between live brokers is found again after one refusal at most.

    librdkafka alone goes on asking the old one for as long as it is asked to.
    """
    topic = new_topic(on=kafka3)
    give_back_to_preferred(kafka3)  # a test before may have left them elsewhere
    with KafkaCoordinator(kafka3.bootstrap_servers, clients=1) as kafka:
        commit_until_taken(kafka, group, one(topic, 1))  # they may be on the move still
        preferred = coordinator_of(kafka3, group)
        kafka3.broker(preferred).stop()
        commit_until_taken(kafka, group, one(topic, 2))
        assert coordinator_of(kafka3, group) != preferred
        kafka3.broker(preferred).start()
        give_back_to_preferred(kafka3)
        await_coordinator(kafka3, group, preferred)
        refusals = commit_until_taken(kafka, group, one(topic, 3))
        fetched = kafka.fetch(group, [TopicPartition(topic, 0)], WAIT_S).get(timeout=WAIT_S)
    assert refusals.count("NOT_COORDINATOR") <= 1
    assert fetched.offsets == one(topic, 3)


def commit_until_taken(
    kafka: KafkaCoordinator, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> list[str]:
    """Commit until it succeeds; return the codes it was refused with until then."""
    refusals: list[str] = []

    def is_taken() -> bool:
        refusals.append(name_of(only(kafka.commit(group, offsets, REQUEST_S))))
        return not refusals[-1]

    until(is_taken)
    return refusals[:-1]
