"""Kafka as an offset store, and the claims of databases; see test_store_model.py, too."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url, text

from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetStoreError,
)
from offsetmgr.kafka.cluster import ClusterReader, GroupListing, GroupListings
from offsetmgr.kafka.errors import failure_of, request_error
from offsetmgr.stores import open_store
from offsetmgr.stores.broker import BrokerOffsetStore
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata, TopicPartition
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.postgres import PgBouncer, Postgres


DATABASES = ["sqlite", "postgresql", "pgbouncer"]


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database; ``pgbouncer`` is PostgreSQL behind a pooler."""
    if kind == "postgresql":
        return str(request.getfixturevalue("database"))
    if kind == "pgbouncer":
        pooler: PgBouncer = request.getfixturevalue("pgbouncer")
        return pooler.url_of(request.getfixturevalue("database"))
    path: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{path}/offsets.db"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of each database in turn, with tables."""
    found = url_of(request.param, request)
    with SqlOffsetStore(found) as store:
        store.create_tables()
    return found


def test_kafka_is_a_store_as_well(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """With metadata and leader epoch; lower offsets too; nothing committed is None."""
    topic = new_topic(3)
    with BrokerOffsetStore(kafka.bootstrap_servers, timeout_s=WAIT_S) as store:
        assert store.fetch_offset(group, topic, 0) is None
        assert store.fetch_offsets(group) == {}
        assert group not in store.groups()
        store.commit_offset(group, topic, 0, 42)
        store.commit_offset(group, topic, 0, 7)
        full = OffsetAndMetadata(MAX_OFFSET, "größer ✓", 5)
        store.commit_offsets(group, {(topic, 1): full, (topic, 2): 0})
        assert store.fetch_offsets(group) == {
            (topic, 0): OffsetAndMetadata(7),
            (topic, 1): full,
            (topic, 2): OffsetAndMetadata(0),
        }
        asked = [(topic, 2), (topic, 1)]
        assert store.fetch_offsets(group, asked) == {
            (topic, 2): OffsetAndMetadata(0),
            (topic, 1): full,
        }
        assert group in store.groups()


def test_a_list_of_groups_is_never_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: an answer without the groups of a silent broker.  Connect's have no offsets."""
    silent = request_error("list of consumer groups", failure_of(-195))
    found = [
        GroupListing("connect-a", "Stable", "connect"),
        GroupListing("etl", "Empty", "classic"),
    ]
    answers = [GroupListings(found), GroupListings(found, (silent,))]
    monkeypatch.setattr(ClusterReader, "groups", lambda _: answers.pop())
    with open_store("kafka://127.0.0.1:1") as store:
        with pytest.raises(KafkaRequestError, match="list of consumer groups"):
            store.groups()
        assert store.groups() == ["etl"]


def test_an_odd_answer_of_a_store_is_refused_by_name() -> None:
    """A database that another program writes to may hold anything."""
    where = TopicPartition("orders", 0)
    with open_store("memory:") as store:
        for position, field in (
            (OffsetAndMetadata(-1), "offset of orders-0 -1 is negative"),
            (OffsetAndMetadata(5, b"text"), "metadata of orders-0 b'text' is not text"),  # type: ignore[arg-type]
            (OffsetAndMetadata(5, "", "9"), "leader epoch of orders-0 '9' is a str"),  # type: ignore[arg-type]
            (OffsetAndMetadata(5, "", 2**40), "leader epoch of orders-0 .* is too large"),
        ):
            store.commit("etl", {where: position})
            with pytest.raises(InvalidValueError, match=field):
                store.fetch_offsets("etl", [where])
        store.commit("etl", {where: OffsetAndMetadata(5, None, -1)})  # type: ignore[arg-type]
        assert store.fetch_offset("etl", *where) == OffsetAndMetadata(5)


def test_many_partitions_are_committed_at_once(url: str) -> None:
    """More than the 1,000 of one statement."""
    offsets = {TopicPartition("wide", number): OffsetAndMetadata(number) for number in range(1_100)}
    with SqlOffsetStore(url) as store:
        store.claim("g", offsets)
        store.commit("g", offsets)
        assert store.fetch_offsets("g") == offsets


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_any_encoding_keeps_offsets(
    encoding: str, unique_name: str, postgres: Postgres
) -> None:
    """The kind: text that comes as bytes, and one text that refuses its whole commit."""
    with SqlOffsetStore(postgres.create(unique_name, encoding)) as store:
        store.create_tables()
        offsets = {TopicPartition("orders", each): OffsetAndMetadata(each) for each in range(9)}
        odd = TopicPartition("orders", 4)
        offsets[odd] = OffsetAndMetadata(4, "日本")
        if encoding == "LATIN1":
            with pytest.raises(
                OffsetCommitError, match=r"etl/orders/4 .*no equivalent in encoding"
            ):
                store.commit("etl", offsets)
            del offsets[odd]
        store.commit("etl", offsets)
        assert store.fetch_offsets("etl") == offsets


def test_a_claim_that_a_fail_over_has_lost_still_counts(url: str) -> None:
    """Also in a restored database: its last owner goes on, the one before is refused."""
    where = TopicPartition("orders", 0)
    with ExitStack() as stack:
        stores = [stack.enter_context(SqlOffsetStore(url)) for _ in range(3)]
        for store in stores[:2]:
            store.claim("etl", [where])
        with stores[0].engine.begin() as connection:
            connection.execute(text("UPDATE offsetmgr_offsets SET generation = 1"))
        stores[1].commit_offset("etl", *where, 20)
        for newer in stores[1:]:
            with pytest.raises(OffsetCommitError, match="GENERATION_FENCED"):
                stores[0].commit_offset("etl", *where, 10)
            newer.claim("etl", [where])
        with pytest.raises(OffsetCommitError, match="its generation is 4, this one has 3"):
            stores[1].commit_offset("etl", *where, 30)
        assert stores[2].fetch_offset("etl", *where) == OffsetAndMetadata(20)


def test_one_of_many_claimers_has_the_partition(url: str) -> None:
    """However many claim at once: all but the last one are refused from then on."""
    where = TopicPartition("orders", 0)
    with ExitStack() as stack:
        stores = [stack.enter_context(SqlOffsetStore(url)) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda each: each.claim("etl", [where]), stores))
        committed = []
        for number, each in enumerate(stores):
            try:
                each.commit("etl", {where: OffsetAndMetadata(number)})
            except OffsetCommitError:
                continue
            committed.append(OffsetAndMetadata(number))
        assert committed == [stores[0].fetch_offset("etl", *where)]


