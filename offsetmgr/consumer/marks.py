"""Marks: the offsets that the application has processed, up to their commit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from offsetmgr.types import (
    MAX_METADATA_CHARS,
    OffsetAndMetadata,
    TopicPartition,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message


MOST_METADATA_CHARS: Final = MAX_METADATA_CHARS - 1
"""Longest metadata of a mark: confluent-kafka's consumer adds a NUL."""

_NONE: Final = (-1, "")


class OffsetStash:
    """Processed offsets of several partitions, to be marked at once; for one thread.

    A mark is kept where it is higher than the one before, a reset also where it is lower.
    """

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, OffsetAndMetadata] = {}
        self._resets: set[TopicPartition] = set()

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Stash that ``message`` was processed."""
        self.mark_partition_offset(*_place(message), metadata)

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Stash that all of ``messages`` were processed, such as those of a batch."""
        last = {(each.topic(), each.partition()): each for each in messages}
        for each in last.values():
            self.mark_offset(each)

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Stash that the message at ``offset`` was processed."""
        where, position = _position(topic, partition, offset, metadata)
        known = self._positions.get(where)
        if known is None or position.offset > known.offset:
            self._positions[where] = position

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Stash that the group goes back to after ``message``."""
        self.reset_partition_offset(*_place(message), metadata)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Stash that the group goes back to after the message at ``offset``."""
        where, position = _position(topic, partition, offset, metadata)
        known = self._positions.get(where)
        if known is None or position.offset <= known.offset:
            self._positions[where] = position
            self._resets.add(where)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return {where: position.offset - 1 for where, position in self._positions.items()}

    @property
    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The offset to commit for each partition: the next one to read."""
        return self._positions

    @property
    def resets(self) -> frozenset[TopicPartition]:
        """The partitions whose position may be lower than what was marked before."""
        return frozenset(self._resets)


class Marks:
    """The marks of a member's claimed partitions; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Offset to commit and metadata; offset -1 where there is none.  For each message a mark, so
        # these are plain tuples.
        self._positions: dict[tuple[str, int], tuple[int, str]] = {}
        self._dirty: set[tuple[str, int]] = set()

    def claim(self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        with self._lock:
            for where, known in committed.items():
                self._positions[where] = _NONE if known is None else (known.offset, known.metadata)
            self._dirty.difference_update(committed)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what is marked of ``partitions``: another member may be further."""
        with self._lock:
            for where in partitions:
                self._positions.pop(where, None)
                self._dirty.discard(where)

    def mark_message(self, message: Message, metadata: str) -> None:
        """Take in one processed message."""
        topic, partition, offset = _place(message)
        if metadata:
            _check_metadata(metadata)
        where = (topic, partition)
        with self._lock:
            known = self._positions.get(where)
            if known is not None and offset >= known[0]:
                self._positions[where] = (offset + 1, metadata)
                self._dirty.add(where)

    def mark(
        self,
        positions: Mapping[TopicPartition, OffsetAndMetadata],
        resets: Iterable[TopicPartition] = (),
    ) -> None:
        """Take in positions; one that is not higher than before counts among ``resets`` alone.

        One of a partition that is not claimed is dropped.
        """
        may_fall = frozenset(resets)
        with self._lock:
            for where, position in positions.items():
                known = self._positions.get(where)
                if known is not None and (position.offset > known[0] or where in may_fall):
                    self._positions[where] = (position.offset, position.metadata)
                    self._dirty.add(where)

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            found = {where: self._positions[where] for where in self._dirty}
        return {
            TopicPartition(*where): OffsetAndMetadata(*position)
            for where, position in found.items()
        }

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            for where, position in offsets.items():
                if self._positions.get(where) == (position.offset, position.metadata):
                    self._dirty.discard(where)


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return topic, partition, offset


def _position(
    topic: str, partition: int, offset: int, metadata: str
) -> tuple[TopicPartition, OffsetAndMetadata]:
    where = TopicPartition(check_topic(topic), check_partition(partition))
    return where, OffsetAndMetadata(check_offset(offset) + 1, _check_metadata(metadata))


def _check_metadata(metadata: str) -> str:
    return check_metadata(metadata, most=MOST_METADATA_CHARS)
