"""What a real Kafka makes of the managers' promises: foreign offsets, logs' ends, lost topics."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import Verdict
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.conftest import create_topic
from tests.faults.support import HASTY, committing, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from actors import Future
    from offsetmgr.coordinator.base import CommitResult, FetchResult
    from offsetmgr.devkafka import DevKafka
    from offsetmgr.manager import ManagerHandle
    from offsetmgr.types import StopResult
    from tests.conftest import TopicFactory

WAIT_S = 60.0
"""Far beyond what anything here takes: a guard, not a measure."""


class Node:
    """One factory on a real Kafka, and somebody else beside it."""

    def __init__(self, kafka: DevKafka, group: str, **settings: Any) -> None:
        config: dict[str, str | int | float | bool] = {"bootstrap.servers": kafka.bootstrap_servers}
        self.kafka = kafka
        self.group = group
        self.admin = AdminClient(config)
        self.producer = Producer(config)
        self.coordinator = KafkaCoordinator(config, clients=1)
        self.factory = Factory(
            self.coordinator,
            CommitSettings(commit_interval_s=0.05, verify_interval_s=0.5, **settings),
        )

    def holds(self, topic: str) -> OffsetAndMetadata | None:
        """What Kafka has committed."""
        where = TopicPartition(topic, 0)
        return (
            self.coordinator.fetch(self.group, [where], WAIT_S).get(timeout=WAIT_S).offsets[where]
        )

    def reset(self, topic: str, offset: int) -> None:
        """Commit as ``kafka-consumer-groups --reset-offsets`` does."""
        wanted = ConsumerGroupTopicPartitions(self.group, [KafkaPartition(topic, 0, offset)])
        self.admin.alter_consumer_group_offsets([wanted])[self.group].result(WAIT_S)

    def produce(self, topic: str, count: int) -> None:
        """Make the log hold ``count`` records more."""
        for _ in range(count):
            self.producer.produce(topic, b"x", partition=0)
        assert self.producer.flush(WAIT_S) == 0

    def flush(self, handle: ManagerHandle) -> StopResult:
        """Commit now."""
        return self.factory.flush([handle.key], WAIT_S).get(timeout=WAIT_S)[handle.key]

    def told(self, handle: ManagerHandle, code: str) -> str:
        """Wait until an error of that code is told; its text."""
        while True:
            error = handle.errors().get(timeout=WAIT_S)
            if error.code == code:
                return str(error)


@contextmanager
def node(kafka: DevKafka, group: str, **settings: Any) -> Iterator[Node]:
    """Start one, and end it."""
    made = Node(kafka, group, **settings)
    try:
        yield made
    finally:
        made.factory.stop(0.0)
        made.coordinator.close(WAIT_S)


@pytest.mark.fault(7)
def test_a_reset_by_a_tool_is_noticed_and_followed(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """It counts as committed; the next submit goes over a lower one."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 20)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(13)
        assert here.flush(handle).uncommitted is None
        here.reset(topic, 7)
        assert "it is 7 now" in here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
        assert handle.status().committed == OffsetAndMetadata(7)
        handle.submit(9)
        assert here.flush(handle).uncommitted is None
        assert here.holds(topic) == OffsetAndMetadata(9)


