"""Offsets in the transaction of the user's results: exactly once into a database."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sqlalchemy import insert, select, update

from offsetmgr.codes import GENERATION_FENCED
from offsetmgr.errors import (
    InvalidValueError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetStoreError,
    error_info,
    listed,
)
from offsetmgr.stores import rows
from offsetmgr.stores.base import raise_for
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_offset,
    check_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message
    from sqlalchemy import Connection

    from offsetmgr.stores.rows import StoredOffset


class Claims:
    """The partitions that a store has claimed, and what its transactions were given; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generations: dict[ManagerKey, int] = {}
        self._ends: dict[ManagerKey, int] = {}  # of the messages that were given to a transaction

    def __contains__(self, key: ManagerKey) -> bool:
        return key in self._generations

    def take(self, group: str, claimed: Mapping[TopicPartition, StoredOffset]) -> None:
        """Take in the rows of claimed partitions."""
        with self._lock:
            for where, row in claimed.items():
                key = ManagerKey(group, *where)
                self._generations[key] = row.generation
                self._ends.pop(key, None)

    def in_transactions(self, key: ManagerKey) -> bool:
        """Return True if the partition's offsets go with transactions."""
        return key in self._ends

    def refusals(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        found: Mapping[TopicPartition, StoredOffset],
    ) -> dict[TopicPartition, OffsetCommitError]:
        """Return which commits over the rows ``found`` are refused, and why."""
        refused = {}
        for where, offset in offsets.items():
            now = found[where].generation
            mine = self._generations.get(ManagerKey(group, *where), now)
            if mine != now:
                text = (
                    "another process has claimed the partition since: its generation is "
                    f"{now}, this one has {mine}; stop one of the two"
                )
                fenced = error_info(GENERATION_FENCED)
                refused[where] = OffsetCommitError(group, *where, offset.offset, fenced, text)
        return refused

    def check_order(self, group: str, where: TopicPartition, first: int, end: int, at: int) -> None:
        """Take in that a transaction is to store messages from ``first`` to before ``end``.

        Raises OffsetConflictError where messages before them were given to a transaction, and
        ``at``, the stored offset, says that it was rolled back.
        """
        key = ManagerKey(group, *where)
        with self._lock:
            before = self._ends.get(key, 0)
            self._ends[key] = max(before, end)
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

    def __init__(self, connection: Connection, claims: Claims) -> None:
        self._connection = connection
        self._claims = claims

    def new_messages(self, group: str, messages: Iterable[Message]) -> list[Message]:
        """Return those of a consumer's ``messages`` that are not stored yet, and commit them.

        What the caller writes for them in this transaction is stored exactly once: of a batch that
        is tried again, or is read again after a restart, no message is new.

        Raises OffsetCommitError with GENERATION_FENCED where another process has claimed one of the
        partitions, OffsetConflictError where messages before these were not stored.
        """
        given = list(messages)
        firsts: dict[tuple[str, int], int] = {}
        lasts: dict[tuple[str, int], int] = {}
        for message in given:
            where, offset = _place(message)
            firsts.setdefault(where, offset)
            lasts[where] = offset
        ends = {TopicPartition(*each): OffsetAndMetadata(lasts[each] + 1) for each in lasts}
        found = self._lock(check_group(group), ends)
        raise_for(group, self._claims.refusals(group, ends, found))
        stored = {where: row.offset.offset if row.offset else 0 for where, row in found.items()}
        for where, end in ends.items():
            self._claims.check_order(group, where, firsts[where], end.offset, stored[where])
        self._write(group, {w: end for w, end in ends.items() if end.offset > stored[w]})
        if all(firsts[where] >= stored[where] for where in ends):
            return given
        return [message for message in given if _is_new(message, stored)]

    def is_new_range(self, group: str, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Return True if a batch is not stored yet, and commit the ends of its ranges.

        ``ranges`` are first offset and end (exclusive) by partition, as Spark's ``batch_ranges``
        gives them.  False: the batch is stored, so its rows must not be written again.

        Raises OffsetConflictError where the batch does not begin where the store ends.
        """
        wanted = {where: each for where, each in ranges.items() if each[0] < each[1]}
        found = self._lock(check_group(group), wanted)
        stored = {w: row.offset.offset for w, row in found.items() if row.offset is not None}
        if all(stored.get(w, -1) >= end for w, (_, end) in wanted.items()):
            return False
        wrong = [
            f"{w} from {start} (stored: {stored[w]})"
            for w, (start, _) in wanted.items()
            if stored.get(w, start) != start
        ]
        if wrong:
            raise OffsetConflictError(
                f"group {group}: the batch does not begin where the store ends: {listed(wrong)}; "
                "start the query, with a new checkpoint, at the offsets of the store"
            )
        self._write(group, {w: OffsetAndMetadata(end) for w, (_, end) in wanted.items()})
        return True

    def is_new_batch(self, group: str, checkpoint: str, batch_id: int) -> bool:
        """Return True if a query's batch is not stored yet, and remember its number.

        For a query with state, whose rows do not belong to the batch's offsets.  ``checkpoint`` is
        its checkpointLocation: a new checkpoint counts its batches from 0 again.
        """
        check_offset(batch_id, "batch_id")
        if not 0 < len(checkpoint) <= rows.MAX_CHECKPOINT_CHARS:
            fix = f"give a path of 1 to {rows.MAX_CHECKPOINT_CHARS} characters"
            raise InvalidValueError("checkpoint", checkpoint, "is empty or too long", fix)
        key = {"group_id": check_group(group), "checkpoint_location": checkpoint}
        query = select(rows.BATCHES.c.batch_id).filter_by(**key).with_for_update()
        with rows.raised_as(OffsetStoreError, f"batch {batch_id} of {checkpoint}, group {group}"):
            last = self._connection.execute(query).scalar()
            if last is None:
                self._connection.execute(insert(rows.BATCHES).values(**key, batch_id=batch_id))
            elif batch_id > last:
                changed = update(rows.BATCHES).filter_by(**key).values(batch_id=batch_id)
                self._connection.execute(changed)
        return last is None or batch_id > last

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets, the next ones to read.

        Raises OffsetCommitError with GENERATION_FENCED where another process has claimed one of the
        partitions after this store has.
        """
        wanted = check_offsets(offsets)
        found = self._lock(check_group(group), wanted)
        raise_for(group, self._claims.refusals(group, wanted, found))
        self._write(group, wanted)

    def _lock(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        wanted = list(partitions)
        if not wanted:
            return {}
        with rows.raised_as(OffsetCommitError, group, *wanted[0], None):
            return rows.lock(self._connection, group, wanted)

    def _write(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if offsets:
            where, first = next(iter(offsets.items()))
            with rows.raised_as(OffsetCommitError, group, *where, first.offset):
                rows.write(self._connection, group, offsets)


def _place(message: Message) -> tuple[tuple[str, int], int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return (topic, partition), offset


def _is_new(message: Message, stored: Mapping[TopicPartition, int]) -> bool:
    where, offset = _place(message)
    return offset >= stored[TopicPartition(*where)]
