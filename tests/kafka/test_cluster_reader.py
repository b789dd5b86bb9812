"""Groups and logs of a real Kafka are read completely."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.errors import KafkaRequestError, ManagerStoppedError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition
from tests.kafka.leaders import give_back_to_preferred
from tests.kafka.mock_cluster import LIST_OFFSETS, OFFSET_FETCH, MockCluster
from tests.waiting import eventually, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


@pytest.fixture
def reader(kafka: DevKafka) -> Iterator[ClusterReader]:
    with ClusterReader(kafka.bootstrap_servers, timeout_s=60) as made:
        yield made


def produce(kafka: DevKafka, topic: str, partition: int, count: int, at_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number), partition=partition, timestamp=at_ms + number)
    assert not producer.flush(60)


def commit(kafka: DevKafka, group: str, offsets: dict[TopicPartition, int]) -> None:
    committer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    wanted = [KafkaPartition(*each, offset) for each, offset in offsets.items()]
    committer.commit(offsets=wanted, asynchronous=False)
    committer.close()


def test_a_group_without_members(
    kafka: DevKafka, reader: ClusterReader, new_topic: TopicFactory, group: str
) -> None:
    """A group that was committed from outside is listed as Empty, with all its offsets."""
    topic = new_topic(3)
    where = TopicPartition(topic, 1)
    commit(kafka, group, {where: 7})
    listed = {each.name: each for each in reader.groups().groups}
    assert listed[group].state == "Empty"
    assert listed[group].type == "classic"
    assert reader.committed([group]) == {group: {where: OffsetAndMetadata(7)}}
    described = reader.describe([group])[group]
    assert not isinstance(described, Exception)
    assert described.state == "Empty"
    assert described.members == ()
    assert described.coordinator.startswith("127.0.0.1:")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_live_member(
    kafka: DevKafka, reader: ClusterReader, new_topic: TopicFactory, group: str, protocol: str
) -> None:
    """A live member is described with its names and what it reads, under either protocol."""
    topic = new_topic(2)
    config: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "client.id": "reporting",
        "group.instance.id": "one",
        "group.protocol": protocol,
    }
    member = Consumer(config)
    member.subscribe([topic])
    until(lambda: member.poll(0.1) or len(member.assignment()) == 2)
    described = reader.describe([group])[group]
    assert not isinstance(described, Exception)
    assert (described.state, described.type) == ("Stable", protocol)
    (found,) = described.members
    assert (found.client_id, found.group_instance_id) == ("reporting", "one")
    assert found.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    member.close()


def test_an_absent_group_is_dead(reader: ClusterReader, group: str) -> None:
    """A group that does not exist is Dead and has nothing; so is the one without a name."""
    for name in (group, ""):
        assert known(reader.describe([name])[name]).state == "Dead"
        assert reader.committed([name]) == {name: {}}


def test_logs(kafka: DevKafka, reader: ClusterReader, new_topic: TopicFactory) -> None:
    """Logs are read with their ends and by time; what does not exist is an error in its place."""
    topic = new_topic(2)
    now_ms = int(time.time() * 1000)
    produce(kafka, topic, 0, 10, at_ms=now_ms)
    full, empty, absent = (TopicPartition(topic, number) for number in (0, 1, 2))
    gone = TopicPartition("no-such-topic", 0)
    ranges = reader.log_ranges([full, empty, absent, gone])
    assert ranges[full] == PartitionRange(0, 10)
    assert ranges[empty] == PartitionRange(0, 0)
    for missing in (absent, gone):
        error = ranges[missing]
        assert isinstance(error, KafkaRequestError)
        assert "does not exist" in str(error)
        assert does_not_exist(reader.log_ranges([missing])[missing])  # also where all are missing
    assert reader.log_ranges([full, empty]) == {full: (0, 10), empty: (0, 0)}
    times = {full: now_ms + 4, empty: now_ms}
    assert reader.offsets_at(times) == {full: 4, empty: None}
    assert reader.offsets_at({full: now_ms + 60_000, empty: 2**63}) == {full: None, empty: None}
    found = reader.partitions_of([topic, "no-such-topic"])
    assert found[topic] == [0, 1]
    assert isinstance(found["no-such-topic"], KafkaRequestError)


def test_a_log_cut_by_retention_is_read_from_its_new_start(
    kafka: DevKafka, reader: ClusterReader, new_topic: TopicFactory
) -> None:
    """The kind: a log that changes between the question for its start and the read of it."""
    topic = new_topic()
    produce(kafka, topic, 0, 20)
    cut = reader.admin.delete_records([KafkaPartition(topic, 0, 10)])
    assert [pending.result(60).low_watermark for pending in cut.values()] == [10]
    found = read_to_end(kafka.bootstrap_servers, {TopicPartition(topic, 0): 5}, 60.0)
    assert [message.offset() for message in found] == list(range(10, 20))


def test_the_number_of_requests() -> None:
    """A group costs one request and a leader two, whatever the number of partitions."""
    with MockCluster(2) as kafka:
        kafka.create_topic("orders", 50)
        orders = [TopicPartition("orders", number) for number in range(50)]
        with ClusterReader(kafka.bootstrap_servers, timeout_s=60) as reader:
            assert reader.log_ranges(orders) == dict.fromkeys(orders, (0, 0))
            assert reader.committed(["first", "second"]) == {"first": {}, "second": {}}
        assert kafka.count(LIST_OFFSETS) == 4  # both ends of the logs
        assert kafka.count(OFFSET_FETCH) == 2


@pytest.mark.parametrize("code", [5, 6, 14, 15, 16, -195, 7, 13])
def test_a_moving_leader_or_a_dropped_connection_hides_no_group_or_log(code: int) -> None:
    """It is asked again while there is time, as a broker that starts, stops or hangs ends them."""
    with MockCluster() as kafka:
        kafka.create_topic("orders", 1)
        where = TopicPartition("orders", 0)
        with ClusterReader(kafka.bootstrap_servers, timeout_s=60) as reader:
            eventually(partial(reader.log_ranges, [where]), {where: (0, 0)})
            if code < 14:
                kafka.push_errors(LIST_OFFSETS, code, code)
                assert reader.log_ranges([where]) == {where: (0, 0)}
            if code not in {5, 6}:
                kafka.push_errors(OFFSET_FETCH, code, code)
                assert reader.committed(["orders"]) == {"orders": {}}


def test_a_question_is_not_asked_again_when_no_time_is_left() -> None:
    with (
        MockCluster() as kafka,
        ClusterReader(kafka.bootstrap_servers, timeout_s=1) as reader,
    ):
        kafka.push_errors(OFFSET_FETCH, 15)
        assert isinstance(reader.committed(["orders"])["orders"], KafkaRequestError)


class Unlisting:
    """An admin client whose list of all groups, of whatever type, fails."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def list_groups(self, **_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_missing_groups_of_other_types_have_an_error(
    kafka: DevKafka, reader: ClusterReader, new_topic: TopicFactory, group: str
) -> None:
    """Share, streams and Connect's groups are not in the list of consumer groups."""
    commit(kafka, group, {TopicPartition(new_topic(), 0): 0})
    reader._admin = cast("AdminClient", Unlisting(reader.admin))
    found, errors = reader.groups()
    assert group in {each.name for each in found}
    assert [str(each)[:20] for each in errors] == ["list of share groups"]


