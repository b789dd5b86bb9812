"""The offset store in a database, through SQLAlchemy, and offsets in the transactions of users.

A transaction that commits the offsets of its results makes them exactly once.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from offsetmgr.backoff import Backoff
from offsetmgr.codes import GENERATION_FENCED
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    InvalidValueError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetStoreError,
    error_info,
    listed,
)
from offsetmgr.extras import naming_extra
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.logs import SafeLogger
from offsetmgr.stores.base import OffsetStore, in_halves, offer_topic_ids, passes_later, raise_for
from offsetmgr.text import masked_url
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    MAX_TOPIC_CHARS,
    OffsetAndMetadata,
    TopicPartition,
    check_callable,
    check_group,
    check_list,
    check_mapping,
    check_offset,
    check_offsets,
    check_timeout,
    check_topic_partition,
    check_topic_partitions,
)

with naming_extra(__name__):
    import sqlalchemy as sa
    from confluent_kafka import Message
    from sqlalchemy import exc
    from sqlalchemy.schema import CreateTable

    from offsetmgr.stores.database import failure_of, leave_lost_connections, open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session, scoped_session

    _Bound: TypeAlias = Connection | Session | scoped_session[Session]

MAX_CHECKPOINT_CHARS: Final = 512

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_AT_ONCE: Final = 1_000  # partitions of one statement: databases have a limit of parameters
_MAX_ID_CHARS: Final = 64

_T = TypeVar("_T")

log = SafeLogger("offsetmgr.stores")


class StoredOffset(NamedTuple):
    """A partition's row; its fields are columns."""

    next_offset: int | None = None
    """None where nothing is committed yet."""
    metadata: str = ""
    leader_epoch: int | None = None
    generation: int = 0
    """Number of claims so far."""
    topic_id: str | None = None
    """Id of the topic whose log the offset belongs to; None if it is not known."""

    @property
    def offset(self) -> OffsetAndMetadata | None:
        """The committed offset."""
        if self.next_offset is None:
            return None
        return OffsetAndMetadata(self.next_offset, self.metadata, self.leader_epoch)

    @property
    def position(self) -> int:
        """The next offset to read, 0 where nothing is committed."""
        return self.next_offset or 0

    def at(self, offset: OffsetAndMetadata) -> StoredOffset:
        """Return the row with another offset."""
        return StoredOffset(*offset, self.generation, self.topic_id)


_Offsets: TypeAlias = "Mapping[TopicPartition, OffsetAndMetadata]"
_Rows: TypeAlias = "Mapping[TopicPartition, StoredOffset]"
_Key: TypeAlias = "tuple[str, TopicPartition]"  # a group's partition

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
    sa.Column("topic_id", sa.String(_MAX_ID_CHARS)),
    sa.CheckConstraint("next_offset >= 0"),
)

BATCHES: Final = sa.Table(
    "offsetmgr_batches",
    TABLES,
    sa.Column("group_id", sa.String(MAX_GROUP_CHARS), primary_key=True),
    sa.Column("checkpoint_location", sa.String(MAX_CHECKPOINT_CHARS), primary_key=True),
    sa.Column("batch_id", sa.BigInteger, nullable=False),
)

_WHERE: Final = (OFFSETS.c.topic, OFFSETS.c.partition_id)
_STORED: Final = [OFFSETS.c[name] for name in StoredOffset._fields]
_OF_GROUP: Final = (
    sa.select(*_WHERE, *_STORED)
    .where(OFFSETS.c.group_id == sa.bindparam("group"))
    .order_by(*_WHERE)
)
_OF_SOME: Final = _OF_GROUP.where(
    sa.tuple_(*_WHERE).in_(sa.bindparam("partitions", expanding=True))
)
# In one order, so that two processes wait for each other and do not deadlock.
_LOCKED: Final = _OF_SOME.with_for_update()
_CLAIM: Final = (
    sa.update(OFFSETS)
    .where(
        OFFSETS.c.group_id == sa.bindparam("group"),
        OFFSETS.c.topic == sa.bindparam("of_topic"),
        OFFSETS.c.partition_id == sa.bindparam("partition"),
    )
    .values({each: sa.bindparam(each.name) for each in _STORED})
)
_COMMIT: Final = _CLAIM.values(committed_at=sa.func.now())


