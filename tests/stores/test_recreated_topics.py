"""Offsets in a database whose topic is deleted and recreated: they belong to the former log."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from offsetmgr import LocalOffsets
from offsetmgr.consumer import GroupConsumer
from offsetmgr.errors import OffsetCommitError, OffsetConflictError, OffsetStoreError
from offsetmgr.stores.base import offer_topic_ids
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition
from tests.kafka.messages import delete_records, produce, recreate
from tests.stores.test_stores import url_of
from tests.tables import delete
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


class Place:
    """A topic of the real Kafka, and stores of one database that know it."""

    def __init__(self, kafka: DevKafka, topic: str, url: str) -> None:
        self.kafka = kafka
        self.where = TopicPartition(topic, 0)
        self.url = url

    def open(self) -> SqlOffsetStore:
        return SqlOffsetStore(self.url, kafka=self.kafka.bootstrap_servers)

    def recreate(self) -> None:
        delete(self.kafka, self.where.topic)
        recreate(self.kafka, self.where.topic, 0)
        produce(self.kafka, self.where.topic, range(160), partitions=1)  # what the tests read

    @contextmanager
    def recreated(self) -> Iterator[SqlOffsetStore]:
        """Open a store that has stored 40 messages of the former log of a recreated topic."""
        with self.open() as store:
            store.claim("etl", [self.where])
            assert self.new(store, range(40)) == list(range(40))
            self.recreate()
            yield store

    def new(self, store: SqlOffsetStore, offsets: Iterable[int]) -> list[int]:
        """Give messages with ``offsets`` to a transaction; return those that are new."""
        batch = [Message(*self.where, offset=offset) for offset in offsets]
        found = store.run(lambda _, stored: stored.new_messages("etl", batch))
        return [message.offset() or 0 for message in found]

    def is_new(self, store: SqlOffsetStore, start: int, end: int) -> bool:
        return store.run(lambda _, stored: stored.is_new_range("etl", {self.where: (start, end)}))

    def stored(self, store: SqlOffsetStore) -> int | None:
        found = store.fetch_offset("etl", *self.where)
        return None if found is None else found.offset


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, kafka: DevKafka, new_topic: TopicFactory) -> Place:
    url = url_of(request.param, request)
    with SqlOffsetStore(url) as store:
        store.create_tables()
    return Place(kafka, new_topic(), url)


@pytest.mark.parametrize("count", [30, 40, 150])
def test_messages_of_a_recreated_topic_are_new(
    place: Place, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The new log is shorter, equal or longer; it is reported once; duplicates stay duplicates."""
    with place.recreated() as store:
        assert place.new(store, range(10)) == list(range(10))
        assert place.new(store, range(count)) == list(range(10, count))
        assert place.stored(store) == count
    assert caplog.text.count("was recreated") == 1
    with place.open() as restarted:
        assert restarted.claim("etl", [place.where]) == {place.where: OffsetAndMetadata(count)}
        assert place.new(restarted, range(count)) == []


def test_a_recreated_topic_that_begins_behind_the_stored_offset_is_a_new_log(place: Place) -> None:
    """Retention has cut it already: a gap may hide a new log, and its messages are stored once."""
    with place.open() as store:
        store.claim("etl", [place.where])
        assert place.new(store, range(40)) == list(range(40))
        place.recreate()
        delete_records(place.kafka, place.where.topic, {0: 50})
        assert place.new(store, range(50, 60)) == list(range(50, 60))
    with place.open() as restarted:
        assert restarted.claim("etl", [place.where]) == {place.where: OffsetAndMetadata(60)}


def test_a_topic_recreated_while_its_consumer_is_stopped_starts_at_0(place: Place) -> None:
    """The claim says 0, the start of the new log, and the database too; also without messages."""
    for _ in range(2):
        with place.open() as store:
            first = store.claim("etl", [place.where])[place.where]
            assert first in {None, OffsetAndMetadata(0)}
            assert place.stored(store) == (None if first is None else 0)
            assert place.new(store, range(40)) == list(range(40))
        place.recreate()


