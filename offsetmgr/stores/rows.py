"""The tables of a SQL offset store, and the statements on them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.sql import bindparam, func

from offsetmgr.codes import STORE_FAILED, STORE_REFUSED
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import one_line
from offsetmgr.errors import error_info
from offsetmgr.stores.base import NO_ROW, StoredOffset
from offsetmgr.types import MAX_GROUP_CHARS, MAX_TOPIC_CHARS, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection

    from offsetmgr.errors import OffsetManagerError

MAX_CHECKPOINT_CHARS: Final = 512

TABLES: Final = MetaData()

OFFSETS: Final = Table(
    "offsetmgr_offsets",
    TABLES,
    Column("group_id", String(MAX_GROUP_CHARS), primary_key=True),
    Column("topic", String(MAX_TOPIC_CHARS), primary_key=True),
    Column("partition_id", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger),  # null where nothing is committed yet
    Column("metadata", Text, nullable=False),
    Column("leader_epoch", Integer),
    Column("generation", BigInteger, nullable=False),
    Column("committed_at", DateTime(timezone=True)),
    CheckConstraint("next_offset >= 0"),
)

BATCHES: Final = Table(
    "offsetmgr_batches",
    TABLES,
    Column("group_id", String(MAX_GROUP_CHARS), primary_key=True),
    Column("checkpoint_location", String(MAX_CHECKPOINT_CHARS), primary_key=True),
    Column("batch_id", BigInteger, nullable=False),
)

_OFFSET: Final = (OFFSETS.c.next_offset, OFFSETS.c.metadata, OFFSETS.c.leader_epoch)
_WHERE: Final = (OFFSETS.c.topic, OFFSETS.c.partition_id)
_UPDATE: Final = update(OFFSETS).where(
    OFFSETS.c.group_id == bindparam("group"),
    OFFSETS.c.topic == bindparam("of_topic"),
    OFFSETS.c.partition_id == bindparam("partition"),
)
_NO_TABLE: Final = re.compile(r"no such table|does not exist|doesn't exist")

_AT_ONCE: Final = 1_000
"""Partitions of one statement: databases have a limit of parameters."""


def begin(connection: Connection) -> None:
    """Begin a transaction that may lock rows.

    SQLite locks no rows, and its driver begins only before the first change: too late to compare.
    """
    raw = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite" and not (raw and raw.in_transaction):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def read(
    connection: Connection,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    lock: bool = False,
) -> dict[TopicPartition, StoredOffset]:
    """Return the rows of ``partitions`` that exist, sorted; all of the group where None."""
    query = select(*_WHERE, OFFSETS.c.generation, *_OFFSET).where(OFFSETS.c.group_id == group)
    # Locked in one order, so that two processes wait for each other and do not deadlock.
    query = query.order_by(*_WHERE).with_for_update() if lock else query.order_by(*_WHERE)
    queries = [query]
    if partitions is not None:
        wanted = sorted(map(tuple, partitions))
        some = [wanted[first : first + _AT_ONCE] for first in range(0, len(wanted), _AT_ONCE)]
        queries = [query.where(tuple_(*_WHERE).in_(each)) for each in some]
    return {
        TopicPartition(topic, partition): StoredOffset(
            None if offset[0] is None else OffsetAndMetadata(*offset), generation
        )
        for each in queries
        for topic, partition, generation, *offset in connection.execute(each)
    }


def lock(
    connection: Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Return the rows of ``partitions``, locked; those that do not exist are made."""
    wanted = list(partitions)
    found = read(connection, group, wanted, lock=True)
    missing = [where for where in wanted if where not in found]
    if missing:
        row = {"group_id": group, "metadata": "", "generation": 0}
        new = [{**row, "topic": each.topic, "partition_id": each.partition} for each in missing]
        connection.execute(insert(OFFSETS), new)
    return found | dict.fromkeys(missing, NO_ROW)


def write(
    connection: Connection, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit ``offsets`` over locked rows."""
    names = [column.name for column in _OFFSET]
    rows = [
        {**_key(group, where), **dict(zip(names, offset, strict=True))}
        for where, offset in offsets.items()
    ]
    if rows:
        bound = _UPDATE.values({name: bindparam(name) for name in names})
        connection.execute(bound.values(committed_at=func.now()), rows)


def raise_generations(
    connection: Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Raise the generations; return the rows after that."""
    found = lock(connection, group, partitions)
    if found:
        raised = _UPDATE.values(generation=OFFSETS.c.generation + 1)
        connection.execute(raised, [_key(group, where) for where in found])
    return {where: row._replace(generation=row.generation + 1) for where, row in found.items()}


def failure_of(error: SQLAlchemyError) -> Failure:
    """Return the meaning of an error; its text has no values of the statement."""
    text = one_line(str(error.orig if isinstance(error, DBAPIError) else error))
    if "offsetmgr_" in text and _NO_TABLE.search(text):
        advice = f"{text}; create the store's tables: offsetmgr store init"
        return Failure(error_info(STORE_REFUSED), advice)
    # IntegrityError: two processes insert one row, which the second one finds when it tries again.
    passing = isinstance(error, (OperationalError, InterfaceError, IntegrityError))
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    info = error_info(STORE_FAILED if passing or lost else STORE_REFUSED)
    return Failure(info, f"{info.hint}: {text}")


@contextmanager
def raised_as(kind: Callable[..., OffsetManagerError], *args: object) -> Iterator[None]:
    """Raise errors of the database as ``kind`` of ``args`` and the failure's parts."""
    try:
        yield
    except SQLAlchemyError as error:
        raise kind(*args, *failure_of(error)) from error


def _key(group: str, where: TopicPartition) -> dict[str, object]:
    return {"group": group, "of_topic": where.topic, "partition": where.partition}
