"""Offsets in the transaction of the user's results: exactly once into a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select, update

from offsetmgr.errors import (
    InvalidValueError,
    OffsetCommitError,
    OffsetConflictError,
    OffsetStoreError,
    listed,
)
from offsetmgr.stores import rows
from offsetmgr.stores.base import raise_for
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_mapping,
    check_offset,
    check_offsets,
    check_topic_partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message
    from sqlalchemy import Connection

    from offsetmgr.stores.base import Claims, StoredOffset


class OffsetTransaction:
    """Offsets that a transaction of the user's commits; see ``SqlOffsetStore.transaction``.

    The rows of partitions are locked from their first use to the end of the transaction: a second
    process waits, and then finds what the first one has stored.  For one thread.

    All methods raise OffsetCommitError, with the partition, where the database fails.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def new_messages(
        self, group: str, messages: Iterable[Message], claims: Claims
    ) -> list[Message]:
        """Return those of a consumer's ``messages`` that are not stored yet, and commit them.

        What the caller writes for them in this transaction is stored exactly once: of a batch that
        is tried again, or is read again after a restart, no message is new.

        Raises OffsetCommitError with GENERATION_FENCED where another process has claimed one of the
        partitions, OffsetConflictError where messages before these were not stored.
        """
        given = list(messages)
        firsts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, OffsetAndMetadata] = {}
        for where, offset in map(_place, given):
            firsts.setdefault(where, offset)
            ends[where] = OffsetAndMetadata(offset + 1)
        found = self._lock(check_group(group), ends)
        raise_for(group, claims.refusals(group, ends, found))
        stored = {where: row.offset.offset if row.offset else 0 for where, row in found.items()}
        for where, end in ends.items():
            claims.check_order(group, where, firsts[where], end.offset, stored[where])
        self._write(group, {w: end for w, end in ends.items() if end.offset > stored[w]})
        return [message for message in given if _is_new(message, stored)]

    def is_new_range(self, group: str, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> bool:
        """Return True if a batch is not stored yet, and commit the ends of its ranges.

        ``ranges`` are first offset and end (exclusive) by partition, as Spark's ``batch_ranges``
        gives them.  False: the batch is stored, so its rows must not be written again.

        Raises OffsetConflictError where the batch does not begin where the store ends.
        """
        wanted = _checked(ranges)
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
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        claims: Claims | None = None,
    ) -> None:
        """Commit offsets, the next ones to read.

        With ``claims`` raises OffsetCommitError with GENERATION_FENCED where another process has
        claimed one of the partitions.
        """
        wanted = check_offsets(offsets)
        found = self._lock(check_group(group), wanted)
        if claims is not None:
            raise_for(group, claims.refusals(group, wanted, found))
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


def _place(message: Message) -> tuple[TopicPartition, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return TopicPartition(topic, partition), offset


def _is_new(message: Message, stored: Mapping[TopicPartition, int]) -> bool:
    where, offset = _place(message)
    return offset >= stored[where]


def _checked(ranges: object) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ranges that are not empty."""
    found = {}
    for key, each in check_mapping(ranges, "ranges").items():
        field = f"range of {key}"
        if not isinstance(each, tuple) or len(each) != len(("start", "end")):
            fix = "give first offset and end, such as (0, 100)"
            raise InvalidValueError(field, each, "is not two offsets", fix)
        start, end = (check_offset(value, field) for value in each)
        if start < end:
            found[check_topic_partition(key)] = (start, end)
    return found
