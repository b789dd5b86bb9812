"""Offsets in the transaction of a user's results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from offsetmgr.consumer import AckMessage
from offsetmgr.errors import InvalidValueError, OffsetCommitError, OffsetConflictError
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.stores.test_stores import DATABASES, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from offsetmgr.consumer.ack_work import Claim
    from offsetmgr.stores.sql import OffsetTransaction

TABLES = MetaData()
RESULTS = Table("results", TABLES, Column("message_offset", Integer))
ORDERS = TopicPartition("orders", 0)


def messages(offsets: range, epoch: int = -1) -> list[Message]:
    return [Message(*ORDERS, offset=each, leader_epoch=epoch) for each in offsets]


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest) -> Iterator[SqlOffsetStore]:
    """A store in each database in turn; it has claimed the partition."""
    with SqlOffsetStore(url_of(request.param, request)) as made:
        made.create_tables()
        TABLES.create_all(made.engine)
        made.claim("etl", [ORDERS])
        yield made


@pytest.fixture
def successor(store: SqlOffsetStore) -> Iterator[SqlOffsetStore]:
    """A store of another process in the same database."""
    with SqlOffsetStore(store.engine.url.render_as_string(hide_password=False)) as made:
        yield made


def results(store: SqlOffsetStore) -> list[int]:
    with store.engine.connect() as connection:
        return sorted(connection.scalars(select(RESULTS.c.message_offset)))


def write(store: SqlOffsetStore, batch: Sequence[Message]) -> None:
    """Store a batch as a consumer does."""
    with store.engine.begin() as connection, store.transaction(connection) as offsets:
        new = offsets.new_messages("etl", batch)
        if new:
            connection.execute(insert(RESULTS), [{"message_offset": e.offset()} for e in new])


def write_range(store: SqlOffsetStore, start: int, end: int) -> bool:
    """Store a batch as a foreachBatch function does."""
    with store.engine.begin() as connection, store.transaction(connection) as offsets:
        is_new = offsets.is_new_range(
            "etl", {ORDERS: (start, end), TopicPartition("orders", 1): (5, 5)}
        )
        if is_new:
            rows = [{"message_offset": each} for each in range(start, end)]
            connection.execute(insert(RESULTS), rows)
        return is_new


def test_messages_that_come_again_are_not_new(
    store: SqlOffsetStore, successor: SqlOffsetStore
) -> None:
    """A batch that is tried again, or read again by the next owner, in other portions."""
    write(store, messages(range(5)))
    write(store, messages(range(5)))
    successor.claim("etl", [ORDERS])
    write(successor, messages(range(3, 8)))
    write(successor, messages(range(2)))
    assert results(store) == list(range(8))
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(8)


def test_messages_of_a_log_that_was_cut_are_new(store: SqlOffsetStore) -> None:
    """After an unclean election, other messages have the offsets of those that were lost."""
    write(store, messages(range(5), epoch=1))
    for _ in range(2):
        write(store, [*messages(range(3), epoch=1), *messages(range(3, 5), epoch=2)])
        assert results(store) == [0, 1, 2, 3, 3, 4, 4]
        assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(5, "", 2)
    write(store, messages(range(2), epoch=3))
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(2, "", 3)


NO_CLAIM = cast("Claim", None)
ODD: dict[str, Any] = {
    # It may come after later ones, which would count as stored and be lost.
    "of an AckConsumer": AckMessage(Message(*ORDERS, offset=3), NO_CLAIM),
    # It has the offset of the next message, which would be passed over.
    "end of a partition": Message(*ORDERS, offset=3, error=KafkaError(-191)),
    "None": None,
    "text": "text",
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_messages_are_refused(store: SqlOffsetStore, odd: str) -> None:
    """The whole batch is refused, and nothing of it stored."""
    batch = [*messages(range(3)), ODD[odd]]
    with pytest.raises(InvalidValueError, match=r"messages .* is not one of a GroupConsumer"):
        store.run(lambda _, offsets: offsets.new_messages("etl", batch))
    assert store.fetch_offset("etl", *ORDERS) is None


def test_a_batch_that_was_rolled_back_cannot_be_passed_over(store: SqlOffsetStore) -> None:
    """Its rows are rolled back too; messages after it are refused until it is stored."""
    with store.engine.connect() as connection, store.transaction(connection) as offsets:
        offsets.new_messages("etl", messages(range(5)))
        connection.execute(insert(RESULTS), [{"message_offset": 3}])
        connection.rollback()
    assert store.fetch_offset("etl", *ORDERS) is None
    with pytest.raises(OffsetConflictError, match="orders-0 was read up to offset 5"):
        write(store, messages(range(5, 9)))
    write(store, messages(range(5)))
    write(store, messages(range(5, 9)))
    assert results(store) == list(range(9))
    # Nor can messages that are to be read again, as somebody has set the offset back.
    store.commit_offset("etl", *ORDERS, 2)
    with pytest.raises(OffsetConflictError, match="set back"):
        write(store, messages(range(9, 12)))


def test_a_former_owner_stores_nothing(store: SqlOffsetStore, successor: SqlOffsetStore) -> None:
    """Neither offsets nor rows, once another process has claimed the partition."""
    write(store, messages(range(2)))
    successor.claim("etl", [ORDERS])
    with pytest.raises(OffsetCommitError, match="etl/orders/0") as caught:
        write(store, messages(range(2, 4)))
    assert caught.value.code == "GENERATION_FENCED"
    with (
        pytest.raises(OffsetCommitError),
        store.engine.begin() as connection,
        store.transaction(connection) as offsets,
    ):
        offsets.commit_offsets("etl", {ORDERS: 9})
    assert results(store) == [0, 1]
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(2)


def test_a_mark_that_waits_for_a_transaction_does_not_take_it_back(
    store: SqlOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the first position, which a consumer commits before its first message is stored."""
    lock_rows = store._lock_rows

    def lock_later(*arguments: Any) -> Any:
        monkeypatch.setattr(store, "_lock_rows", lock_rows)
        write(store, messages(range(5)))
        return lock_rows(*arguments)

    monkeypatch.setattr(store, "_lock_rows", lock_later)
    store.commit("etl", {ORDERS: OffsetAndMetadata(0)})
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(5)


