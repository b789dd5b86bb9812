"""Offsets belong to a log: recreated topics, cut logs, retention, transactions, first positions."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.acked_ranges import encode_acks
from offsetmgr.consumer import (
    AckConsumer,
    AckSettings,
    ConsumerSettings,
    GroupConsumer,
    PartitionedConsumer,
)
from offsetmgr.consumer.member import Member
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.conftest import create_topic
from tests.kafka.messages import (
    committed,
    delete_records,
    filled,
    number_of,
    produce,
    reading_streams,
    recreate,
    replace_topic,
)
from tests.kafka.mock_cluster import LIST_OFFSETS, MockCluster
from tests.tables import delete, grow
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from typing_extensions import Self

    from offsetmgr.devkafka import DevKafka

Kind = Literal["marks", "acks"]
KINDS = pytest.mark.parametrize("kind", ["marks", "acks"])


class Reader:
    """A consumer of either kind that processes each message as it comes."""

    def __init__(
        self,
        kafka: DevKafka | MockCluster,
        group: str,
        kind: Kind,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        make = GroupConsumer if kind == "marks" else AckConsumer
        of = ConsumerSettings if kind == "marks" else AckSettings
        config = {"bootstrap.servers": kafka.bootstrap_servers, **options.pop("config", {})}
        topics = options.pop("topics", [group])
        self.consumer: Any = make(config, group, topics, settings=of(**(settings or {})), **options)

    def read(self, count: int, *, done: bool = True) -> list[int]:
        """Return the numbers of the next ``count`` messages."""
        found: list[int] = []
        while len(found) < count:
            message = self.consumer.poll(WAIT_S)
            assert message is not None, found
            found.append(number_of(message))
            if done:
                self.process(message)
        return found

    def process(self, message: Any) -> None:
        if isinstance(self.consumer, GroupConsumer):
            self.consumer.mark_offset(message)
        else:
            message.ack()

    def read_all(self, numbers: Iterable[int]) -> None:
        """Read until all ``numbers`` have come."""
        left = set(numbers)
        while left:
            left.difference_update(self.read(1))

    def recreate(self, kafka: DevKafka, topic: str) -> None:
        """Let the consumer see its topic go, and create it again without messages."""
        delete(kafka, topic)
        while self.consumer.subscriptions():
            self.consumer.poll(0.1)
        recreate(kafka, topic, 0)

    def codes(self) -> list[str]:
        """Return the codes of the errors of topics."""
        return [each.code for each in self.consumer.errors() if each.topic]

    def idle(self) -> None:
        """Poll until nothing comes any more."""
        while (message := self.consumer.poll(1.0)) is not None:
            self.process(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()


def offset(kafka: DevKafka, group: str) -> int | None:
    """Return the committed offset of partition 0."""
    found = committed(kafka, group, group, 1)
    return found[0][0] if found else None


def leader_epoch(kafka: DevKafka, group: str) -> int | None:
    """Return the leader epoch of the committed offset of partition 0."""
    other = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    (found,) = other.committed([KafkaPartition(group, 0)], WAIT_S)
    other.close()
    return found.leader_epoch


def commit(
    kafka: DevKafka, group: str, at: int, metadata: str = "", leader_epoch: int = -1
) -> None:
    """Commit as another program, for partition 0 of the topic of the group's name."""
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    other = Consumer(config)
    sent = [KafkaPartition(group, 0, at, metadata, leader_epoch)]
    other.commit(offsets=sent, asynchronous=False)
    other.close()


