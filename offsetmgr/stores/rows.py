"""The tables of a SQL offset store, and the statements on them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from offsetmgr.codes import STORE_FAILED, STORE_REFUSED
from offsetmgr.coordinator.base import Failure, one_line
from offsetmgr.errors import error_info
from offsetmgr.types import MAX_GROUP_CHARS, MAX_TOPIC_CHARS, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from offsetmgr.errors import OffsetManagerError

MAX_CHECKPOINT_CHARS: Final = 512


class StoredOffset(NamedTuple):
    """A partition's row."""

    offset: OffsetAndMetadata | None
    """None where nothing is committed yet."""
    generation: int
    """Number of claims so far."""


NO_ROW: Final = StoredOffset(None, 0)
"""The row of a partition that was never claimed or committed."""

TABLES: Final = sa.MetaData()

OFFSETS: Final = sa.Table(
    "offsetmgr_offsets",
    TABLES,
    sa.Column("group_id", sa.String(MAX_GROUP_CHARS), primary_key=True),
    sa.Column("topic", sa.String(MAX_TOPIC_CHARS), primary_key=True),
    sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger),  # null where nothing is committed yet
    sa.Column("metadata", sa.Text, nullable=False),
    sa.Column("leader_epoch", sa.Integer),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("committed_at", sa.DateTime(timezone=True)),
    sa.CheckConstraint("next_offset >= 0"),
)

BATCHES: Final = sa.Table(
    "offsetmgr_batches",
    TABLES,
    sa.Column("group_id", sa.String(MAX_GROUP_CHARS), primary_key=True),
    sa.Column("checkpoint_location", sa.String(MAX_CHECKPOINT_CHARS), primary_key=True),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
)

_OFFSET: Final = (OFFSETS.c.next_offset, OFFSETS.c.metadata, OFFSETS.c.leader_epoch)
_WHERE: Final = (OFFSETS.c.topic, OFFSETS.c.partition_id)
_OF_GROUP: Final = (
    sa.select(*_WHERE, OFFSETS.c.generation, *_OFFSET)
    .where(OFFSETS.c.group_id == sa.bindparam("group"))
    .order_by(*_WHERE)
)
_SOME: Final = _OF_GROUP.where(sa.tuple_(*_WHERE).in_(sa.bindparam("some", expanding=True)))
# Locked in one order, so that two processes wait for each other and do not deadlock.
_SOME_LOCKED: Final = _SOME.with_for_update()
_OF_PARTITION: Final = sa.update(OFFSETS).where(
    OFFSETS.c.group_id == sa.bindparam("group"),
    OFFSETS.c.topic == sa.bindparam("of_topic"),
    OFFSETS.c.partition_id == sa.bindparam("partition"),
)
_COMMIT: Final = _OF_PARTITION.values({each: sa.bindparam(each.name) for each in _OFFSET}).values(
    committed_at=sa.func.now()
)
_CLAIM: Final = _OF_PARTITION.values(generation=OFFSETS.c.generation + 1)
_NO_TABLE: Final = re.compile(r"no such table|does not exist|doesn't exist")

_AT_ONCE: Final = 1_000
"""Partitions of one statement: databases have a limit of parameters."""


def begin(connection: sa.Connection) -> None:
    """Begin a transaction that may lock rows.

    SQLite locks no rows, and its driver begins only before the first change: too late to compare.
    """
    raw = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite" and not (raw and raw.in_transaction):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def read(
    connection: sa.Connection,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    lock: bool = False,
) -> dict[TopicPartition, StoredOffset]:
    """Return the rows of ``partitions`` that exist, sorted; all of the group where None."""
    if partitions is None:
        return _rows(connection.execute(_OF_GROUP, {"group": group}))
    wanted = sorted(map(tuple, partitions))
    found: dict[TopicPartition, StoredOffset] = {}
    for first in range(0, len(wanted), _AT_ONCE):
        some = {"group": group, "some": wanted[first : first + _AT_ONCE]}
        found |= _rows(connection.execute(_SOME_LOCKED if lock else _SOME, some))
    return found


def lock(
    connection: sa.Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Return the rows of ``partitions``, locked; those that do not exist are made."""
    wanted = list(partitions)
    found = read(connection, group, wanted, lock=True)
    missing = sorted(where for where in wanted if where not in found)
    if missing:
        row = {"group_id": group, "metadata": "", "generation": 0}
        new = [{**row, "topic": each.topic, "partition_id": each.partition} for each in missing]
        connection.execute(sa.insert(OFFSETS), new)
    return found | dict.fromkeys(missing, NO_ROW)


def write(
    connection: sa.Connection, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit ``offsets`` over locked rows."""
    changes = [
        {
            **_key(group, where),
            "next_offset": offset.offset,
            "metadata": offset.metadata,
            "leader_epoch": offset.leader_epoch,
        }
        for where, offset in offsets.items()
    ]
    if changes:
        connection.execute(_COMMIT, changes)


def raise_generations(
    connection: sa.Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Raise the generations; return the rows after that."""
    found = lock(connection, group, partitions)
    if found:
        connection.execute(_CLAIM, [_key(group, where) for where in found])
    return {where: row._replace(generation=row.generation + 1) for where, row in found.items()}


def failure_of(error: exc.SQLAlchemyError) -> Failure:
    """Return the meaning of an error; its text has no values of the statement."""
    whole = str(error.orig if isinstance(error, exc.DBAPIError) else error)
    text, ours = one_line(whole), "offsetmgr_" in whole
    if ours and _NO_TABLE.search(whole):
        advice = f"{text}; create the store's tables: offsetmgr store init"
        return Failure(error_info(STORE_REFUSED), advice)
    passing = isinstance(error, (exc.OperationalError, exc.InterfaceError))
    # Two processes insert one row, which the second one finds when it tries again.
    passing |= ours and isinstance(error, exc.IntegrityError)
    lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    info = error_info(STORE_FAILED if passing or lost else STORE_REFUSED)
    return Failure(info, f"{info.hint}: {text}")


@contextmanager
def raised_as(kind: Callable[..., OffsetManagerError], *args: object) -> Iterator[None]:
    """Raise errors of the database as ``kind`` of ``args`` and the failure's parts."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise kind(*args, *failure_of(error)) from error


def _rows(found: Iterable[Any]) -> dict[TopicPartition, StoredOffset]:
    return {
        TopicPartition(topic, partition): StoredOffset(
            None if offset[0] is None else OffsetAndMetadata(*offset), generation
        )
        for topic, partition, generation, *offset in found
    }


def _key(group: str, where: TopicPartition) -> dict[str, object]:
    return {"group": group, "of_topic": where.topic, "partition": where.partition}