def test_two_at_once_store_a_message_once(store: SqlOffsetStore) -> None:
    """In several threads: one waits for the other, then finds nothing new."""
    batch = messages(range(100))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(write, store), [batch] * 4))
    assert results(store) == list(range(100))


def test_sqlite_is_locked_before_offsets_are_compared(tmp_path: Path) -> None:
    """Without the lock two processes could both find a batch new.  Reads do not wait for it."""
    url = f"sqlite:///{tmp_path}/locked.db?timeout=0.1"
    with SqlOffsetStore(url) as first, SqlOffsetStore(url, patience_s=0) as second:
        first.create_tables()
        with first.engine.connect() as connection, first.transaction(connection):
            with pytest.raises(OffsetCommitError, match="STORE_FAILED"):
                second.commit_offset("etl", *ORDERS, 1)
            assert second.fetch_offsets("etl") == {}
            connection.rollback()
        second.commit_offset("etl", *ORDERS, 1)


def test_a_batch_of_spark_is_stored_once(store: SqlOffsetStore) -> None:
    """Its ranges decide; one that does not begin at the store's end is refused, with the reason."""
    assert write_range(store, 10, 20)
    assert write_range(store, 20, 30)
    assert not write_range(store, 20, 30)
    assert not write_range(store, 10, 20)
    for start, end in ((25, 40), (35, 40)):
        with pytest.raises(OffsetConflictError, match=f"orders-0 from {start} .stored: 30"):
            write_range(store, start, end)
    assert not write_range(store, 30, 30)
    assert write_range(store, 30, 40)
    assert results(store) == list(range(10, 40))


def test_a_batch_with_state_is_stored_once(store: SqlOffsetStore) -> None:
    """Its number decides, for each checkpoint by itself; a rollback forgets it."""

    def is_new(checkpoint: str, batch_id: int) -> bool:
        return store.run(lambda _, offsets: offsets.is_new_batch("etl", checkpoint, batch_id))

    with store.engine.connect() as connection, store.transaction(connection) as offsets:
        assert offsets.is_new_batch("etl", "old", 0)  # and not committed
    assert [is_new("old", each) for each in (0, 0, 1, 2, 1)] == [True, False, True, True, False]
    assert is_new("new", 0)
    assert is_new("new", np.int64(2))
    assert [is_new("new", each) for each in (2, 3)] == [False, True]
    wrong: list[Any] = ["", None, Path("/new"), "/\ud800", "/\0", "x" * 513]
    for checkpoint in wrong:
        with pytest.raises(InvalidValueError, match="checkpoint"):
            is_new(checkpoint, 4)


