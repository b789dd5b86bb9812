"""Marks of processed messages, by which offsets are committed."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Protocol

from offsetmgr.consumer.settings import MOST_METADATA_CHARS
from offsetmgr.consumer.work import Start
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.consumer.member import Member

    # Plain tuples: each message makes one.
    Place = tuple[str, int]

_NONE: Final = (-1, "")
_LOOK_S: Final = 0.005


class MarkFunction(Protocol):
    """Takes the next offset to read of a partition, metadata, and the message if it is at hand."""

    def __call__(
        self, place: Place, offset: int, metadata: str, message: Message | None, *, reset: bool
    ) -> None: ...


class Markable:
    """Takes marks of processed messages.

    A mark that is lower than the last one changes nothing; nor does a reset that is higher.  An
    equal one counts if its metadata differs.  Metadata has at most 4,095 characters.
    """

    _mark: MarkFunction

    def mark_offset(self, message: Message, metadata: str = "") -> None:
        """Mark ``message`` and all before it in its partition as processed."""
        place, offset = _place(message)
        self._mark(place, offset + 1, _check_metadata(metadata), message, reset=False)

    def mark_messages(self, messages: Iterable[Message]) -> None:
        """Mark the highest of ``messages`` in each partition, and so all before it."""
        # Messages come in runs of one partition: only the highest of a run is looked at further.
        topic = partition = highest = None
        high = -1
        for message in messages:
            if message.partition() != partition or message.topic() != topic:
                if highest is not None:
                    self.mark_offset(highest)
                topic, partition, high = message.topic(), message.partition(), -1
            offset = message.offset()
            if offset is not None and offset > high:
                highest, high = message, offset
        if highest is not None:
            self.mark_offset(highest)

    def mark_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Mark the message at ``offset`` and all before it as processed."""
        place = check_topic(topic), check_partition(partition)
        self._mark(place, _offset_after(offset), _check_metadata(metadata), None, reset=False)

    def mark_offsets(self, stash: OffsetStash) -> None:
        """Mark what ``stash`` holds, resets included, and empty it."""
        for place, mark, reset in stash.take():
            self._mark(place, *mark, reset=reset)

    def reset_offset(self, message: Message, metadata: str = "") -> None:
        """Let the group go back to after ``message``; reading goes on where it is."""
        place, offset = _place(message)
        self._mark(place, offset + 1, _check_metadata(metadata), message, reset=True)

    def reset_partition_offset(
        self, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Let the group go back to after the message at ``offset``."""
        place = check_topic(topic), check_partition(partition)
        self._mark(place, _offset_after(offset), _check_metadata(metadata), None, reset=True)

    def reset_offsets(self, stash: OffsetStash) -> None:
        """Let the group go back to what ``stash`` holds, and empty it."""
        for place, mark, _ in stash.take():
            self._mark(place, *mark, reset=True)


class OffsetStash(Markable):
    """Processed offsets of several partitions, to be marked at once; for one thread."""

    def __init__(self) -> None:
        self._positions: dict[Place, tuple[int, str, Message | None]] = {}  # as MarkFunction
        self._resets: set[Place] = set()
        self._mark = self._stash

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the last processed offset of each partition."""
        return {TopicPartition(*each): mark[0] - 1 for each, mark in self._positions.items()}

    def take(self) -> list[tuple[Place, tuple[int, str, Message | None], bool]]:
        """Return partitions, their marks, and what may go back; the stash is empty."""
        found = [(each, mark, each in self._resets) for each, mark in self._positions.items()]
        self._positions.clear()
        self._resets.clear()
        return found

    def _stash(
        self, place: Place, offset: int, metadata: str, message: Message | None, *, reset: bool
    ) -> None:
        known, text, *_ = self._positions.get(place, _NONE)
        if _counts(offset, metadata, known, text, reset=reset):
            self._positions[place] = (offset, metadata, message)
            if reset:
                self._resets.add(place)


class Marks:
    """Messages on their way to an application that marks them; any thread may mark.

    Marks of other partitions are dropped.  So are those of messages of a former log, or of a former
    claim whose log may have been another one; a message is known by its offset and timestamp.
    """

    member: Member

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._marked: dict[Place, tuple[int, str]] = {}  # the next offset to read, and metadata
        self._uncommitted: set[Place] = set()
        self._received: dict[Place, int] = {}  # the offset after the last message since the claim
        self._ends: dict[Place, int] = {}  # ends of logs that have no messages behind those
        self._former: dict[Place, int] = {}  # highest `_received` of former claims and logs
        self._again: dict[Place, list[tuple[int, object]]] = {}
        """Next offsets up to those, and timestamps, of messages of logs that may be new ones."""

    def mark(
        self, place: Place, offset: int, metadata: str, message: Message | None, *, reset: bool
    ) -> None:
        """Take in the next offset to read of a partition, as ``MarkFunction``."""
        with self._lock:
            known = self._marked.get(place)
            if (
                known is not None
                and _counts(offset, metadata, *known, reset=reset)
                and (offset <= known[0] or self._is_of_claim(place, offset, message))
            ):
                self._marked[place] = (offset, metadata)
                self._uncommitted.add(place)

    def _is_of_claim(self, place: Place, offset: int, message: Message | None) -> bool:
        """Return True unless ``message`` may be of a former log."""
        again = self._again.get(place)
        if again is None:
            return True
        if offset > self._former.get(place, -1):
            del self._again[place]  # lower marks change nothing any more
            return True
        if message is None:
            return offset <= self._received.get(place, 0)
        at = bisect_left(again, (offset,))
        found = again[at : at + 1] == [(offset, message.timestamp())]
        if found:
            del again[:at]
        return found

    def claim(self, starts: Mapping[TopicPartition, Start]) -> None:
        with self._lock:
            for each, (committed, offset, resumed) in starts.items():
                self._forget(each)
                if not resumed and each in self._former:
                    self._again[each] = []
                self._marked[each] = committed[:2] if committed is not None else _NONE
                if committed is None and offset is not None:
                    self._marked[each] = (offset, "")
                    self._uncommitted.add(each)

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        """Begin again with a new log, to be committed from ``offset`` on."""
        Marks.claim(self, {topic_partition: Start(None, offset)})

    @property
    def paused(self) -> Collection[TopicPartition]:
        return ()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more of the messages of ``partitions`` that were received."""

    def in_work(self, partitions: Collection[TopicPartition]) -> bool:  # noqa: ARG002
        """Return True while the application has messages of ``partitions`` in work."""
        return False

    def begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        self.drop(partitions)
        deadline = time.monotonic() + timeout_s
        while self.in_work(partitions) and time.monotonic() < deadline:
            if self.member.ended.wait(_LOOK_S):
                return

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the marks of partitions: another member may be further."""
        self.drop(partitions)
        with self._lock:
            for each in partitions:
                self._forget(each)
                self._marked.pop(each, None)

    def _forget(self, place: Place) -> None:
        self._uncommitted.discard(place)
        if received := self._received.pop(place, 0):
            self._former[place] = max(received, self._former.get(place, 0))
        self._again.pop(place, None)
        self._ends.pop(place, None)

    def receive(self, messages: Sequence[Message]) -> None:
        """Take in that messages of claimed partitions were received."""
        last = messages[0]
        partition, topic = last.partition(), last.topic()
        for message in messages:
            if message.partition() != partition or message.topic() != topic:
                self._receive(last)
                partition, topic = message.partition(), message.topic()
            last = message
        self._receive(last)
        if self._again:
            with self._lock:
                for place, offset, message in ((*_place(each), each) for each in messages):
                    if place in self._again and offset < self._former.get(place, 0):
                        self._again[place].append((offset + 1, message.timestamp()))

    def _receive(self, last: Message) -> None:
        place, offset = _place(last)
        self._received[place] = offset + 1
        self._ends.pop(place, None)

    def reach_end(self, topic_partition: TopicPartition, end: int) -> None:
        """Take in that a partition has no further message before ``end``."""
        if end > self._received.get(topic_partition, 0):
            self._ends[topic_partition] = end

    def end_from(self, place: Place, offset: int) -> int:
        """Return ``offset``, or the end of the log if no message is left before that."""
        end = self._ends.get(place, offset)
        return end if self._received.get(place, 0) <= offset < end else offset

    def to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            for each, end in self._ends.items():
                offset, metadata = self._marked.get(each, (end, ""))
                # All that was received is marked: no message is left before the end.
                if self._received.get(each, -1) <= offset < end:
                    self._marked[each] = (end, metadata)
                    self._uncommitted.add(each)
            found = {each: self._marked[each] for each in self._uncommitted}
        return {TopicPartition(*each): OffsetAndMetadata(*mark) for each, mark in found.items()}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._lock:
            for each, position in offsets.items():
                if self._marked.get(each) == position[:2]:
                    self._uncommitted.discard(each)


def _counts(offset: int, metadata: str, known: int, text: str, *, reset: bool) -> bool:
    """Return True if a mark changes the one that is known, -1 if there is none."""
    further = offset < known if reset else offset > known
    return known < 0 or further or (offset == known and metadata != text)


def _place(message: Message) -> tuple[Place, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message was not read from Kafka")
    return (topic, partition), offset


def _offset_after(offset: int) -> int:
    return check_offset(check_offset(offset) + 1)


def _check_metadata(metadata: str) -> str:
    return "" if metadata == "" else check_metadata(metadata, most=MOST_METADATA_CHARS)
