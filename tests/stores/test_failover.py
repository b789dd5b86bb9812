"""Databases that fail over, and poolers before them: retried on a fresh connection."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, exc, text

from offsetmgr.errors import OffsetCommitError
from offsetmgr.stores.database import failure_of
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from offsetmgr.stores.sql import OffsetTransaction
    from tests.postgres import PgBouncer, Postgres

ORDERS = TopicPartition("orders", 0)
READ_ONLY = "default_transaction_read_only"


def demote_all(store: SqlOffsetStore) -> None:
    """Make every session of the pool read-only, as those to a demoted server are."""
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(store.engine.connect())
            connection.execute(text(f"SET {READ_ONLY} = on"))
            connection.commit()


def test_connections_to_a_demoted_server_are_dropped(database: str) -> None:
    """The caller notices nothing, and no session of the pool is of that server any more."""

    def work(connection: Connection, offsets: OffsetTransaction) -> None:
        offsets.commit_offsets("etl", {ORDERS: 4})
        connection.execute(text("CREATE TABLE results (value text)"))

    with SqlOffsetStore(database) as store:
        store.create_tables()
        demote_all(store)
        store.claim("etl", [ORDERS])
        with ExitStack() as stack:
            found = [stack.enter_context(store.engine.connect()) for _ in range(4)]
            settings = {each.scalar(text(f"SHOW {READ_ONLY}")) for each in found}
        assert settings == {"off"}
        demote_all(store)
        store.run(work)
        assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(4)


def test_a_fail_over_is_waited_for(database: str, postgres: Postgres) -> None:
    """While all sessions are read-only, for as long as ``patience_s``."""
    refused = threading.Event()
    name = database.rpartition("/")[2]
    with SqlOffsetStore(database, patience_s=60) as store, postgres.connect() as operator:
        store.create_tables()
        store.engine.dispose()
        event.listen(store.engine, "handle_error", lambda _: refused.set())
        operator.execute(f'ALTER DATABASE "{name}" SET {READ_ONLY} = on'.encode())
        with SqlOffsetStore(database, patience_s=0) as impatient:
            with pytest.raises(OffsetCommitError, match="STORE_FAILED") as caught:
                impatient.commit_offset("etl", *ORDERS, 1)
            assert caught.value.retriable
        thread = threading.Thread(target=store.commit_offset, args=("etl", *ORDERS, 4))
        thread.start()
        assert refused.wait(60)
        operator.execute(f'ALTER DATABASE "{name}" RESET {READ_ONLY}'.encode())
        thread.join(60)
        assert store.fetch_offset("etl", *ORDERS) == OffsetAndMetadata(4)


def test_a_vanished_server_is_left_within_seconds(database: str) -> None:
    """The kind: a wait for an answer that nobody will send, which Linux ends after two hours.

    The URL's own settings count; a caller with less patience has shorter limits.
    """
    for url, patience_s, expected_ms in (
        (database, 60, 10_000),
        (database, 1.5, 2_000),
        (f"{database}?tcp_user_timeout=3000", 60, 3_000),
    ):
        with (
            SqlOffsetStore(url, patience_s=patience_s) as store,
            store.engine.connect() as connection,
        ):
            raw: Any = connection.connection.dbapi_connection
            with socket.socket(fileno=os.dup(raw.fileno())) as link:
                assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected_ms
                assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_a_pooler_may_change_the_session_at_each_transaction(
    database: str, pgbouncer: PgBouncer
) -> None:
    """No statement is prepared in one session and expected in another."""
    url = pgbouncer.url_of(database)

    def commit(group: str) -> None:
        with SqlOffsetStore(url, patience_s=0) as store:
            for offset in range(20):
                store.commit_offset(group, *ORDERS, offset)
                assert store.fetch_offset(group, *ORDERS) == (offset, "", None)

    with SqlOffsetStore(url) as store:
        store.create_tables()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(commit, "abcdef"))


class DriverError(Exception):
    """An error of a driver, with the SQLSTATE that PostgreSQL gives it."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("words of the server, in its own language")
        self.sqlstate = sqlstate


OURS = "INSERT INTO offsetmgr_offsets"
USERS = "INSERT INTO mail"


@pytest.mark.parametrize(
    ("kind", "sqlstate", "statement", "retriable"),
    [
        (exc.InternalError, "25006", OURS, True),  # read-only
        (exc.InternalError, "25P03", USERS, True),  # the idle transaction was ended
        (exc.OperationalError, "40P01", USERS, True),  # deadlock
        (exc.OperationalError, "40001", OURS, True),  # serialisation
        (exc.OperationalError, "53300", OURS, True),  # too many connections
        (exc.OperationalError, "55P03", OURS, True),  # a lock was not had in time
        (exc.OperationalError, "57P01", OURS, True),  # the server stops
        (exc.OperationalError, "57P03", OURS, True),  # the server starts
        (exc.OperationalError, "57014", OURS, True),  # statement_timeout
        (exc.OperationalError, "08006", USERS, True),  # the connection broke
        (exc.ProgrammingError, "26000", OURS, True),  # prepared in another session
        (exc.ProgrammingError, "42P05", OURS, True),
        (exc.OperationalError, None, OURS, True),  # no connection
        (exc.IntegrityError, "23505", OURS, True),  # two processes insert one row
        (exc.IntegrityError, "23505", USERS, False),
        (exc.IntegrityError, "23514", OURS, False),
        (exc.ProgrammingError, "42501", OURS, False),  # no right
        (exc.ProgrammingError, "42P01", OURS, False),  # no table
        (exc.OperationalError, "54000", USERS, False),  # too complex: an operational error, too
        (exc.DataError, "22003", USERS, False),
    ],
)
def test_the_sqlstate_decides(
    kind: type[exc.DBAPIError],
    sqlstate: str | None,
    statement: str,
    retriable: bool,  # noqa: FBT001
) -> None:
    """Not the text, which has the language of the server, nor the class of the driver's error."""
    failure = failure_of(kind(statement, {}, DriverError(sqlstate)))
    assert failure.info.retriable == retriable
    assert ("offsetmgr store init" in failure.detail) == (sqlstate == "42P01")


def test_an_exhausted_pool_is_retried() -> None:
    """All connections are in use: one may be free soon."""
    assert failure_of(exc.TimeoutError("QueuePool limit of size 5 overflow 10")).info.retriable