def test_a_range_without_two_offsets_is_refused(store: SqlOffsetStore) -> None:
    """Before a database stores it in its own way; those of numpy are offsets."""
    wrong: list[Any] = [(-1, 5), ("0", "5"), (0, 2**63), (0, True), None, (0,), {0, 5}]
    with store.engine.connect() as connection, store.transaction(connection) as offsets:
        for ends in wrong:
            with pytest.raises(InvalidValueError, match="of orders-0"):
                offsets.is_new_range("etl", {ORDERS: ends})
    assert write_range(store, np.int64(0), np.int64(5))
    assert write_range(store, 5, 6)


@pytest.mark.parametrize("is_scoped", [False, True])
def test_a_session_of_the_orm_has_transactions_too(
    store: SqlOffsetStore, *, is_scoped: bool
) -> None:
    """Scoped ones are such as that of Flask; an engine, or None, is refused by name."""
    make: Any = scoped_session(sessionmaker(store.engine)) if is_scoped else Session(store.engine)
    for offset, end in ((None, make.rollback), (OffsetAndMetadata(4), make.commit)):
        with store.transaction(make) as offsets:
            offsets.commit_offsets("etl", {ORDERS: 4})
        end()
        assert store.fetch_offset("etl", *ORDERS) == offset
    make.close()
    odd: Any
    for odd in (store.engine, None):
        with (
            pytest.raises(InvalidValueError, match=r"connection '.*' is not one; give a Conn"),
            store.transaction(odd),
        ):
            pytest.fail("it was taken")


def test_offsets_are_rolled_back_to_a_savepoint_of_the_session(store: SqlOffsetStore) -> None:
    """A session makes it at its next use: the offsets were before it, the rows behind it."""
    with Session(store.engine) as session, store.transaction(session) as offsets:
        offsets.new_messages("etl", messages(range(3)))
        nested = session.begin_nested()
        new = offsets.new_messages("etl", messages(range(3, 6)))
        session.execute(insert(RESULTS), [{"message_offset": each.offset()} for each in new])
        nested.rollback()
        session.commit()
    assert results(store) == []
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(3)


def test_a_connection_without_transactions_is_refused(store: SqlOffsetStore) -> None:
    """Offsets and rows would be committed one after the other."""
    url = store.engine.url.render_as_string(hide_password=False)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with (
        pytest.raises(InvalidValueError, match="AUTOCOMMIT"),
        engine.connect() as connection,
        store.transaction(connection),
    ):
        pytest.fail("it was taken")
    with pytest.raises(InvalidValueError, match="AUTOCOMMIT"):
        SqlOffsetStore(engine).claim("etl", [ORDERS])  # nor would it lock rows
    engine.dispose()


class NotedError(Exception):
    """An error of the user's, with an attribute of the name of one of ours."""

    info = "about it"


@pytest.mark.parametrize(
    "error",
    [
        IntegrityError("INSERT", {}, Exception("duplicate key value in users_pkey")),
        NotedError(),
    ],
)
def test_a_mistake_of_the_user_is_not_tried_again(store: SqlOffsetStore, error: Exception) -> None:
    """Such as a key that is there already: it is raised at once."""
    tries = []

    def work(_: object, offsets: OffsetTransaction) -> None:
        offsets.commit_offsets("etl", {ORDERS: 4})
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        store.run(work)
    assert len(tries) == 1
    assert store.fetch_offset("etl", *ORDERS) is None


def test_work_is_tried_again(store: SqlOffsetStore) -> None:
    """As a whole, in a new transaction, where the database fails.

    Work that returns before it is done would be committed without its rows: it is refused.
    """
    tries = []

    def work(connection: Connection, offsets: OffsetTransaction) -> None:
        offsets.commit_offsets("etl", {ORDERS: 4})
        connection.execute(insert(RESULTS), [{"message_offset": 3}])
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("INSERT", {}, Exception("deadlock detected"))

    async def later(connection: Connection, offsets: OffsetTransaction) -> None:
        pass

    with pytest.raises(InvalidValueError, match=r"work .* returns before its work is done"):
        store.run(later)  # type: ignore[unused-coroutine]
    store.run(work)
    assert len(tries) == 2
    assert results(store) == [3]
    assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(4)
