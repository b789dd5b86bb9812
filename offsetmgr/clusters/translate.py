"""Translates offsets of a topic to those of its mirror in another cluster; pure.

Each translated offset is at or before the mirror of the next record to read, so that none is
skipped; what lies between is read again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.types import PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

_LENGTH: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")


class OffsetSync(NamedTuple):
    """MirrorMaker 2's record that two offsets are of one message."""

    source: int
    target: int


def parse_sync(key: bytes, value: bytes) -> tuple[TopicPartition, OffsetSync]:
    """Return a message of an offset-syncs topic.  Raises ValueError where it is none.

    The format is that of ``org.apache.kafka.connect.mirror.OffsetSync``: key (topic string,
    partition int32), value (source offset int64, target offset int64), all big-endian.
    """
    try:
        (length,) = _LENGTH.unpack_from(key)
        topic = key[_LENGTH.size : _LENGTH.size + length].decode()
        (partition,) = _PARTITION.unpack_from(key, _LENGTH.size + length)
        return TopicPartition(topic, partition), OffsetSync(*_OFFSETS.unpack(value))
    except struct.error as error:
        raise ValueError(f"is no offset sync: {error}") from None


def best_sync(syncs: Iterable[OffsetSync], offset: int) -> OffsetSync | None:
    """Return the sync that most closely precedes ``offset``, as MirrorMaker does.

    ``syncs`` are of one partition, in the order of the topic.  A sync with a lower source offset
    than the one before says that the source was made anew; those before it count no more.
    """
    best: OffsetSync | None = None
    last = -1
    for sync in syncs:
        if sync.source < last:
            best = None
        last = sync.source
        if sync.source <= offset:
            best = sync
    return best


class PartitionFacts(NamedTuple):
    """Facts of a partition and its mirror."""

    offset: int
    """The next offset to read in the source."""
    source: PartitionRange
    target: PartitionRange
    sync: OffsetSync | None = None
    """As ``best_sync`` returns it."""
    same_record: OffsetSync | None = None
    """First offsets with the time of the record at ``offset`` or later, in source and target, where
    both are of the same record.

    Where there is no record at ``offset``, with the time of the one before it."""


class Translation(NamedTuple):
    """An offset of the target."""

    offset: int | None
    """None where it is not known; the note says why."""
    again: int | None
    """Records that are read again, at most."""
    by: str
    note: str = ""


def translate(facts: PartitionFacts) -> Translation:
    """Return the highest offset of the target that skips no record."""
    offset, source, target = facts.offset, facts.source, facts.target
    if offset > source.high_watermark:
        return unknown(f"{offset} is beyond the end of its log, {source.high_watermark}")
    found = []
    if facts.sync is not None:
        found.append(_from_pair(facts.sync, offset, "offset sync"))
    if facts.same_record is not None:
        found.append(_from_pair(facts.same_record, offset, "time"))
    if source == target == (offset, offset):
        found.append(Translation(offset, 0, "end", "no record in either log"))
    usable = [each for each in found if (each.offset or 0) <= target.high_watermark]
    if not usable:
        return unknown("the mirror does not have the record, or not yet")
    best = max(usable, key=lambda each: each.offset or 0)
    if (best.offset or 0) < target.log_start_offset:
        note = f"{best.offset} is before the log of the mirror: its start"
        return best._replace(offset=target.log_start_offset, note=note)
    return best


def unknown(problem: str) -> Translation:
    """Return that no offset is known."""
    return Translation(None, None, "", f"{problem}; left as it is")


def _from_pair(pair: OffsetSync, offset: int, by: str) -> Translation:
    """Translate by two offsets of the same record.

    Nobody knows which of the records behind it were mirrored: one step is safe, and no more.
    """
    step = min(offset - pair.source, 1)
    return Translation(pair.target + step, offset - pair.source - step, by)