def test_managers_forget_the_former_log_of_a_recreated_topic(place: Place) -> None:
    """Managers that commit to a database ask Kafka for topic ids, which the store does not know.

    A new log that is longer than the stored offset can be told by nothing else.
    """
    with SqlOffsetStore(place.url) as store:
        assert store.topic_ids is None
        with LocalOffsets(place.kafka.bootstrap_servers, store=store) as offsets:
            offsets.submit("etl", {place.where: 40}, sync=True, timeout=WAIT_S)
            offsets.stop_managers(timeout=WAIT_S)
            place.recreate()
            produce(place.kafka, place.where.topic, range(60), partitions=1)
            assert offsets.committed("etl", timeout=WAIT_S) == {}
            with pytest.raises(OffsetCommitError, match="TOPIC_RECREATED"):
                offsets.submit("etl", {place.where: 50}, sync=True, timeout=WAIT_S)
            offsets.submit("etl", {place.where: 51}, sync=True, timeout=WAIT_S)
            expected = {place.where: OffsetAndMetadata(51)}
            assert offsets.committed("etl", timeout=WAIT_S) == expected
        assert store.topic_ids is None


def test_a_batch_may_hold_the_end_of_one_log_and_the_start_of_the_next(place: Place) -> None:
    """Messages of the former log are stored, too; their offsets are not committed."""
    with place.recreated() as store:
        assert place.new(store, [38, 39, 40, 41, 0, 1, 2]) == [40, 41, 0, 1, 2]
        assert place.stored(store) == 3
        assert place.new(store, [2, 3, 3]) == [3]


@pytest.mark.parametrize("first", [40, 50])
def test_a_new_log_is_not_stored_from_where_the_former_one_ended(place: Place, first: int) -> None:
    """The kind: messages that a consumer reads on behind its position, in a log that is longer.

    Stored at once, they would be stored again, or those before them never.
    """
    with place.recreated() as store:
        with pytest.raises(OffsetConflictError, match="was recreated"):
            place.new(store, range(first, 60))
        with pytest.raises(OffsetConflictError, match="was recreated"):
            place.is_new(store, 40, 60)
        assert place.new(store, range(100)) == list(range(100))
        assert place.new(store, range(100, 160)) == list(range(100, 160))


def test_gaps_of_a_recreated_topic_and_transactions_that_were_rolled_back_differ(
    place: Place,
) -> None:
    """A conflict is told by what was read of the same log; a transaction rolled back there is one.

    Gaps are what aborted transactions, compaction and retention leave.
    """
    with place.recreated() as store:
        assert place.new(store, range(5)) == list(range(5))
        assert place.new(store, range(50, 60)) == list(range(50, 60))
        with suppress(ZeroDivisionError), store.engine.begin() as connection:
            batch = [Message(*place.where, offset=offset) for offset in range(60, 70)]
            with store.transaction(connection) as stored:
                stored.new_messages("etl", batch)
            raise ZeroDivisionError
        with pytest.raises(OffsetConflictError, match="rolled back"):
            place.new(store, range(70, 80))


def test_marks_of_a_recreated_topic_are_of_the_new_log(place: Place) -> None:
    """They begin at its start; a restart goes on behind them."""
    with place.open() as store:
        store.claim("etl", [place.where])
        store.commit("etl", {place.where: OffsetAndMetadata(40)})
        place.recreate()
        store.commit("etl", {place.where: OffsetAndMetadata(5)})
        store.commit("etl", {place.where: OffsetAndMetadata(50)})
    with place.open() as restarted:
        assert restarted.claim("etl", [place.where]) == {place.where: OffsetAndMetadata(50)}


