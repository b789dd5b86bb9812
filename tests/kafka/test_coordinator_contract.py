"""The coordinator port's contract, held to both sides: a real Kafka and the one in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.coordinator.base import CommitResult, FetchResult, PartitionLog
from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import Verdict
from offsetmgr.kafka.commit_log import read_commits
from offsetmgr.types import MAX_METADATA_CHARS, MAX_OFFSET, OffsetAndMetadata, TopicPartition
from tests.kafka.conftest import WIDE
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


class MemorySide:
    """The coordinator in memory, and somebody else who changes things behind its back."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self._topics = 0

    def create_topic(self, partitions: int) -> str:
        self._topics += 1
        topic = f"topic-{self._topics}"
        self.coordinator.broker.create_topic(topic, partitions)
        return topic

    def wide_topic(self) -> str:
        return self.create_topic(WIDE)

    def delete_topic(self, topic: str) -> None:
        self.coordinator.broker.delete_topic(topic)

    @contextmanager
    def member(self, group: str, topic: str, client_id: str) -> Iterator[None]:
        del topic
        self.coordinator.broker.join(group, client_id)
        yield
        self.coordinator.broker.leave(group, client_id)


class KafkaSide:
    """The same of a real Kafka, with or without a fence."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        kafka: DevKafka = request.getfixturevalue("kafka")
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": kafka.bootstrap_servers
        }
        plain = KafkaCoordinator(self._config, clients=2)
        fenced = request.param == "fenced"
        self.coordinator = FencedCoordinator(self._config, plain) if fenced else plain
        self._protocol = "consumer" if fenced else "classic"
        self._admin = AdminClient(self._config)
        self.create_topic: TopicFactory = request.getfixturevalue("new_topic")
        self._request = request

    def wide_topic(self) -> str:
        return str(self._request.getfixturevalue("wide_topic"))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until the broker has heard of it, too."""
        self._admin.delete_topics([topic])[topic].result(WAIT_S)
        until(lambda: topic not in self._admin.list_topics(timeout=WAIT_S).topics)

    @contextmanager
    def member(self, group: str, topic: str, client_id: str) -> Iterator[None]:
        named = {"group.id": group, "client.id": client_id, "group.protocol": self._protocol}
        consumer = Consumer({**self._config, **named})
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.1) or consumer.assignment())
        yield
        assert consumer.assignment()
        consumer.close()


Side = MemorySide | KafkaSide