@pytest.mark.parametrize("kind", DATABASES)
def test_several_processes_create_the_tables_at_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """As replicas do at their start; all but one failed, for the tables were there already."""
    url, ready = url_of(kind, request), threading.Barrier(6)

    def create(_number: int) -> None:
        with SqlOffsetStore(url) as store:
            store.engine.connect().close()
            ready.wait()
            store.create_tables()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(create, range(6)))


def test_a_lost_connection_is_made_again(postgres: Postgres, database: str) -> None:
    """A failed request is tried again: the caller notices nothing."""
    with SqlOffsetStore(database) as store, postgres.connect() as past:
        store.create_tables()
        store.commit_offset("etl", "orders", 0, 1)
        past.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [database.rpartition("/")[2]],
        )
        store.commit_offset("etl", "orders", 0, 2)
        assert store.fetch_offset("etl", "orders", 0) == OffsetAndMetadata(2)


def test_the_child_of_a_fork_has_connections_of_its_own(database: str) -> None:
    """The kind: two processes that read each other's answers from one connection."""
    with SqlOffsetStore(database) as store:
        store.create_tables()

        def commit(partition: int) -> None:
            for offset in range(50):
                store.commit_offset("etl", "orders", partition, offset)
                assert store.fetch_offset("etl", "orders", partition) == (offset, "", None)

        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a guard, not a measure
            with suppress(BaseException):
                commit(1)
                os._exit(0)
            os._exit(1)
        commit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_database_that_stays_away_is_an_error() -> None:
    """After the given time; the error names the partition, and no password."""
    with SqlOffsetStore("postgresql://me:hush@127.0.0.1:1/none", patience_s=0.3) as store:
        with pytest.raises(OffsetCommitError, match=r"etl/orders/0 at offset 1.*STORE_FAILED") as c:
            store.commit_offset("etl", "orders", 0, 1)
        with pytest.raises(OffsetFetchError, match=r"etl/orders/0.*STORE_FAILED"):
            store.fetch_offset("etl", "orders", 0)
        with pytest.raises(OffsetStoreError, match="group etl"):
            store.fetch_offsets("etl")
        assert c.value.retriable
        assert "hush" not in f"{c.value!r} {store.url}"