@pytest.mark.fault(7)
def test_each_of_two_services_without_a_fence_is_told_of_the_others_commit(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """Both commit; whoever finds what is not its own says so, with both offsets."""
    topic = new_topic()
    with node(kafka, group) as first, node(kafka, group) as second:
        first.produce(topic, 40)
        one = first.factory.spawn(group, topic, 0)
        one.submit(10)
        assert first.flush(one).uncommitted is None
        other = second.factory.spawn(group, topic, 0)
        assert other.initial_offset(timeout=WAIT_S) == OffsetAndMetadata(10)
        other.submit(20)
        assert second.flush(other).uncommitted is None
        told = first.told(one, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 10: somebody else changed it: it is 20 now" in told
        one.submit(30)
        assert first.flush(one).uncommitted is None
        told = second.told(other, "OFFSET_CHANGED_EXTERNALLY")
        assert "offset 20: somebody else changed it: it is 30 now" in told
        assert second.holds(topic) == OffsetAndMetadata(30)


class Wire:
    """What goes between a group and its coordinator about one partition, in order."""

    def __init__(self, coordinator: KafkaCoordinator, where: TopicPartition) -> None:
        """Listen from now on."""
        self.seen: list[str] = []
        """``commit 7`` and ``fetch`` as they are sent, ``lost`` and ``read`` as they are answered.

        What only the answer knows stands here before the group hears of it.
        """
        commit, fetch = coordinator.commit, coordinator.fetch

        def listening_commit(
            group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
        ) -> Future[CommitResult]:
            if where in offsets:
                self.seen.append(f"commit {offsets[where].offset}")
            sent = commit(group, offsets, timeout_s)
            sent.add_done_callback(committed)
            return sent

        def committed(done: Future[CommitResult]) -> None:
            failure = done.get().failures.get(where)
            if failure is not None and failure.info.verdict is Verdict.UNKNOWN:
                self.seen.append("lost")

        def listening_fetch(
            group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
        ) -> Future[FetchResult]:
            self.seen.append("fetch")
            sent = fetch(group, partitions, timeout_s)
            sent.add_done_callback(fetched)
            return sent

        def fetched(done: Future[FetchResult]) -> None:
            if where in done.get().offsets:
                self.seen.append("read")

        coordinator.commit = listening_commit  # type: ignore[method-assign]
        coordinator.fetch = listening_fetch  # type: ignore[method-assign]

    def unread(self) -> list[str]:
        """Commits that were sent while nobody had read what became of the one before."""
        doubt, found = False, []
        for what in self.seen:
            if doubt and what.startswith("commit"):
                found.append(what)
            doubt = what == "lost" or (doubt and what != "read")
        return found


@pytest.mark.fault(2)
def test_a_commit_that_a_paused_broker_does_not_answer_is_read_back_before_the_next(
    breakable_kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """It is told as unknown; what is newer waits until that was read, and is committed at last."""
    topic = new_topic(on=breakable_kafka)
    with committing(breakable_kafka.bootstrap_servers, HASTY) as managers:
        handle = managers.spawn(group, topic=topic)
        handle.submit(1)
        assert managers.flush(handle) is None
        wire = Wire(managers.kafka, TopicPartition(topic, 0))
        breakable_kafka.broker(1).pause()
        try:
            handle.submit(2)
            error = managers.commit_error(handle, 2)
            assert (error.info.verdict, error.retriable) == (Verdict.UNKNOWN, True)
            handle.submit(3)
            until("it is read back, more than once", lambda: wire.seen.count("fetch") >= 2)
            sent = wire.seen.index("commit 2")
            assert wire.seen[sent : sent + 3] == ["commit 2", "lost", "fetch"]
        finally:
            breakable_kafka.broker(1).resume()
        assert managers.flush(handle) is None
        assert wire.unread() == []
        assert "commit 3" in wire.seen
        until("the newest stands", lambda: managers.in_kafka(group, topic=topic) == 3)


@pytest.mark.fault(24)
def test_an_offset_outside_the_log_is_reported(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """A log of three records: Kafka itself would take any offset."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 3)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(1000)
        assert here.flush(handle).uncommitted is None
        assert "which holds 0 to 3" in here.told(handle, "OFFSET_OUTSIDE_LOG")
        assert here.holds(topic) == OffsetAndMetadata(1000)


@pytest.mark.fault(23)
def test_a_topic_that_is_deleted_and_made_anew_while_it_is_held(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """Told to its manager alone; the other offset of the commit lands; old offsets are noticed."""
    topic, other = new_topic(), new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 20)
        here.produce(other, 20)
        handle = here.factory.spawn(group, topic, 0)
        peer = here.factory.spawn(group, other, 0)
        handle.submit(10)
        peer.submit(10)
        assert here.flush(handle).uncommitted is None
        here.admin.delete_topics([topic])[topic].result(WAIT_S)
        here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
        handle.submit(11)
        peer.submit(11)
        here.told(handle, "UNKNOWN_TOPIC_OR_PARTITION")
        assert here.flush(peer).uncommitted is None
        assert here.holds(other) == OffsetAndMetadata(11)
        assert peer.status().last_error is None
        create_topic(kafka, topic, 1)
        assert here.flush(handle).uncommitted is None
        assert "holds 0 to 0; was the topic recreated" in here.told(handle, "OFFSET_OUTSIDE_LOG")


@pytest.mark.fault(23)
def test_a_topic_made_anew_with_as_many_records_is_told_by_its_id(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """What is committed lies within the new log, and counts records of the old one all the same."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 20)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(10)
        assert here.flush(handle).uncommitted is None
        here.reset(topic, 30)
        assert "holds 0 to 20" in here.told(handle, "OFFSET_OUTSIDE_LOG")
        here.admin.delete_topics([topic])[topic].result(WAIT_S)
        here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
        create_topic(kafka, topic, 1)
        here.produce(topic, 20)
        handle.rewind(11)
        assert here.flush(handle).uncommitted is None
        assert "the topic was made anew, as " in here.told(handle, "TOPIC_RECREATED")
        assert here.holds(topic) == OffsetAndMetadata(11)


def test_the_leader_epoch_travels_and_comes_back(
    kafka: DevKafka, group: str, new_topic: TopicFactory
) -> None:
    """It is committed with the offset, and a look finds what was sent: nothing is told."""
    topic = new_topic()
    with node(kafka, group) as here:
        here.produce(topic, 3)
        handle = here.factory.spawn(group, topic, 0)
        handle.submit(2, metadata="m", leader_epoch=0)
        assert here.flush(handle).committed == OffsetAndMetadata(2, "m", 0)
        assert here.holds(topic) == OffsetAndMetadata(2, "m", 0)
        here.reset(topic, 1)
        assert "offset 2: somebody" in here.told(handle, "OFFSET_CHANGED_EXTERNALLY")