def test_a_batch_of_spark_begins_with_the_new_log(place: Place) -> None:
    """Without a claim; a batch that is stored is not new, before and after."""
    with place.open() as store:
        assert place.is_new(store, 0, 40)
        place.recreate()
        assert place.is_new(store, 3, 30)
        assert not place.is_new(store, 3, 30)
        assert place.is_new(store, 30, 45)
        assert place.stored(store) == 45


def test_a_consumer_gives_its_store_the_ids_of_topics(
    kafka: DevKafka, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """A longer log that replaced the topic meanwhile is read from its start; one store for all."""
    topic, seen = new_topic(), []
    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db") as store:
        store.create_tables()
        for count in (20, 30):
            produce(kafka, topic, range(count), partitions=1)
            other = GroupConsumer(kafka.bootstrap_servers, f"{topic}-2", [topic], store=store)
            with GroupConsumer(kafka.bootstrap_servers, topic, [topic], store=store) as consumer:
                other.close()
                for _ in range(count):
                    message = consumer.poll(WAIT_S)
                    assert message is not None
                    seen.append(message.offset())
                    consumer.mark_offset(message)
                asked = store.topic_ids
                assert asked is not None  # it was the other consumer's before
            assert store.topic_ids is None
            delete(kafka, topic)
            recreate(kafka, topic, 0)
    assert seen == [*range(20), *range(30)]


@pytest.mark.parametrize("former", [range(41, 43), range(38, 42)])
def test_messages_read_before_their_topic_was_recreated_hide_no_new_ones(
    tmp_path: Path, former: range
) -> None:
    """The kind: a gap, or a repeated batch, of the former log taken for the start of the new one.

    Nor does a new log that begins where the offset 0 of the former one is stored begin again.
    """
    where = TopicPartition("orders", 0)
    ids, ends = {"orders": "first"}, {where: PartitionRange(0, 45)}

    def new(offsets: Iterable[int]) -> list[int]:
        batch = [Message(*where, offset=offset) for offset in offsets]
        found = store.run(lambda _, stored: stored.new_messages("etl", batch))
        return [message.offset() or 0 for message in found]

    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db") as store:
        store.create_tables()
        offer_topic_ids(store, lambda _: ids, lambda _: ends)
        store.commit_offset("etl", *where, 0)
        ids["orders"] = "second"
        assert new(range(40)) == list(range(40))
        assert store.claim("etl", [where]) == {where: OffsetAndMetadata(40)}
        ids["orders"], ends[where] = "third", PartitionRange(0, 5)
        assert new(former) == [offset for offset in former if offset >= 40]
        assert new(range(5)) == list(range(5))
        assert store.claim("etl", [where]) == {where: OffsetAndMetadata(5)}


def test_a_row_with_the_name_of_no_topic_holds_up_no_other(place: Place) -> None:
    """The kind: Kafka is asked about all topics of a group, and refuses the question."""
    with place.open() as store:
        odd = place.where._replace(partition=1)
        store.commit("etl", dict.fromkeys((place.where, odd), OffsetAndMetadata(7)))
        with store.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE offsetmgr_offsets SET topic = 'a b', topic_id = NULL WHERE partition_id = 1"
            )
        found = store.fetch("etl", None)
        assert found == dict.fromkeys((place.where, TopicPartition("a b", 1)), OffsetAndMetadata(7))


def test_a_table_of_an_earlier_release_gets_the_column(tmp_path: Path) -> None:
    """``store init`` adds it, and keeps the rows; before, the error names the command."""
    with SqlOffsetStore(f"sqlite:///{tmp_path}/old.db") as store:
        store.create_tables()
        store.commit_offset("etl", "orders", 0, 7)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE offsetmgr_offsets DROP COLUMN topic_id")
        with pytest.raises(OffsetStoreError, match="offsetmgr store init"):
            store.check()
        store.create_tables()
        assert store.fetch_offset("etl", "orders", 0) == OffsetAndMetadata(7)