def test_a_file_of_sqlite_that_cannot_be_written_is_not_tried_again(tmp_path: Path) -> None:
    """It is not called a network that does not answer."""
    path = tmp_path / "offsets.db"
    with SqlOffsetStore(f"sqlite:///{path}") as store:
        store.create_tables()
    for url, problem in (
        (f"sqlite:///file:{path}?mode=ro&uri=true", "attempt to write a readonly database"),
        (f"sqlite:///{tmp_path}/missing/offsets.db", "unable to open database file"),
    ):
        with SqlOffsetStore(url, patience_s=60) as store:
            with pytest.raises(OffsetCommitError, match=problem) as caught:
                store.commit_offset("etl", "orders", 0, 1)
            assert caught.value.code == "STORE_REFUSED"


def test_a_file_of_sqlite_that_was_deleted_is_not_written(tmp_path: Path) -> None:
    """SQLite goes on in the deleted file, in WAL mode without an error."""
    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db") as store:
        store.create_tables()
        with store.engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        store.commit_offset("etl", "orders", 0, 1)
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(OffsetCommitError, match="offsetmgr store init"):
            store.commit_offset("etl", "orders", 0, 2)


@pytest.mark.parametrize("kind", DATABASES)
def test_missing_tables_are_named(kind: str, request: pytest.FixtureRequest) -> None:
    """With the command that makes them, at once."""
    with open_store(url_of(kind, request)) as store:
        with pytest.raises(OffsetCommitError, match="offsetmgr store init") as caught:
            store.commit_offset("etl", "orders", 0, 1)
        assert caught.value.code == "STORE_REFUSED"
        assert isinstance(store, SqlOffsetStore)
        with pytest.raises(OffsetStoreError, match="offsetmgr store init"):
            store.check()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "offsets.db",
        "nonsense://host/db",
        "postgresql://host:port/db",
        "mssql+pyodbc://h",
        "sqlite://",  # each thread would have a database of its own
        "sqlite:///:memory:",
        "sqlite:///a%00b",
    ],
)
def test_bad_urls_are_refused(url: str) -> None:
    """With an example of a good one."""
    with pytest.raises(
        InvalidValueError, match=r"such as (postgresql|sqlite)|package pyodbc; inst"
    ):
        open_store(url)
    with pytest.raises(InvalidValueError, match="database 'object' is not an engine"):
        SqlOffsetStore(object())  # type: ignore[arg-type]


def test_a_refused_login_is_named_and_not_tried_again(database: str) -> None:
    """A wrong user, a missing database or right is not called a database that does not answer."""
    with SqlOffsetStore(database) as store:
        store.create_tables()
        with store.engine.begin() as connection:
            connection.execute(text("DROP ROLE IF EXISTS rightless"))
            connection.execute(text("CREATE ROLE rightless LOGIN"))
    url = make_url(database)
    wrong = {
        'refuses the login: role "nobody" does not exist; check user, password': url.set(
            username="nobody"
        ),
        'refuses the login: database "gone" does not exist; check user': url.set(database="gone"),
        "check its tables and rights: .*permission denied": url.set(username="rightless"),
    }
    for message, odd in wrong.items():
        with SqlOffsetStore(odd.render_as_string(False), patience_s=0) as store:  # noqa: FBT003
            with pytest.raises(OffsetStoreError, match=message) as raised:
                store.fetch_offsets("etl")
            assert not raised.value.retriable