@pytest.mark.parametrize(
    ("kind", "new"), [("marks", 10), ("marks", 60), ("acks", 40), ("acks", 60)]
)
def test_a_topic_that_is_recreated_under_a_running_consumer_is_read_from_its_start(
    kafka: DevKafka, group: str, kind: Kind, new: int
) -> None:
    """With a smaller, an equal and a longer log; none of the old offsets is committed to it."""
    filled(kafka, group, 40, partitions=1)
    with Reader(kafka, group, kind) as reader:
        assert reader.read(40) == list(range(40))
        reader.consumer.commit_offsets()
        replace_topic(kafka, group, range(100, 100 + new))
        reader.read_all(range(100, 100 + new))
        until(lambda: reader.consumer.stats().errors)
        errors = reader.consumer.errors()
        assert [each.code for each in errors] == ["TOPIC_RECREATED"]
        assert (errors[0].topic, errors[0].partition) == (group, 0)
        reader.idle()  # with a longer log some came before that was known, and come again
        reader.consumer.commit_offsets()
        assert offset(kafka, group) == new
        produce(kafka, group, [7], partitions=1)
        assert reader.read(1) == [7]
    assert offset(kafka, group) == new + 1


@pytest.mark.parametrize(("kind", "alone"), [("marks", False), ("acks", True)])
def test_a_topic_recreated_after_a_fail_over_is_read(
    breakable_kafka: DevKafka, group: str, kind: Kind, *, alone: bool
) -> None:
    """A new log with a lower leader epoch than the former one: librdkafka asks its former leader.

    With membership and without; partitions of a consumer alone are not released, so that acks of
    the messages in its hands count.
    """
    kafka = breakable_kafka
    filled(kafka, group, 20, partitions=2)
    kafka.broker(1).kill()
    kafka.broker(1).start()

    def has_coordinator() -> bool:
        with suppress(KafkaException):
            return committed(kafka, group, group, 2) == {}
        return False

    until(has_coordinator)
    partitions = [(group, 0), (group, 1)]
    where: dict[str, Any] = {"topics": (), "partitions": partitions} if alone else {}
    with Reader(kafka, group, kind, **where) as reader:
        assert sorted(reader.read(20)) == list(range(20))
        reader.consumer.commit_offsets()
        replace_topic(kafka, group, range(100, 130), partitions=2)
        reader.read_all(range(100, 130))
        assert {each.code for each in reader.consumer.errors() if each.topic} >= {"TOPIC_RECREATED"}
        produce(kafka, group, range(130, 140), partitions=2)
        reader.read_all(range(130, 140))
        released = [each for each in reader.consumer.notifications() if each.released]
        assert bool(released) != alone
    assert [at for at, _ in committed(kafka, group, group, 2).values()] == [20, 20]


@pytest.mark.parametrize("after_s", [0.0, 2.5])
def test_streams_go_on_in_a_recreated_topic_with_other_partitions(
    kafka: DevKafka, group: str, after_s: float
) -> None:
    """One partition becomes two, at once or while the topic is away for longer."""
    filled(kafka, group, 20, partitions=1)
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "topic.metadata.refresh.interval.ms": 1000,
    }
    seen: list[int] = []
    with reading_streams(PartitionedConsumer(config, group, [group]), seen):
        until(lambda: len(seen) == 20)
        delete(kafka, group)
        time.sleep(after_s)  # the topic is away for so long
        recreate(kafka, group, 0, partitions=2)
        produce(kafka, group, range(100, 120), partitions=2)
        until(lambda: set(seen) >= set(range(100, 120)))
        # What came before the new log was noticed is read again, and its marks count then.
        until(lambda: [at for at, _ in committed(kafka, group, group, 2).values()] == [10, 10])


@pytest.mark.parametrize(("kind", "strategy"), [("marks", "range"), ("acks", "cooperative-sticky")])
def test_a_topic_that_is_recreated_while_its_application_is_busy_is_read(
    kafka: DevKafka, group: str, kind: Kind, strategy: str
) -> None:
    """Its partitions are paused then, and stay so over the new assignment."""
    filled(kafka, group, 40, partitions=2)
    settings = {"away_s": 0.1, "strategy": strategy}
    with Reader(kafka, group, kind, settings=settings) as reader:
        assert sorted(reader.read(40)) == list(range(40))
        replace_topic(kafka, group, partitions=2)
        until(lambda: reader.consumer.stats().errors >= 2)
        produce(kafka, group, range(100, 160), partitions=2)
        assert sorted(reader.read(60)) == list(range(100, 160))