def test_an_unreachable_broker_is_reported() -> None:
    """If nothing listens, the error says so and whose fault it is; no question, no request."""
    with ClusterReader("127.0.0.1:1", timeout_s=1) as reader:
        assert not any((reader.describe([]), reader.committed([]), reader.log_ranges([])))
        assert not any((reader.partitions_of([]), reader.offsets_at({})))
        with pytest.raises(KafkaRequestError, match=r"list of consumer groups.*fault: network"):
            reader.groups()
        error = reader.committed(["g"])["g"]
        assert isinstance(error, KafkaRequestError)
        assert error.code == "_TIMED_OUT"
    for ask in (reader.committed, reader.describe, reader.topic_ids):
        with pytest.raises(ManagerStoppedError, match="are closed"):
            ask(["orders"])


@pytest.mark.chaos  # no other test of every run needs three brokers
def test_a_frozen_broker_hides_only_its_own(
    kafka3: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """One broker that hangs takes neither the groups nor the logs of the others along."""
    topic = new_topic(6, on=kafka3)
    partitions = [TopicPartition(topic, number) for number in range(6)]
    names = [f"{group}-{number}" for number in range(8)]
    for name in names:
        commit(kafka3, name, {partitions[0]: 0})
    with ClusterReader(kafka3.bootstrap_servers, timeout_s=10) as reader:
        described = {name: known(found) for name, found in reader.describe(names).items()}
        coordinator = described[names[0]].coordinator
        frozen = next(each for each in kafka3.brokers if each.bootstrap_server in coordinator)
        other = next(n for n in names if frozen.bootstrap_server not in described[n].coordinator)
        reader.describe([other])
        found = reader.metadata("topic").topics[topic].partitions
        healthy = [where for where in partitions if found[where[1]].leader != frozen.node_id]
        frozen.pause()
        try:
            with ThreadPoolExecutor() as pool:
                listed = pool.submit(reader.groups)
                again = pool.submit(reader.describe, [names[0], other])
                logs = pool.submit(reader.log_ranges, partitions)
                numbers = pool.submit(reader.partitions_of, [topic])
        finally:
            frozen.resume()
    assert other in {each.name for each in listed.result().groups}
    assert again.result()[other] == described[other]
    assert numbers.result() == {topic: list(range(6))}
    assert healthy
    assert {where: logs.result()[where] for where in healthy} == dict.fromkeys(healthy, (0, 0))
    give_back_to_preferred(kafka3)