@pytest.fixture(params=["memory", "kafka", "fenced"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made = MemorySide() if request.param == "memory" else KafkaSide(request)
    yield made
    made.coordinator.close(WAIT_S)


def commit(
    side: Side, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> CommitResult:
    return side.coordinator.commit(group, offsets, WAIT_S).get(timeout=WAIT_S)


def fetch(side: Side, group: str, partitions: list[TopicPartition] | None) -> FetchResult:
    return side.coordinator.fetch(group, partitions, WAIT_S).get(timeout=WAIT_S)


@pytest.mark.fault(34)
def test_round_trip(side: Side, group: str) -> None:
    """A fetch returns committed offsets of both ends, metadata and leader epoch.

    Nothing committed is None, for a group that never was as for a partition left out.
    """
    topic = side.create_topic(5)
    offsets = {
        TopicPartition(topic, 0): OffsetAndMetadata(0),
        TopicPartition(topic, 1): OffsetAndMetadata(MAX_OFFSET, "é 'x'\n"),
        TopicPartition(topic, 2): OffsetAndMetadata(5, "", 0),
        TopicPartition(topic, 3): OffsetAndMetadata(6, "m", 7),
    }
    asked = [*offsets, TopicPartition(topic, 4)]
    assert fetch(side, group, asked) == FetchResult(dict.fromkeys(asked), {})
    assert fetch(side, group, None) == FetchResult({}, {})
    assert commit(side, group, offsets) == CommitResult({})
    assert fetch(side, group, asked) == FetchResult({**offsets, asked[-1]: None}, {})
    assert fetch(side, group, None) == FetchResult(offsets, {})


def test_many_partitions(side: Side, group: str) -> None:
    """All partitions of one group are committed at once; what does not exist is named."""
    topic = side.wide_topic()
    offsets = {TopicPartition(topic, n): OffsetAndMetadata(n) for n in range(3_000)}
    failures = commit(side, group, offsets).failures
    refused = {p for p in offsets if p.partition >= WIDE}
    assert failures.keys() == refused
    assert {f.info.name for f in failures.values()} <= {"UNKNOWN_TOPIC_OR_PARTITION"}
    fetched = fetch(side, group, list(offsets))
    assert fetched.failures == {}
    assert fetched.offsets == {p: None if p in refused else offsets[p] for p in offsets}


@pytest.mark.fault(26)
def test_live_members(side: Side, group: str) -> None:
    """A group with live members takes no commit, and the refusal names who holds it."""
    topic = side.create_topic(2)
    offsets = {TopicPartition(topic, n): OffsetAndMetadata(1) for n in range(2)}
    with side.member(group, topic, "spark-kafka-1"):
        failures = commit(side, group, offsets).failures
    assert failures.keys() == offsets.keys()
    for failure in failures.values():
        assert (failure.info.name, failure.info.retriable) == ("UNKNOWN_MEMBER_ID", True)
        assert failure.info.verdict is Verdict.REFUSED
        assert failure.detail == (
            f"group {group} has live members (spark-kafka-1, host /127.0.0.1); "
            "commit to another group or stop them"
        )
    until(lambda: commit(side, group, offsets) == CommitResult({}))


@pytest.mark.fault(23)
def test_deleted_topic(side: Side, group: str) -> None:
    """A deleted topic's partition is refused while its peers are committed."""
    kept, deleted = side.create_topic(1), side.create_topic(1)
    side.delete_topic(deleted)
    gone, peer = TopicPartition(deleted, 0), TopicPartition(kept, 0)
    failures = commit(
        side, group, {gone: OffsetAndMetadata(1), peer: OffsetAndMetadata(1)}
    ).failures
    assert {p: f.info.name for p, f in failures.items()} == {gone: "UNKNOWN_TOPIC_OR_PARTITION"}
    assert fetch(side, group, [peer]).offsets == {peer: OffsetAndMetadata(1)}


@pytest.mark.fault(25)
def test_metadata_limit(side: Side, group: str) -> None:
    """The longest metadata is kept whole, in as many requests as it takes; more is refused.

    It is 1.2 MB in all, and a broker takes 1 MB in one request.
    """
    topic = side.wide_topic()
    where = [TopicPartition(topic, number) for number in range(WIDE)]
    most = dict.fromkeys(where, OffsetAndMetadata(7, "é" * MAX_METADATA_CHARS))
    assert commit(side, group, most) == CommitResult({})
    assert fetch(side, group, where).offsets == most
    long, peer = where[:2]
    more = OffsetAndMetadata(8, "é" * (MAX_METADATA_CHARS + 1))
    failures = commit(side, group, {long: more, peer: OffsetAndMetadata(8)}).failures
    assert {p: f.info.name for p, f in failures.items()} == {long: "OFFSET_METADATA_TOO_LARGE"}
    assert fetch(side, group, where).offsets == {**most, peer: OffsetAndMetadata(8)}


@pytest.mark.parametrize("fenced", [False, True])
def test_metadata_is_stored_byte_for_byte(
    kafka: DevKafka, new_topic: TopicFactory, group: str, *, fenced: bool
) -> None:
    """Byte for byte; a NUL that confluent-kafka's clients store behind theirs is not read."""
    topic = new_topic(2)
    ours, theirs = TopicPartition(topic, 0), TopicPartition(topic, 1)
    given = OffsetAndMetadata(1, "my-custom-metadata é")
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    pool = KafkaCoordinator(config, clients=1)
    consumer = Consumer({**config, "group.id": group})
    other = KafkaPartition(topic, 1, given.offset, given.metadata)
    consumer.commit(offsets=[other], asynchronous=False)
    consumer.close()
    with FencedCoordinator(config, pool) if fenced else pool as coordinator:
        assert coordinator.commit(group, {ours: given}, WAIT_S).get(timeout=WAIT_S).failures == {}
        fetched = coordinator.fetch(group, [ours, theirs], WAIT_S).get(timeout=WAIT_S)
    assert fetched.offsets == dict.fromkeys((ours, theirs), given)
    stored = {
        each.key.partition: each.metadata for each in read_commits(kafka.bootstrap_servers, {group})
    }
    assert stored == {0: given.metadata, 1: f"{given.metadata}\0"}


def test_questions_about_topics(side: Side) -> None:
    """Names without Kafka's own, sorted; the ends of their logs; an unknown one says that it is."""
    made = [side.create_topic(3), side.create_topic(1)]
    found = side.coordinator.topic_names(WAIT_S).get(timeout=WAIT_S)
    assert found.failure is None
    assert set(made) <= set(found.names)
    assert list(found.names) == sorted(found.names)
    assert not [name for name in found.names if name.startswith("__")]
    logs = side.coordinator.topic_logs([made[0], "nowhere"], WAIT_S).get(timeout=WAIT_S)
    assert logs[made[0]].partitions == dict.fromkeys(range(3), PartitionLog(0, 0))
    failure = logs["nowhere"].failure
    assert failure is not None
    assert failure.info.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert side.coordinator.check(WAIT_S).get(timeout=WAIT_S) is None


def test_closed(side: Side, group: str) -> None:
    """A closed coordinator refuses, as without effect, and may be closed again."""
    partition = TopicPartition(side.create_topic(1), 0)
    side.coordinator.close(WAIT_S)
    failures = commit(side, group, {partition: OffsetAndMetadata(1)}).failures
    assert failures[partition].info.name == "CLOSED"
    assert failures[partition].info.verdict is Verdict.REFUSED
    side.coordinator.close(WAIT_S)
