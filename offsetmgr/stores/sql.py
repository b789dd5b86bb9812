"""The offset store in a database, through SQLAlchemy."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import create_engine, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetStoreError,
)
from offsetmgr.stores import rows
from offsetmgr.stores.base import OffsetStore
from offsetmgr.stores.transaction import Claims, OffsetTransaction
from offsetmgr.types import ManagerKey, check_group, check_timeout, check_topic_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection, Engine

    from offsetmgr.stores.rows import StoredOffset
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

CONNECT_S: Final = 10
"""Time for a new connection to PostgreSQL, unless the URL has a ``connect_timeout``."""

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_PSYCOPG: Final = "postgresql+psycopg"

_T = TypeVar("_T")


class SqlOffsetStore(OffsetStore):
    """Keeps offsets in the tables ``offsetmgr_offsets`` and ``offsetmgr_batches`` of a database.

    ``database`` is a URL of SQLAlchemy's, or an engine, which ``close`` leaves open.  What the
    database fails to do is tried again for ``patience_s`` seconds.  Raises InvalidValueError for a
    bad URL.
    """

    def __init__(self, database: str | Engine, *, patience_s: float = 10.0) -> None:
        self._patience_s = check_timeout(patience_s, "patience_s")
        self._owned = isinstance(database, str)
        self.engine: Engine = _open_engine(database) if isinstance(database, str) else database
        """SQLAlchemy's engine, for transactions of the user's."""
        self._claims = Claims()

    @property
    def url(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)

    def create_tables(self) -> None:
        """Create the tables where they do not exist."""
        with rows.raised_as(OffsetStoreError, "creation of the store's tables"):
            rows.TABLES.create_all(self.engine)

    def table_text(self) -> str:
        """Return the statements of ``create_tables``, for a migration; connects to nothing."""
        texts = [str(CreateTable(each).compile(self.engine)) for each in rows.TABLES.sorted_tables]
        return "".join(f"{text.strip()};\n" for text in texts)

    @contextmanager
    def transaction(self, connection: Connection | Session) -> Iterator[OffsetTransaction]:
        """Let the transaction of ``connection`` commit offsets together with the user's rows.

        Nothing is committed here: if the transaction is rolled back, its offsets are as before.
        Raises InvalidValueError where the connection commits each statement by itself.
        """
        bound = connection.connection() if isinstance(connection, Session) else connection
        raw = bound.connection.dbapi_connection
        if raw is not None and bound.dialect.detect_autocommit_setting(raw):
            fix = "use one without isolation_level='AUTOCOMMIT'"
            raise InvalidValueError("connection", "AUTOCOMMIT", "has no transactions", fix)
        rows.begin(bound)
        yield OffsetTransaction(bound, self._claims)

    def run(self, work: Callable[[Connection, OffsetTransaction], _T]) -> _T:
        """Return what ``work`` returns, in a transaction of its own that is committed.

        Where the database fails, ``work`` is called again in a new one, for ``patience_s``; then
        the failure is raised.
        """

        def with_offsets(connection: Connection) -> _T:
            with self.transaction(connection) as offsets:
                return work(connection, offsets)

        return self._retried(with_offsets)

    def groups(self) -> list[str]:
        query = select(rows.OFFSETS.c.group_id).where(rows.OFFSETS.c.next_offset.is_not(None))
        with rows.raised_as(OffsetStoreError, "list of groups"):
            found = self._retried(lambda connection: connection.scalars(query.distinct()).all())
        return sorted(found)

    def check(self) -> None:
        """Raise OffsetStoreError if the store cannot be used now."""
        with (
            rows.raised_as(OffsetStoreError, "check of the store"),
            self.engine.connect() as connection,
        ):
            connection.execute(select(rows.OFFSETS).limit(1)).all()

    def close(self) -> None:
        if self._owned:
            self.engine.dispose()

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Take partitions over from whoever has them; return the committed offset of each.

        From now on the database refuses the commits of their former owner.  A consumer with this
        store as its ``offsets`` claims what it is assigned.
        """
        wanted = check_topic_partitions(partitions)
        if not wanted:
            return {}
        raised = partial(rows.raise_generations, group=check_group(group), partitions=wanted)
        with rows.raised_as(OffsetFetchError, group, *wanted[0], None):
            found = self._retried(raised)
        self._claims.take(group, found)
        return {where: found[where].offset for where in wanted}

    def claim_new(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Claim those of ``partitions`` that this store has never claimed."""
        new = [each for each in partitions if ManagerKey(group, *each) not in self._claims]
        self.claim(group, new)

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit a consumer's marks; those of partitions that transactions commit are left out."""
        marked = {
            (where.topic, where.partition): offset
            for where, offset in offsets.items()
            if not self._claims.in_transactions(ManagerKey(group, *where))
        }
        self.commit_offsets(group, marked)

    def release(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: a transaction may still be open, and the next owner claims for itself."""

    def try_commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetCommitError]:
        def work(connection: Connection) -> dict[TopicPartition, OffsetCommitError]:
            found = rows.lock(connection, group, offsets)
            refused = self._claims.refusals(group, offsets, found)
            taken = {where: each for where, each in offsets.items() if where not in refused}
            rows.write(connection, group, taken)
            return refused

        try:
            return self._retried(work) if offsets else {}
        except SQLAlchemyError as error:
            failure = rows.failure_of(error)
            return {
                where: OffsetCommitError(group, *where, each.offset, *failure)
                for where, each in offsets.items()
            }

    def _fetch(
        self, group: str, partitions: list[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        def found() -> dict[TopicPartition, StoredOffset]:
            return self._retried(partial(rows.read, group=group, partitions=partitions))

        if partitions is None:
            with rows.raised_as(OffsetStoreError, f"committed offsets of group {group}"):
                return {where: row.offset for where, row in found().items() if row.offset}
        if not partitions:
            return {}
        with rows.raised_as(OffsetFetchError, group, *partitions[0], None):
            known = found()
        return {where: known.get(where, rows.NO_ROW).offset for where in partitions}

    def _retried(self, work: Callable[[Connection], _T]) -> _T:
        deadline = time.monotonic() + self._patience_s
        pause_s = _PAUSE_S
        while True:
            try:
                with self.engine.begin() as connection:
                    rows.begin(connection)
                    return work(connection)
            except (SQLAlchemyError, CoordinatorError, OffsetStoreError) as error:
                info = (
                    rows.failure_of(error).info
                    if isinstance(error, SQLAlchemyError)
                    else error.info
                )
                if not info.retriable or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _open_engine(url: str) -> Engine:
    fix = "give one such as postgresql+psycopg://user@host/database or sqlite:///offsets.db"
    try:
        parsed = make_url(url)
        if parsed.drivername in {"postgresql", "postgres"}:
            parsed = parsed.set(drivername=_PSYCOPG)
        options: dict[str, Any] = {}
        if parsed.drivername == _PSYCOPG and "connect_timeout" not in parsed.query:
            options["connect_args"] = {"connect_timeout": CONNECT_S}
        engine = create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError, ValueError):
        # What cannot be parsed may hold a password.
        raise InvalidValueError("database", "***", "is no URL of a database", fix) from None
    if engine.dialect.name == "mssql":
        raise InvalidValueError("database", "mssql", "has no SELECT ... FOR UPDATE", fix)
    return engine