class SqlOffsetStore(OffsetStore):
    """Keeps offsets in the tables ``offsetmgr_offsets`` and ``offsetmgr_batches`` of a database.

    ``database`` is a URL of SQLAlchemy's, or an engine, which ``close`` leaves open.  What the
    database fails to do is tried again for ``patience_s`` seconds.

    ``kafka``, the bootstrap servers or a mapping of librdkafka's settings, is asked for topic ids,
    so that a recreated topic begins anew: its messages are new, whatever is stored of the former
    one.  Consumers and managers see to that by themselves.

    Raises InvalidValueError for a bad URL or setting.
    """

    def __init__(
        self,
        database: str | Engine,
        *,
        patience_s: float = 10.0,
        kafka: str | Mapping[str, object] | None = None,
    ) -> None:
        self._patience_s = check_timeout(patience_s, "patience_s")
        given: object = database
        if not isinstance(given, (str, sa.Engine)):
            hint = "give a URL, or what create_engine returns"
            raise InvalidValueError("database", type(given).__name__, "is not an engine", hint)
        self._owned = isinstance(database, str)
        self.engine: Engine = (
            open_engine(database, self._patience_s) if isinstance(database, str) else database
        )
        """SQLAlchemy's engine, for transactions of the user's."""
        leave_lost_connections(self.engine)
        self._lock = threading.RLock()
        self._reader = None if kafka is None else ClusterReader(kafka)
        if self._reader is not None:
            offer_topic_ids(self, self._reader.existing_ids, self._reader.log_ranges)
        self._generations: dict[_Key, int] = {}  # of what this store has claimed
        self._ends: dict[_Key, int] = {}  # of the messages that were given to a transaction
        self._new_logs: dict[_Key, str | None] = {}
        """Ids of recreated topics, whose former logs the rows may still be of."""

    @property
    def url(self) -> str:
        return masked_url(self.engine.url.render_as_string(hide_password=False))

    def create_tables(self) -> None:
        """Create the tables where they do not exist; several processes may do so at once."""

        def work(connection: Connection) -> None:
            TABLES.create_all(connection)
            columns = {each["name"] for each in sa.inspect(connection).get_columns(OFFSETS.name)}
            if OFFSETS.c.topic_id.name not in columns:  # of a former release
                text = f"ADD COLUMN topic_id VARCHAR({_MAX_ID_CHARS})"
                connection.execute(sa.text(f"ALTER TABLE {OFFSETS.name} {text}"))

        with _raised_as(OffsetStoreError, "creation of the store's tables"):
            self._retried(work)

    def table_text(self) -> str:
        """Return the statements of ``create_tables``, for a migration; connects to nothing."""
        texts = [str(CreateTable(each).compile(self.engine)) for each in TABLES.sorted_tables]
        return "".join(f"{text.strip()};\n" for text in texts)

    @contextmanager
    def transaction(self, connection: _Bound) -> Iterator[OffsetTransaction]:
        """Let the transaction of ``connection`` commit offsets together with the user's rows.

        Nothing is committed here: if the transaction is rolled back, its offsets are as before.
        Raises InvalidValueError for what is neither a connection nor a session, and where each
        statement is committed by itself.
        """
        yield OffsetTransaction(connection, self)

    def run(self, work: Callable[[Connection, OffsetTransaction], _T]) -> _T:
        """Return what ``work`` returns, in a transaction of its own that is committed.

        Where the database fails, ``work`` is called again in a new one, for ``patience_s``; then
        the failure is raised.
        """
        check_callable(work, "work")
        return self._retried(
            lambda connection: work(connection, OffsetTransaction(connection, self))
        )

    def groups(self) -> list[str]:
        query = sa.select(OFFSETS.c.group_id).where(OFFSETS.c.next_offset.is_not(None))
        with _raised_as(OffsetStoreError, "list of groups"):
            return self._retried(lambda connection: sorted(connection.scalars(query.distinct())))

    def close(self) -> None:
        if self._owned:
            self.engine.dispose()
        if self._reader is not None:
            self._reader.close()

    def claim(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Take partitions over from their owner; return the committed offset of each.

        From now on the database refuses the commits of the former owner.  A recreated topic has 0
        committed: the start of its new log.
        """
        wanted = check_topic_partitions(partitions)
        if not wanted:
            return {}
        check_group(group)

        def work(connection: Connection) -> dict[TopicPartition, StoredOffset]:
            rows = self._lock_rows(connection, group, wanted)
            rows, _ = self._in_current_logs(group, rows, doubted=rows)
            rows = {w: row._replace(generation=row.generation + 1) for w, row in rows.items()}
            _write_rows(connection, group, rows, _CLAIM)
            return rows

        with _raised_as(OffsetFetchError, group, *wanted[0], None):
            found = self._retried(work)
        with self._lock:
            for where, row in found.items():
                self._generations[group, where] = row.generation
                self._ends.pop((group, where), None)
        return {where: found[where].offset for where in wanted}

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets; a recreated topic has none, where Kafka can be asked."""
        kind: tuple[Any, ...] = (OffsetStoreError, f"committed offsets of group {group}")
        if partitions is not None:
            if not partitions:
                return {}
            kind = (OffsetFetchError, group, *next(iter(partitions)), None)
        with _raised_as(*kind):
            found = self._retried(partial(_read, group=group, partitions=partitions))
        committed = {where: row for where, row in found.items() if row.offset}
        _, new_logs = self._in_current_logs(group, committed, doubted=committed)
        return {where: row.offset for where, row in committed.items() if where not in new_logs}

    def commit(self, group: str, offsets: _Offsets) -> None:
        """Commit a consumer's marks; those of partitions that transactions commit are left out."""
        self._commit(group, offsets, self._ends)

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        self._commit(check_group(group), check_offsets(offsets))

    def _commit(self, group: str, offsets: _Offsets, taken: Collection[_Key] = ()) -> None:
        def commit(part: Sequence[TopicPartition]) -> None:
            some = {where: offsets[where] for where in part}
            work = partial(self._write, group=group, offsets=some, taken=taken)
            try:
                refused = self._retried(work)
            except exc.SQLAlchemyError as error:
                failure = failure_of(error)
                if isinstance(error, exc.DataError) and len(part) > 1:  # of one of the values
                    raise OffsetStoreError(f"commit of group {group}", *failure) from error
                refused = {
                    where: OffsetCommitError(group, *where, each.offset, *failure)
                    for where, each in some.items()
                }
            raise_for(group, refused)

        raise_for(group, in_halves([*offsets], commit))

    def _retried(self, work: Callable[[Connection], _T]) -> _T:
        deadline = Deadline(self._patience_s)
        backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except Exception as error:
                if isinstance(error, exc.SQLAlchemyError):
                    passes = failure_of(error).info.retriable
                else:  # of the user's work, too
                    passes = isinstance(error, OffsetManagerError) and passes_later(error)
                pause_s = backoff.failed()
                if not passes or pause_s > deadline.left_s:
                    raise
            time.sleep(pause_s)

    # In a transaction

    def _lock_rows(
        self, connection: Connection, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return the rows of ``partitions``, locked; those that do not exist are made.

        A generation that a fail-over or a restored backup has set back is again that of our claim.
        """
        _begin(connection)
        rows = _read(connection, group, partitions, _LOCKED)
        missing = sorted(TopicPartition(*where) for where in partitions if where not in rows)
        if missing:
            empty = {"group_id": group, "metadata": "", "generation": 0}
            new = [{**empty, "topic": topic, "partition_id": number} for topic, number in missing]
            connection.execute(sa.insert(OFFSETS), new)
            rows |= dict.fromkeys(missing, StoredOffset())
        for where, row in rows.items():
            if row.generation < (claimed := self._generations.get((group, where), 0)):
                rows[where] = row._replace(generation=claimed)
        return rows

    def _write(
        self, connection: Connection, group: str, offsets: _Offsets, taken: Collection[_Key] = ()
    ) -> dict[TopicPartition, OffsetCommitError]:
        """Commit ``offsets`` but for those ``taken``; return those that are refused, and why."""
        rows = self._lock_rows(connection, group, offsets.keys())  # a transaction may take some
        refused = self._refusals(group, offsets, rows)
        rows = {w: row for w, row in rows.items() if w not in refused and (group, w) not in taken}
        lower = {where for where, row in rows.items() if offsets[where].offset < row.position}
        rows, _ = self._in_current_logs(group, rows, lower)
        _write_rows(connection, group, {w: row.at(offsets[w]) for w, row in rows.items()})
        return refused

    def _refusals(
        self, group: str, offsets: _Offsets, rows: _Rows
    ) -> dict[TopicPartition, OffsetCommitError]:
        """Return which commits over locked ``rows`` are refused, and why."""
        refused = {}
        for where, (offset, _, _) in offsets.items():
            now = rows[where].generation
            mine = self._generations.get((group, where), now)
            if mine < now:
                text = (
                    "another process has claimed the partition since: its generation is "
                    f"{now}, this one has {mine}; stop one of the two"
                )
                fenced = error_info(GENERATION_FENCED)
                refused[where] = OffsetCommitError(group, *where, offset, fenced, text)
        return refused

    def _in_current_logs(
        self,
        group: str,
        rows: _Rows,
        doubted: Collection[TopicPartition],
        spans: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
    ) -> tuple[dict[TopicPartition, StoredOffset], set[TopicPartition]]:
        """Return rows as of the logs that their topics have now, and which logs are new.

        A new log is that of a topic recreated since the last commit: its row is at its start, 0.
        Kafka is asked about those that are ``doubted``, or whose log is not known, and about those
        in ``spans``, the first and last offsets to be stored: they may be of the former log.
        Raises OffsetConflictError where nobody knows.
        """
        current, new_logs = dict(rows), set[TopicPartition]()
        ask = self.topic_ids  # which another thread may withdraw
        if ask is None:
            return current, new_logs
        doubtful = {
            where
            for where, row in rows.items()
            if where in doubted
            or row.topic_id is None
            or not row.next_offset  # any log begins there
            or row.topic_id != self._new_logs.get((group, where), row.topic_id)
        }
        asked = doubtful.union(spans)
        try:
            ids = ask({where.topic for where in asked}) if asked else {}
        except OffsetManagerError:
            if doubtful:
                raise
            return current, new_logs
        for where in asked:
            row = rows[where]
            topic_id = ids.get(where.topic) or row.topic_id
            if row.topic_id in {None, topic_id} or row.next_offset is None:
                current[where] = row._replace(topic_id=topic_id)
            elif where not in spans or not _is_former(ask, where, *spans[where]):
                current[where] = StoredOffset(0, generation=row.generation, topic_id=topic_id)
                new_logs.add(where)
                self._begin_log((group, where), row, topic_id)
        return current, new_logs

    def _begin_log(self, key: _Key, row: StoredOffset, topic_id: str | None) -> None:
        """Report, once, that the topic of ``row`` was recreated."""
        if self._new_logs.get(key) == topic_id:
            return
        self._new_logs[key] = topic_id
        with self._lock:
            if key in self._ends:  # what was read of the former log says nothing about this one
                self._ends[key] = 0
        group, where = key
        log.warning(
            "group %s: topic %s was recreated (its id is %s, it was %s): the offset %d "
            "stored for partition %d is of the former log; the new one begins anew",
            group, where.topic, topic_id, row.topic_id, row.position, where.partition,
        )  # fmt: skip

    def _check_order(
        self, group: str, where: TopicPartition, first: int, end: int, at: int
    ) -> None:
        """Take in that a transaction is to store messages from ``first`` to before ``end``.

        Raises OffsetConflictError where messages before them were given to a transaction, and
        ``at``, the stored offset, says that it was rolled back.
        """
        with self._lock:
            before = self._ends.get((group, where), 0)
            self._ends[group, where] = max(before, end)
        if first >= before > at:
            raise OffsetConflictError(
                f"group {group}: {where} was read up to offset {before}, and is stored up to {at}: "
                "a transaction was rolled back and not tried again, or the offset was set back; "
                "restart the consumer to read from there"
            )


class OffsetTransaction:
    """Offsets that a transaction of the user's commits; see ``SqlOffsetStore.transaction``.

    The rows of partitions are locked from their first use to the end of the transaction: a second
    process waits, and then finds what the first one has stored.  For one thread.

    Where the database fails, methods raise OffsetCommitError with the partition, ``is_new_batch``
    OffsetStoreError.
    """

    def __init__(self, connection: _Bound, store: SqlOffsetStore) -> None:
        """Begins the transaction; raises as ``SqlOffsetStore.transaction``."""
        self._bound = connection
        self._store = store
        self.begin()

    def begin(self) -> Connection:
        """Begin where that is not done; a session makes its savepoint now, not at its next use."""
        found: Any = self._bound
        if not isinstance(found, sa.Connection):
            found = getattr(found, "connection", dict)()
        if not isinstance(found, sa.Connection):
            hint = "give a Connection, a Session or a scoped_session of SQLAlchemy's"
            kind = type(self._bound).__name__
            raise InvalidValueError("connection", kind, "is not one", hint)
        _begin(found)
        return found

    def new_messages(self, group: str, messages: Iterable[Message]) -> list[Message]:
        """Return those of a consumer's ``messages`` that are not stored yet, and commit them.

        What the caller writes for them in this transaction is stored exactly once: of a batch that
        is tried again, or is read again after a restart, no message is new.

        Raises OffsetCommitError with GENERATION_FENCED where another process has claimed one of the
        partitions, OffsetConflictError where messages before these were not stored,
        InvalidValueError for messages of an AckConsumer, which come in any order.
        """
        given = check_list(messages, "messages", "[message]")
        spans = _offsets_of(given)
        lasts = {(m.topic(), m.partition()): m for m in given}
        ends = {where: _after(lasts[where]) for where in spans}
        back = {where for where, each in spans.items() if each != sorted(set(each))}
        with self._begun(group, spans) as connection:
            found = self._store._lock_rows(connection, group, spans)
            raise_for(group, self._store._refusals(group, ends, found))
            # A new log, or a gap.
            doubted = back | {w for w, row in found.items() if spans[w][0] != row.position}
            firsts = {w: (each[0], each[-1]) for w, each in spans.items() if w not in back}
            rows, new_logs = self._store._in_current_logs(group, found, doubted, firsts)
            new = given
            if doubted or new_logs:
                new, ends = _not_stored(given, found, new_logs, back)
            changed = {}
            for where, end in ends.items():
                row = rows[where]  # at 0 in a new log
                self._store._check_order(group, where, spans[where][0], end.offset, row.position)
                if end != row.offset:  # below it where the log was cut
                    changed[where] = row.at(end)
            _write_rows(connection, group, changed)
        return new

    def is_new_range(self, group: str, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Return True if a batch is not stored yet, and commit the ends of its ranges.

        ``ranges`` are first offset and end (exclusive) by partition, as Spark's ``batch_ranges``
        gives them.  False: the batch is stored, so its rows must not be written again.

        Raises OffsetConflictError where the batch does not begin where the store ends.
        """
        checked = _checked_ranges(ranges)
        wanted = {where: each for where, each in checked.items() if each[0] < each[1]}
        with self._begun(group, wanted) as connection:
            found = self._store._lock_rows(connection, group, wanted)
            doubted = {w for w, (start, _) in wanted.items() if start != found[w].position}
            # A new query may begin anywhere in a new log.
            spans = {w: (0 if w in doubted else at, end - 1) for w, (at, end) in wanted.items()}
            rows, new_logs = self._store._in_current_logs(group, found, doubted, spans)
            stored = {
                w: row.position for w, row in found.items() if row.offset and w not in new_logs
            }
            if all(stored.get(w, -1) >= end for w, (_, end) in wanted.items()):
                return False
            wrong = [
                f"{w} from {start} (stored: {stored[w]})"
                for w, (start, _) in wanted.items()
                if stored.get(w, start) != start
            ]
            if wrong:
                raise OffsetConflictError(
                    f"group {group}: the batch does not begin where the store ends: "
                    f"{listed(wrong)}; start the query, with a new checkpoint, at the offsets of "
                    "the store"
                )
            changed = {w: rows[w].at(OffsetAndMetadata(end)) for w, (_, end) in wanted.items()}
            _write_rows(connection, group, changed)
        return True

    def is_new_batch(self, group: str, checkpoint: str, batch_id: int) -> bool:
        """Return True if a query's batch is not stored yet, and remember its number.

        For a query with state, whose rows do not belong to the batch's offsets.  ``checkpoint`` is
        its checkpointLocation: a new checkpoint counts its batches from 0 again.
        """
        batch_id = check_offset(batch_id, "batch_id")
        text: object = checkpoint
        printable = isinstance(text, str) and text.isprintable()
        if not printable or not 0 < len(checkpoint) <= MAX_CHECKPOINT_CHARS:
            fix = f"give a path of 1 to {MAX_CHECKPOINT_CHARS} printable characters"
            raise InvalidValueError("checkpoint", checkpoint, "is not a path", fix)
        key = {"group_id": check_group(group), "checkpoint_location": checkpoint}
        query = sa.select(BATCHES.c.batch_id).filter_by(**key).with_for_update()
        with _raised_as(OffsetStoreError, f"batch {batch_id} of {checkpoint}, group {group}"):
            connection = self.begin()
            last = connection.execute(query).scalar()
            if last is None:
                connection.execute(sa.insert(BATCHES).values(**key, batch_id=batch_id))
            elif batch_id > last:
                connection.execute(sa.update(BATCHES).filter_by(**key).values(batch_id=batch_id))
        return last is None or batch_id > last

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets, the next ones to read.

        Raises OffsetCommitError with GENERATION_FENCED where another process has claimed one of the
        partitions after this store has.
        """
        wanted = check_offsets(offsets)
        with self._begun(group, wanted) as connection:
            raise_for(group, self._store._write(connection, group, wanted))

    @contextmanager
    def _begun(self, group: str, partitions: Collection[TopicPartition]) -> Iterator[Connection]:
        """Begin, and name one of ``partitions`` where the database fails."""
        check_group(group)
        place = next(iter(partitions), ("", 0))
        with _raised_as(OffsetCommitError, group, *place, None):
            yield self.begin()


def _checked_ranges(ranges: object) -> dict[TopicPartition, tuple[int, int]]:
    checked = {}
    for key, ends in check_mapping(ranges, "ranges").items():
        where = check_topic_partition(key)
        if not isinstance(ends, (tuple, list)) or len(ends) != 2:  # noqa: PLR2004 -- a pair
            hint = "give the first offset and the end"
            raise InvalidValueError(f"range of {where}", ends, "is not a pair", hint)
        checked[where] = (
            check_offset(ends[0], f"first offset of {where}"),
            check_offset(ends[1], f"end of {where}"),
        )
    return checked


def _offsets_of(messages: Sequence[Any]) -> dict[TopicPartition, list[int]]:
    """Return the offsets of messages by partition."""
    # In C wherever possible: it is done for each message of a transaction.
    if not all(issubclass(kind, Message) for kind in set(map(type, messages))) or any(
        map(Message.error, messages)
    ):
        odd = next(e for e in messages if not isinstance(e, Message) or e.error())
        hint = "give those whose error() is None; an AckConsumer's come in any order"
        raise InvalidValueError("messages", odd, "is not one of a GroupConsumer", hint)
    parts: Any = (map(get, messages) for get in (Message.topic, Message.partition, Message.offset))
    found: defaultdict[Any, list[int]] = defaultdict(list)
    for topic, partition, offset in zip(*parts, strict=True):
        found[topic, partition].append(offset)
    return {TopicPartition(*where): offsets for where, offsets in found.items()}


def _is_former(ask: object, where: TopicPartition, first: int, last: int) -> bool:
    """Return True if a recreated topic's log has not come up to ``last``: the former one had.

    Raises OffsetConflictError where it has records before ``first``, which would be passed over:
    a consumer may have read on where the former log ended.
    """
    log_ranges = getattr(ask, "log_ranges", None)
    if log_ranges is None:
        return False
    found = log_ranges([where])[where]
    if does_not_exist(found) or last >= known(found).high_watermark:
        return True
    if first > known(found).log_start_offset:
        raise OffsetConflictError(
            f"the topic of {where} was recreated, and its new log has records before offset "
            f"{first} that are not stored; restart the consumer to read them"
        )
    return False


# Statements


def _begin(connection: Connection) -> None:
    """Begin a transaction that may lock rows.

    SQLite locks no rows, and its driver begins only before the first change: too late to compare.
    Raises InvalidValueError where the connection commits each statement by itself.
    """
    raw = connection.connection.dbapi_connection
    if raw is not None and connection.dialect.detect_autocommit_setting(raw):
        fix = "use one without isolation_level='AUTOCOMMIT'"
        raise InvalidValueError("connection", "AUTOCOMMIT", "has no transactions", fix)
    if connection.dialect.name == "sqlite" and not (raw and raw.in_transaction):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _read(
    connection: Connection,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    query: sa.Select[Any] = _OF_SOME,
) -> dict[TopicPartition, StoredOffset]:
    """Return the rows of ``partitions`` that exist, sorted; all of the group where None."""
    if partitions is None:
        rows = list(connection.execute(_OF_GROUP, {"group": group}))
    else:
        wanted, rows = sorted(map(tuple, partitions)), []
        for first in range(0, len(wanted), _AT_ONCE):
            some = wanted[first : first + _AT_ONCE]
            rows += connection.execute(query, {"group": group, "partitions": some})
    return {
        TopicPartition(topic, partition): StoredOffset(*stored)
        for topic, partition, *stored in rows
    }


def _write_rows(
    connection: Connection, group: str, rows: _Rows, statement: sa.Update = _COMMIT
) -> None:
    """Write locked rows, as changed."""
    changes = [
        {"group": group, "of_topic": topic, "partition": partition, **row._asdict()}
        for (topic, partition), row in rows.items()
    ]
    if changes:
        connection.execute(statement, changes)


@contextmanager
def _raised_as(kind: Callable[..., OffsetManagerError], *args: object) -> Iterator[None]:
    """Raise errors of the database as ``kind`` of ``args`` and the failure's parts."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise kind(*args, *failure_of(error)) from error


def _not_stored(
    messages: Iterable[Any],
    stored: _Rows,
    new_logs: Collection[TopicPartition],
    back: Collection[TopicPartition],
) -> tuple[list[Message], dict[TopicPartition, OffsetAndMetadata]]:
    """Return the messages that are not stored, and the offsets behind them.

    A new log begins with the first message of its partition, or where its offsets go ``back``.  One
    that an unclean election has cut has other messages from there on, of a higher leader epoch.
    """
    ends = {w: row.offset or OffsetAndMetadata(0) for w, row in stored.items()}
    lasts, new = dict.fromkeys(stored, -1), []
    left = set(new_logs)
    for message in messages:
        where, offset = TopicPartition(message.topic(), message.partition()), message.offset()
        if where in left and (where not in back or offset <= lasts[where]):
            left.remove(where)
            ends[where] = OffsetAndMetadata(0)
        lasts[where] = offset
        end, _, epoch = ends[where]
        if offset >= end or (epoch is not None and (message.leader_epoch() or 0) > epoch):
            new.append(message)
            ends[where] = _after(message)
    return new, ends


def _after(message: Any) -> OffsetAndMetadata:
    """Return the offset after a message, with the message's leader epoch."""
    return OffsetAndMetadata(message.offset() + 1, "", message.leader_epoch())