def test_the_last_commit_goes_to_no_topic_that_was_just_recreated(
    kafka: DevKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close looks at the topic's id itself, as no later look repairs what it commits."""
    monkeypatch.setattr("offsetmgr.consumer.topics.LOOK_S", 600.0)
    filled(kafka, group, 40, partitions=1)
    settings = {"commit_interval_s": 600.0, "away_s": 600.0}
    with Reader(kafka, group, "marks", settings=settings) as reader:
        assert reader.read(30) == list(range(30))
        reader.consumer.commit_offsets()
        assert reader.read(10) == list(range(30, 40))
        replace_topic(kafka, group, range(60))
        until(lambda: offset(kafka, group) is None)
    assert offset(kafka, group) is None


@pytest.mark.parametrize(("kind", "new"), [("marks", 20), ("marks", 60), ("acks", 60)])
def test_a_topic_that_was_away_is_read_from_its_start_by_any_store(
    kafka: DevKafka, group: str, kind: Kind, new: int
) -> None:
    """A store of the user's does not delete offsets with a topic; what it has is of the former log.

    Nor do late marks and acks of that log count for the new one.
    """
    filled(kafka, group, 40, partitions=1)
    config = {"topic.metadata.refresh.interval.ms": 500}
    store = MemoryOffsetStore()
    with Reader(kafka, group, kind, store=store, config=config) as reader:
        assert reader.read(30) == list(range(30))
        late = [reader.consumer.poll(WAIT_S) for _ in range(10)]
        reader.consumer.commit_offsets()
        reader.recreate(kafka, group)
        produce(kafka, group, range(100, 100 + new), partitions=1)
        seen: set[int] = set()
        while seen < set(range(100, 100 + new)):
            seen.update(reader.read(1, done=False))
            for message in late:
                reader.process(message)
        until(lambda: "TOPIC_RECREATED" in reader.codes())
        reader.consumer.commit_offsets()
        assert [each[0] for each in store.fetch(group, None).values() if each] == [0]


@pytest.mark.parametrize(("kind", "start"), [("marks", "earliest"), ("acks", "latest")])
def test_a_committed_offset_beyond_the_log_is_left_for_the_start(
    kafka: DevKafka, group: str, kind: Kind, start: str
) -> None:
    """Reading begins by ``missing=`` and is committed from there on, with one error."""
    filled(kafka, group, 20, partitions=1)
    commit(kafka, group, 1_000)
    with Reader(kafka, group, kind, settings={"missing": start}) as reader:
        if start == "latest":
            until(lambda: reader.consumer.poll(0.1) is None and reader.consumer.stats().errors)
            produce(kafka, group, range(20, 25), partitions=1)
        first = 0 if start == "earliest" else 20
        end = 20 if start == "earliest" else 25
        assert reader.read(end - first) == list(range(first, end))
        (error,) = reader.consumer.errors()
        assert isinstance(error, KafkaRequestError)
        assert (error.topic, error.partition, error.offset) == (group, 0, 1_000)
        assert f"so {20 - first} are read again" in str(error)
    assert offset(kafka, group) == end


def test_records_that_retention_deleted_before_they_were_read_are_counted(
    kafka: DevKafka, group: str
) -> None:
    """The log is trimmed while the consumer is away, and while it is slow."""
    filled(kafka, group, 40, partitions=1)
    commit(kafka, group, 5)
    delete_records(kafka, group, {0: 10})
    with Reader(kafka, group, "acks") as reader:
        assert reader.read(30) == list(range(10, 40))
        assert reader.consumer.stats().skipped == 5
        (error,) = reader.consumer.errors()
        assert "5 records were deleted before they were read" in str(error)
        assert (error.topic, error.partition, error.offset) == (group, 0, 5)
        produce(kafka, group, range(40, 60), partitions=1)
        until(reader.consumer.high_water_marks)
        with reader.consumer._member._turn:  # it cannot fetch
            delete_records(kafka, group, {0: 50})
        seen = reader.read(10)
        while seen[-1] != 59:
            seen += reader.read(1)
        skipped = 60 - 40 - len(seen)
        assert reader.consumer.stats().skipped == 5 + skipped
    assert offset(kafka, group) == 60


@KINDS
def test_the_lag_of_a_transactional_topic_reaches_zero(
    kafka: DevKafka, group: str, kind: Kind
) -> None:
    """Behind a commit marker, an aborted transaction, and for a member that reads nothing."""
    create_topic(kafka, group, 1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    ends = [0]

    def transaction(numbers: range, *, good: bool) -> None:
        producer.begin_transaction()
        for number in numbers:
            producer.produce(group, str(number), partition=0)
        producer.flush(WAIT_S)
        if good:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        ends.append(ends[-1] + len(numbers) + 1)

    transaction(range(5), good=True)
    with Reader(kafka, group, kind, settings={"commit_interval_s": 0.1}) as reader:
        assert reader.read(5) == list(range(5))
        reader.idle()
        eventually(lambda: offset(kafka, group), ends[-1])
        transaction(range(100), good=False)
        reader.idle()
        eventually(lambda: offset(kafka, group), ends[-1])
    transaction(range(3), good=False)
    with Reader(kafka, group, kind) as reader:
        while reader.consumer.high_water_marks() != {group: {0: ends[-1]}}:
            reader.idle()  # it may not be in its group yet
        reader.idle()
    assert offset(kafka, group) == ends[-1]
    assert leader_epoch(kafka, group) is None, "of a marker, which may be younger"
    transaction(range(2), good=True)
    with Reader(kafka, group, kind) as reader:
        reader.read(2, done=False)
        reader.consumer.poll(1.0)
    assert offset(kafka, group) == ends[-2], "nothing is committed ahead of a mark or an ack"


@KINDS
def test_latest_loses_nothing_that_is_produced_after_the_start(
    kafka: DevKafka, group: str, kind: Kind
) -> None:
    """An idle partition over a restart; history is skipped, and a new partition is read whole."""
    create_topic(kafka, group, 2)
    produce(kafka, group, range(10), partitions=2)
    latest: dict[str, Any] = {"missing": "latest"}
    refresh = {"topic.metadata.refresh.interval.ms": 1000}
    with Reader(kafka, group, kind, settings=latest) as reader:
        until(
            lambda: reader.consumer.poll(0.1) is None and len(committed(kafka, group, group)) == 2
        )
        produce(kafka, group, [10], partitions=2)
        assert reader.read(1) == [10]
    assert committed(kafka, group, group) == {0: (6, ""), 1: (5, "")}
    produce(kafka, group, [11], partitions=2)
    grow(kafka, group, 3)
    produce(kafka, group, [302], partitions=3)  # to partition 302 % 3 = 2
    with Reader(kafka, group, kind, settings=latest, config=refresh) as reader:
        assert sorted(reader.read(2)) == [11, 302]
        grow(kafka, group, 4)
        produce(kafka, group, [303], partitions=4)  # to partition 303 % 4 = 3
        assert reader.read(1) == [303]


def test_latest_skips_nothing_of_a_recreated_topic(kafka: DevKafka, group: str) -> None:
    """A first position belongs to the log of the consumer's start, not to one that replaces it."""
    filled(kafka, group, 100, partitions=1)
    config = {"topic.metadata.refresh.interval.ms": 500}
    with Reader(kafka, group, "marks", settings={"missing": "latest"}, config=config) as reader:
        until(lambda: reader.consumer.poll(0.1) is None and offset(kafka, group) == 100)
        produce(kafka, group, range(10), partitions=1)
        assert reader.read(10) == list(range(10))
        reader.consumer.commit_offsets()
        reader.recreate(kafka, group)
        produce(kafka, group, range(1_000, 1_150), partitions=1)
        reader.read_all(range(1_000, 1_150))
        until(lambda: "TOPIC_RECREATED" in reader.codes())
        reader.idle()
        reader.consumer.commit_offsets()
        assert offset(kafka, group) == 150


def test_a_late_error_of_a_former_log_skips_nothing(kafka: DevKafka, group: str) -> None:
    """It says that an offset is out of range, after the partition has begun with its new log."""
    filled(kafka, group, 10, partitions=1)
    latest: dict[str, Any] = {"missing": "latest", "away_s": 60.0}
    with Reader(kafka, group, "marks", settings=latest) as reader:
        until(lambda: reader.consumer.poll(0.1) is None and offset(kafka, group) == 10)
        produce(kafka, group, range(10, 20), partitions=1)
        error = {"error.return_value": KafkaError(KafkaError._AUTO_OFFSET_RESET)}
        place = {"topic.return_value": group, "partition.return_value": 0}
        member = reader.consumer._member
        member._take_event(Mock(**error, **place, **{"offset.return_value": 500}))
        until(lambda: not member._logs.doubts)
        assert reader.consumer.errors() == []
        assert reader.read(10) == list(range(10, 20))


@KINDS
def test_the_end_of_a_former_claim_skips_nothing(kafka: DevKafka, group: str, kind: Kind) -> None:
    """It comes in the same poll as a rebalance that takes the partition, and gives it back."""
    filled(kafka, group, 10, partitions=1)
    where = TopicPartition(group, 0)
    options: dict[str, Any] = {"topics": (), "partitions": [where]}
    with Reader(kafka, group, kind, {"dwell_s": 0.0, "away_s": 60.0}, **options) as reader:
        assert reader.read(10, done=False) == list(range(10))
        end = {"error.return_value": KafkaError(KafkaError._PARTITION_EOF)}
        place = {"topic.return_value": group, "partition.return_value": 0}
        member = reader.consumer._member
        with member._next, member._turn:
            member._on_revoke([where])
            member._on_assign([where])
            member._take_event(Mock(**end, **place, **{"offset.return_value": 10}))
        reader.consumer.commit_offsets()
        assert not offset(kafka, group)
        assert reader.read(10) == list(range(10))


def test_two_members_that_start_together_with_latest_skip_the_history(
    kafka: DevKafka, group: str
) -> None:
    """The first commit of one does not make the other take its partitions for new ones."""
    filled(kafka, group, 40)
    latest: dict[str, Any] = {"missing": "latest", "away_s": 0.0}
    with (
        Reader(kafka, group, "marks", settings=latest) as one,
        Reader(kafka, group, "marks", settings=latest) as two,
    ):
        until(
            lambda: (
                len(committed(kafka, group, group)) == 4
                and one.consumer.poll(0.1) is None
                and two.consumer.poll(0.1) is None
                and two.consumer.subscriptions()
            )
        )
        assert set(committed(kafka, group, group).values()) == {(10, "")}
        assert one.consumer.stats().messages == two.consumer.stats().messages == 0


def test_metadata_of_other_programs_is_not_taken_for_acks(kafka: DevKafka, group: str) -> None:
    """``BZ`` reads as 25 acknowledged offsets; kafka-pixy's form is read if it is asked for."""
    filled(kafka, group, 40, partitions=1)
    commit(kafka, group, 0, "BZ")
    settings = {"dwell_s": 0.0}
    with Reader(kafka, group, "acks", settings=settings) as reader:
        assert reader.read(40, done=False) == list(range(40))
        (error,) = reader.consumer.errors()
        assert f"the metadata committed for {group}-0 is dropped: it is another" in str(error)
        assert (error.topic, error.partition, error.offset) == (group, 0, 0)
    commit(kafka, group, 0, "BZ")
    pixy = {"metadata": "kafka-pixy", **settings}
    with Reader(kafka, group, "acks", settings=pixy) as reader:
        assert reader.read(15, done=False) == [0, *range(26, 40)]
        assert reader.consumer.errors() == []
    commit(kafka, group, 0, encode_acks(0, [(1, 5), (30, 41)]))
    with Reader(kafka, group, "acks", settings=settings) as reader:
        assert reader.read(40, done=False) == list(range(40))
        (error,) = reader.consumer.errors()
        assert "it has acks beyond the log's end 40" in str(error)


def test_a_start_that_could_not_be_looked_up_is_looked_up_again() -> None:
    """One failed answer of a broker about a log never ends the reading of its partition."""
    with MockCluster() as kafka:
        kafka.create_topic("orders")
        produce(kafka, "orders", range(3), partitions=1)
        kafka.push_errors(LIST_OFFSETS, -1)  # UNKNOWN_SERVER_ERROR
        options: dict[str, Any] = {"partitions": [("orders", 0)], "store": "memory:"}
        with Reader(kafka, "orders", "acks", topics=(), **options) as reader:
            assert reader.read(3) == [0, 1, 2]
            assert reader.codes() == ["UNKNOWN_SERVER_ERROR"]


class InPieces(MemoryOffsetStore):
    """A store that gives away one partition after the other."""

    next = 0

    def claim(self, group: str, partitions: Collection[TopicPartition]) -> Any:
        if [each.partition for each in partitions] != [self.next]:
            raise OffsetManagerError("one after the other")
        self.next += 1
        return super().claim(group, partitions)


@pytest.mark.parametrize("how", ["alone", "member", "in pieces"])
@KINDS
def test_a_log_that_an_unclean_election_has_cut_is_read_from_its_start(
    kind: Kind, how: str
) -> None:
    """The new log may be longer than the old offset: only its leader epochs tell.

    librdkafka compares them by itself only where the consumer learns of the topic's leader after it
    began to read, which a subscribed one never does.  With ``range`` the next claim begins all
    partitions anew, before it is answered.
    """
    with MockCluster(2) as kafka, InPieces() as store:
        kafka.create_topic("orders", 1 + (how == "in pieces"))
        for leader, numbers in ((1, range(20)), (2, range(20, 50))):  # leader epochs 1 and 2
            kafka.set_leader("orders", leader)
            produce(kafka, "orders", numbers, partitions=1)
        store.commit_offset("orders", "orders", 0, OffsetAndMetadata(30, "", 1))
        options: dict[str, Any] = {"store": store}
        if how == "alone":
            options |= {"partitions": [("orders", 0)], "topics": ()}
        if how == "in pieces":
            options["settings"] = {"strategy": "range"}
            kafka.set_round_trip(600)
        with Reader(kafka, "orders", kind, **options) as reader:
            assert reader.read(50) == list(range(50))
            assert reader.codes()[-1] == "OFFSET_OUTSIDE_LOG"
        position = store.fetch_offset("orders", "orders", 0)
        assert position is not None
        assert (position.offset, position.leader_epoch) == (50, 2)


@pytest.mark.parametrize("busy", [False, True])
def test_a_log_without_the_leader_epoch_of_the_offset_is_read_from_its_start(
    kafka: DevKafka, group: str, monkeypatch: pytest.MonkeyPatch, *, busy: bool
) -> None:
    """A restored or recreated log, which has the offset, of another record.

    librdkafka begins to read no partition before it has the answers of its commits.
    """
    assign, again = Member._on_assign, [KafkaPartition(group, 0, 30, "", 5)]

    def assign_amid_commits(member: Member, partitions: list[TopicPartition]) -> None:
        for _ in range(500 * busy):
            member._consumer.commit(offsets=again, asynchronous=True)
        assign(member, partitions)

    monkeypatch.setattr(Member, "_on_assign", assign_amid_commits)
    filled(kafka, group, 100, partitions=2)
    commit(kafka, group, 30, leader_epoch=5)
    with Reader(kafka, group, "marks") as reader:
        assert sorted(reader.read(100)) == list(range(100))
        assert reader.codes() == ["OFFSET_OUTSIDE_LOG"]
    assert (offset(kafka, group), leader_epoch(kafka, group)) == (50, 0)
