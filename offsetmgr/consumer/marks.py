"""Marks: the offsets that the application has processed, up to their commit."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
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


class Markable(ABC):
    """Takes marks of processed messages.

    A mark that is not higher than the last one changes nothing; a reset that is higher neither.
    Metadata has at most 4,095 characters.
    """

    @abstractmethod
    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        """Take in the next offset to read of a partition."""

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Mark ``message`` and all before it in its partition as processed."""
        where, offset = _place(message)
        self._mark(where, offset + 1, _check_metadata(metadata), reset=False)

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Mark all of ``messages``, such as those of a batch."""
        last = {(each.topic(), each.partition()): each for each in messages}
        for each in last.values():
            self.mark_offset(each)

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Mark the message at ``offset`` and all before it as processed."""
        where = check_topic(topic), check_partition(partition)
        self._mark(where, check_offset(offset) + 1, _check_metadata(metadata), reset=False)

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Let the group go back to after ``message``; reading goes on where it is."""
        where, offset = _place(message)
        self._mark(where, offset + 1, _check_metadata(metadata), reset=True)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Let the group go back to after the message at ``offset``."""
        where = check_topic(topic), check_partition(partition)
        self._mark(where, check_offset(offset) + 1, _check_metadata(metadata), reset=True)


class OffsetStash(Markable):
    """Processed offsets of several partitions, to be marked at once; for one thread."""

    def __init__(self) -> None:
        self.positions: dict[tuple[str, int], tuple[int, str]] = {}
        """The next offset to read of each partition, and metadata."""
        self.resets: set[tuple[str, int]] = set()
        """The partitions that may go back."""

    def _mark(self, where: tuple[str, int], offset: int, metadata: str, *, reset: bool) -> None:
        known, _ = self.positions.get(where, _NONE)
        if known < 0 or (offset <= known if reset else offset > known):
            self.positions[where] = (offset, metadata)
            if reset:
                self.resets.add(where)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return {TopicPartition(*where): offset - 1 for where, (offset, _) in self.positions.items()}


class Marks:
    """The marks of claimed partitions; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The next offset and metadata; plain tuples, as each message makes one.
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

    def mark(
        self, where: tuple[str, int], offset: int, metadata: str, *, may_fall: bool = False
    ) -> None:
        """Take in the next offset of a partition; without effect where it is not claimed."""
        with self._lock:
            known = self._positions.get(where)
            if known is not None and (offset > known[0] or may_fall):
                self._positions[where] = (offset, metadata)
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


def _place(message: Message) -> tuple[tuple[str, int], int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return (topic, partition), offset


def _check_metadata(metadata: str) -> str:
    return metadata and check_metadata(metadata, most=MOST_METADATA_CHARS)
