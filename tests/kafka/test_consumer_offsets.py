"""Consumers whose offsets are not kept by membership: managers commit them, or a store has them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from offsetmgr import LocalOffsets, ManagerExistsError, OffsetAndMetadata
from offsetmgr.codes import GROUP_REFUSED
from offsetmgr.consumer import (
    AckConsumer,
    AckSettings,
    ConsumerSettings,
    GroupConsumer,
    PartitionedConsumer,
    RetryPolicy,
)
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    OffsetCommitError,
    OffsetTimeoutError,
    error_info,
)
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
from offsetmgr.stores import MemoryOffsetStore, OffsetStore, open_store
from offsetmgr.stores.base import raise_for
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import TopicPartition
from tests.kafka.group_member import UnprintableError
from tests.kafka.messages import committed, filled, polled, produce, replace_topic
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from offsetmgr.consumer.settings import Strategy
    from offsetmgr.devkafka import DevKafka

COUNT = 100
REBALANCE_IN_PROGRESS = 27


def two_partitions(kafka: DevKafka, topic: str) -> list[tuple[str, int]]:
    """Make ``topic`` with 100 messages in each of two partitions; return these."""
    filled(kafka, topic, 2 * COUNT, partitions=2)
    return [(topic, 0), (topic, 1)]


def test_managers_commit_the_marks_of_partitions(kafka: DevKafka, group: str) -> None:
    """There is no member; a partition has one consumer at a time; a reset goes back."""
    partitions, servers = two_partitions(kafka, group), kafka.bootstrap_servers
    with LocalOffsets(servers) as offsets:
        for expected, last in ((0, 59), (60, 99)):
            with GroupConsumer(servers, group, partitions=partitions, store=offsets) as consumer:
                assert consumer.subscriptions() == {group: [0, 1]}
                with pytest.raises(ManagerExistsError):
                    GroupConsumer(servers, group, partitions=partitions[:1], store=offsets)
                read: dict[int, list[int]] = {0: [], 1: []}
                while sum(map(len, read.values())) < 2 * (COUNT - expected):
                    message = polled(consumer)
                    read[message.partition()].append(message.offset())
                assert read == {each: list(range(expected, COUNT)) for each in range(2)}
                consumer.mark_partition_offset(group, 0, last, "so far")
                consumer.mark_partition_offset(group, 1, last)
                consumer.commit_offsets()
                found = offsets.committed(group)[TopicPartition(group, 0)]
                assert found[:2] == (last + 1, "so far")
                with ClusterReader(servers) as reader:
                    described = reader.describe([group])[group]
                assert isinstance(described, GroupDescription)
                assert described.members == ()
        with PartitionedConsumer(servers, group, partitions=partitions, store=offsets) as streams:
            new = streams.partitions()
            assert {next(new).partition, next(new).partition} == {0, 1}
            streams.reset_partition_offset(group, 0, 9)
        assert offsets.committed(group)[TopicPartition(group, 0)].offset == 10


@pytest.mark.parametrize("managed", [True, False])
def test_acks_of_partitions_survive_a_restart(kafka: DevKafka, group: str, managed: bool) -> None:  # noqa: FBT001
    """Managers commit them, or the consumer itself to a group without members."""
    partitions = two_partitions(kafka, group)[:1]
    with LocalOffsets(kafka.bootstrap_servers) as local:
        options: dict[str, Any] = {"partitions": partitions, "store": local if managed else None}
        options["settings"] = AckSettings(dwell_s=0)
        for left in (set(range(7, COUNT, 10)), set[int]()):
            with AckConsumer(kafka.bootstrap_servers, group, **options) as consumer:
                known = local.committed(group).get(TopicPartition(group, 0))
                expected = set(range(COUNT)) if known is None else set(range(7, COUNT, 10))
                seen: set[int] = set()
                while seen != expected:
                    message = polled(consumer)
                    seen.add(message.offset())
                    if message.offset() not in left:
                        message.ack()
                (progress,) = consumer.progress().values()
                assert progress.offset == min(left, default=COUNT)
                assert progress.pending == len(left)
                assert (progress.seconds > 0) == bool(left)
                assert (progress.metadata_chars > 0) == bool(left)
        assert local.committed(group)[TopicPartition(group, 0)][:2] == (COUNT, "")


class FailingStore(MemoryOffsetStore):
    """A user's store whose first claims fail; partitions have one owner at a time."""

    def __init__(self, *failures: BaseException) -> None:
        super().__init__()
        self.failures = list(failures)
        self.claimed: set[TopicPartition] = set()
        self.answers = threading.Event()
        self.answers.set()

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.failures:
            raise self.failures.pop(0)
        assert self.answers.wait(WAIT_S)
        self.claimed |= set(partitions)
        return self.fetch(group, partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        assert self.claimed.issuperset(offsets)
        super().commit(group, offsets)

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        assert group
        self.claimed -= set(partitions)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_reads_only_claimed_partitions(
    kafka: DevKafka, group: str, strategy: Strategy
) -> None:
    """Any failure of a claim is reported and retried; no message is delivered before.

    All partitions are read then, though they are claimed in parts.  Kafka itself has none of the
    offsets.
    """
    two_partitions(kafka, group)
    failures = ConnectionError("no"), SystemExit(1), UnprintableError(), OffsetTimeoutError("no")
    store = FailingStore(*failures)
    options: dict[str, Any] = {"store": store, "settings": ConsumerSettings(strategy=strategy)}
    for offset in (0, 40):
        with GroupConsumer(kafka.bootstrap_servers, group, [group], **options) as consumer:
            assert polled(consumer).offset() == offset
            until(lambda: store.claimed == {(group, 0), (group, 1)})
            produce(kafka, group, range(2), partitions=2)
            unread = {0, 1}
            while unread:
                message = polled(consumer)
                unread -= {message.partition()} if message.offset() >= COUNT else set()
            texts = " ".join(map(str, consumer.errors()))
            names = [type(each).__name__ for each in failures[:-1]]
            assert [name in texts for name in names] == [offset == 0] * len(names)
            for partition in range(2):
                consumer.mark_partition_offset(group, partition, 39)
        assert store.claimed == set()
        assert {each.offset for each in store.fetch(group, None).values() if each} == {40}
    with ClusterReader(kafka.bootstrap_servers) as reader:
        assert reader.committed([group])[group] == {}


def test_a_poll_returns_while_a_claim_hangs(kafka: DevKafka, group: str) -> None:
    """The store answers only after the poll; its partitions are released if nobody wants them."""
    two_partitions(kafka, group)
    store = FailingStore()
    store.answers.clear()
    with GroupConsumer(kafka.bootstrap_servers, group, [group], store=store) as consumer:
        assert consumer.poll(timeout=0.5) is None
        store.answers.set()
        assert consumer.poll(timeout=WAIT_S) is not None
        store.answers.clear()
        with GroupConsumer(kafka.bootstrap_servers, group, [group], store=store) as second:
            while len(consumer.subscriptions().get(group, [])) > 1:
                assert second.poll(timeout=0.1) is None
                consumer.poll(timeout=0.1)
            assert second.subscriptions() == {}
            threading.Timer(1, store.answers.set).start()
        assert len(store.claimed) == 1
    assert store.claimed == set()


@dataclass(frozen=True)
class FrozenStore(OffsetStore):
    """A user's store whose attributes cannot be set, and whose first answers fail or hang."""

    failures: list[BaseException]
    answers: threading.Event = field(default_factory=threading.Event)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert group
        if self.failures:
            raise self.failures.pop()
        assert self.answers.wait(WAIT_S)
        return {each: self.offsets.get(each) for each in partitions or ()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        assert group
        self.offsets.update(offsets)


def test_a_store_that_fails_before_the_consumer_joins_is_reported(
    kafka: DevKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``latest`` it is asked before the consumer joins, and no poll waits for it."""
    monkeypatch.setattr("offsetmgr.consumer.offsets._LATE_S", 0.0)
    two_partitions(kafka, group)
    store = FrozenStore([SystemExit(3)])
    settings = ConsumerSettings(missing="latest")
    options: dict[str, Any] = {"store": store, "settings": settings}
    with GroupConsumer(kafka.bootstrap_servers, group, [group], **options) as consumer:
        texts: list[str] = []
        while len(texts) < 2:
            assert consumer.poll(0.1) is None
            texts += map(str, consumer.errors())
        assert "SystemExit" in " ".join(texts)
        assert "the store has not answered" in " ".join(texts)
        store.answers.set()
        while not consumer.subscriptions():
            assert consumer.poll(0.1) is None
    assert {each.offset for each in store.offsets.values()} == {COUNT}


class HookedStore(MemoryOffsetStore):
    """A store that calls ``before`` with the offsets of each commit."""

    before: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], None] | None = None

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.before is not None:
            self.before(offsets)
        super().commit(group, offsets)


def test_a_refused_commit_is_reported_once_for_each_partition(kafka: DevKafka, group: str) -> None:
    """The refused offset rises with each commit; the errors name their partitions."""
    two_partitions(kafka, group)
    store, commits, info = HookedStore(), list[int](), error_info(GROUP_REFUSED)

    def refuse(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        commits.append(len(offsets))
        refused = {w: OffsetCommitError(group, *w, at[0], info) for w, at in offsets.items()}
        raise_for(group, refused)

    store.before = refuse
    settings = ConsumerSettings(commit_interval_s=0.02, dwell_s=0)
    options: dict[str, Any] = {"store": store, "settings": settings}
    with GroupConsumer(kafka.bootstrap_servers, group, [group], **options) as consumer:
        errors = consumer.errors()
        while len(commits) < 10 or len({each.partition for each in errors}) < 2:
            message = consumer.poll(0.05)
            if message is not None:
                consumer.mark_offset(message)
            errors += consumer.errors()
    assert sorted((each.topic, each.partition) for each in errors) == [(group, 0), (group, 1)]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_late_commit_of_a_rebalance_goes_to_no_recreated_topic(
    kafka: DevKafka, group: str, *, recreated: bool
) -> None:
    """An offset that the group refused is committed once its partition is back in its own log."""
    partitions = two_partitions(kafka, group)
    store, refused, answers = HookedStore(), threading.Event(), threading.Event()
    late: list[object] = []

    def move(offsets: object) -> None:
        if not refused.is_set():
            if recreated:
                replace_topic(kafka, group, partitions=2)
            refused.set()
            raise KafkaRequestError("commit", error_info(REBALANCE_IN_PROGRESS))
        if not answers.wait(WAIT_S):
            late.append(offsets)

    settings = ConsumerSettings(strategy="range", dwell_s=0, commit_interval_s=WAIT_S)
    options: dict[str, Any] = {"store": store, "settings": settings}
    with GroupConsumer(kafka.bootstrap_servers, group, [group], **options) as consumer:
        polled(consumer)
        for topic, partition in partitions:
            consumer.mark_partition_offset(topic, partition, COUNT - 1)
        store.before = move
        with GroupConsumer(kafka.bootstrap_servers, group, [group], **options) as other:
            until(lambda: consumer.poll(0.05) is None and refused.is_set())
            until(lambda: consumer.poll(0.05) is None and other.subscriptions())
            answers.set()  # no poll has waited for the store
    found = {each.offset for each in store.fetch(group, None).values() if each}
    assert (COUNT in found, late) == (not recreated, [])


@pytest.mark.parametrize("kind", ["memory", "sqlite", "own Kafka", "another Kafka"])
def test_every_store_keeps_the_offsets_of_a_consumer(
    kafka: DevKafka, group: str, kind: str, tmp_path: Path
) -> None:
    """The consumer's own Kafka as a store is the group itself."""
    partitions = two_partitions(kafka, group)
    servers = kafka.bootstrap_servers
    url = {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/offsets.db",
        "own Kafka": f"kafka://{servers}",
        "another Kafka": f"kafka://{servers},{servers}",
    }[kind]
    # A group of another Kafka has no members there; here the other one is the same.
    place = {"partitions": partitions} if kind == "another Kafka" else {"topics": [group]}
    with open_store(url) as store:
        if isinstance(store, SqlOffsetStore):
            store.create_tables()
        given = url if kind == "sqlite" else store
        for offset in (0, 40):
            with GroupConsumer(servers, group, store=given, **place) as consumer:
                assert polled(consumer).offset() == offset
                for partition in range(2):
                    consumer.mark_partition_offset(group, partition, 39)
        position = store.fetch_offset(group, group, 1)
        assert position is not None
        assert position.offset == 40


def test_a_consumer_ends_once_another_has_claimed_its_partitions(
    kafka: DevKafka, group: str, tmp_path: Path
) -> None:
    """Without membership nothing else takes them away: both would process every message."""
    partitions, url = two_partitions(kafka, group), f"sqlite:///{tmp_path}/offsets.db"
    with SqlOffsetStore(url) as successor:
        successor.create_tables()
        settings = ConsumerSettings(commit_interval_s=0.02)
        options: dict[str, Any] = {"partitions": partitions, "settings": settings}
        with GroupConsumer(kafka.bootstrap_servers, group, store=url, **options) as consumer:
            polled(consumer)
            successor.claim(group, [TopicPartition(*each) for each in partitions])
            consumer.mark_partition_offset(*partitions[0], 5)
            with pytest.raises(OffsetCommitError, match="GENERATION_FENCED"):
                until(lambda: consumer.poll(0.1) and None)
            assert consumer.closed


def test_a_consumer_that_cannot_begin_gives_its_partitions_back(
    kafka: DevKafka, group: str
) -> None:
    """The end of a log that does not exist is not known; the next consumer may claim it."""
    options: dict[str, Any] = {
        "partitions": [(group, 0)],
        "settings": ConsumerSettings(missing="latest"),
    }
    with LocalOffsets(kafka.bootstrap_servers) as offsets:
        with pytest.raises(KafkaRequestError, match="does not exist"):
            GroupConsumer(kafka.bootstrap_servers, group, store=offsets, **options)
        filled(kafka, group, 4, partitions=1)
        with GroupConsumer(kafka.bootstrap_servers, group, store=offsets, **options) as consumer:
            assert consumer.subscriptions() == {group: [0]}


def test_offsets_of_a_quiet_consumer_do_not_expire(kafka: DevKafka, group: str) -> None:
    """Without members Kafka deletes each offset some time after its last commit."""
    partitions = two_partitions(kafka, group)
    settings = ConsumerSettings(commit_interval_s=0.1, recommit_interval_s=0.5)
    options: dict[str, Any] = {"partitions": partitions, "settings": settings}
    with GroupConsumer(kafka.bootstrap_servers, group, **options) as consumer:
        message = polled(consumer)
        consumer.mark_offset(message, "kept")
        consumer.commit_offsets()
        mark = {message.partition(): (1, "kept")}
        assert committed(kafka, group, group) == mark
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_consumer_groups([group])[group].result(WAIT_S)
        until(lambda: committed(kafka, group, group) == mark)


def test_conflicting_arguments_are_refused(group: str) -> None:
    retrying, partitions = AckSettings(retry=RetryPolicy()), [(group, 0)]
    chosen = {"partitions": partitions, "settings": retrying}
    with LocalOffsets("127.0.0.1:9") as offsets:
        cases: list[tuple[type[Any], list[str], dict[str, Any], str]] = [
            (GroupConsumer, [group], {"store": offsets}, "store .* only to groups without members"),
            (GroupConsumer, [group], {"partitions": partitions}, "partitions .* with topics"),
            (GroupConsumer, [], {}, "partitions .* nor topics"),
            (AckConsumer, [f"{group}.dlq"], {"settings": retrying}, "where its own failures go"),
            (AckConsumer, [], chosen, "does not go with partitions"),
        ]
        no_store = "is not a store of offsets"
        wrong: tuple[Any, ...] = (object(), MemoryOffsetStore, 7)
        cases += [(GroupConsumer, [group], {"store": each}, no_store) for each in wrong]
        for make, topics, options, problem in cases:
            with pytest.raises(InvalidValueError, match=problem):
                make("127.0.0.1:9", group, topics, **options)
