"""Marks of processed messages, and messages and errors that wait for the application."""

from __future__ import annotations

import random
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest
from confluent_kafka import Message

from offsetmgr.consumer.base import MessageReader
from offsetmgr.consumer.group import (
    BUFFERED_BYTES,
    Markable,
    MarkedStream,
    OffsetStash,
    PartitionStream,
)
from offsetmgr.consumer.settings import drain
from offsetmgr.consumer.work import Start
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Marked(Markable):
    """Marks of two claimed partitions."""

    def __init__(self, committed: int | None = None) -> None:
        self.marks = MarkedStream()
        self._mark = self.marks.mark
        known = None if committed is None else OffsetAndMetadata(committed)
        self.marks.claim({ZERO: Start(known), ONE: Start(known)})

    def receive(self, received: list[Message]) -> None:
        for message in received:
            self.marks.receive(TopicPartition("orders", message.partition() or 0), [message])

    def commit(self) -> dict[int, tuple[int, str]]:
        """Return what is to be committed now, by partition."""
        found = self.marks.to_commit()
        self.marks.committed(found)
        return {each.partition: (at.offset, at.metadata) for each, at in found.items()}


def messages(*places: tuple[int, int], topic: str = "orders", at_ms: int = 0) -> list[Message]:
    time = (1, at_ms)
    return [Message(topic=topic, partition=each, offset=at, timestamp=time) for each, at in places]


@pytest.mark.parametrize("seed", range(20))
def test_the_highest_of_several_messages_is_marked(seed: int) -> None:
    """In any order, of several partitions and topics, in a batch and in a stash."""
    places = [(0, at) for at in (2, 3, 1)] + [(1, at) for at in (7, 5, 6)]
    random.Random(seed).shuffle(places)  # noqa: S311
    batch = messages(*places)
    batch[3:3] = messages((0, 99), topic="payments")
    marked, stash = Marked(), OffsetStash()
    marked.mark_messages(batch)
    stash.mark_messages(batch)
    assert marked.commit() == {0: (4, ""), 1: (8, "")}
    assert stash.offsets() == {ZERO: 3, ONE: 7, TopicPartition("payments", 0): 99}


def test_the_last_messages_of_a_batch_are_known_while_it_is_unchanged() -> None:
    """A batch may end within what was received at once; a shorter list has its own highest."""
    marked = Marked()
    received = messages(*[(0, at) for at in range(5)]), messages(*[(1, at) for at in range(5)])
    for run in received:
        marked.marks.receive(TopicPartition("orders", run[0].partition() or 0), run)
    assert marked.marks.next() is received[0][0]
    batch, rest = marked.marks.take(7), marked.marks.take(7)
    assert [*batch, *rest] == [*received[0][1:], *received[1]]
    assert marked.marks.lasts_of(batch) == marked.marks.lasts_of(tuple(rest)) == ()
    assert marked.marks.lasts_of(rest) == received[1][-1:]
    assert marked.marks.lasts_of(rest[:-1]) == marked.marks.lasts_of([]) == ()
    for run in received:
        marked.marks.receive(TopicPartition("orders", run[0].partition() or 0), run)
    batch = marked.marks.take(7)
    assert marked.marks.lasts_of(batch) == [received[0][-1], batch[-1]]


@pytest.mark.parametrize("bad", [None, "orders", 5, Message(topic="orders", partition=0)])
def test_a_mark_of_something_that_was_not_read_is_refused(bad: Any) -> None:
    """As the None of a poll that has timed out; the good messages of its list stay unmarked."""
    marked = Marked()
    good = messages((0, 3), (1, 5))
    for refused in ([*good, bad], [bad, *good], bad):
        with pytest.raises(InvalidValueError, match=r"was not read from Kafka|is not a list"):
            marked.mark_messages(refused)
    for mark in (marked.mark_offset, marked.reset_offset, OffsetStash().mark_offset):
        with pytest.raises(InvalidValueError, match="was not read from Kafka"):
            mark(bad)
    assert marked.commit() == {}


@pytest.mark.parametrize("metadata", [None, 0, b"", []])
def test_metadata_that_is_not_text_is_refused(metadata: Any) -> None:
    """No commit could send it, nor the marks of other partitions in the same request."""
    with pytest.raises(InvalidValueError, match=r"metadata .* is not text"):
        OffsetStash().mark_partition_offset("orders", 0, 5, metadata)


def test_a_stash_is_empty_once_it_is_marked() -> None:
    """Used again, it does not repeat an old reset: 1,901 stays 1,901."""
    marked, stash = Marked(), OffsetStash()
    marked.mark_partition_offset("orders", 0, 1_800)
    stash.mark_partition_offset("orders", 0, 1_700)
    stash.reset_partition_offset("orders", 0, 1_500)
    marked.mark_offsets(stash)
    assert marked.commit() == {0: (1_501, "")}
    marked.mark_partition_offset("orders", 0, 1_900)
    marked.mark_offsets(stash)
    marked.reset_offsets(stash)
    assert marked.commit() == {0: (1_901, "")}
    stash.mark_partition_offset("orders", 0, 1_950)
    marked.mark_offsets(stash)
    assert marked.commit() == {0: (1_951, "")}
    stash.mark_partition_offset("orders", 0, 1_000)
    marked.reset_offsets(stash)
    assert marked.commit() == {0: (1_001, "")}


def test_an_equal_offset_with_new_metadata_counts() -> None:
    marked, stash = Marked(), OffsetStash()
    for target in (marked, stash):
        for metadata in ("", "a", "b", "b"):
            target.mark_partition_offset("orders", 0, 5, metadata)
        target.mark_partition_offset("orders", 0, 4, "lower")
    assert marked.commit() == {0: (6, "b")}
    marked.mark_partition_offset("orders", 0, 5, "b")
    assert marked.commit() == {}
    marked.mark_offsets(stash)
    assert marked.commit() == {}
    marked.mark_partition_offset("orders", 0, 5, "c")
    assert marked.commit() == {0: (6, "c")}


def test_the_end_is_committed_once_all_that_was_received_is_marked() -> None:
    """Markers and gaps follow the last message; nothing is committed ahead of a mark."""
    marked = Marked()
    marked.receive(messages((0, 3), (0, 4), (1, 0)))
    marked.marks.reach_end(ZERO, 12)
    marked.marks.reach_end(ONE, 1)
    assert marked.commit() == {}
    marked.mark_partition_offset("orders", 0, 3, "half")
    assert marked.commit() == {0: (4, "half")}
    marked.mark_partition_offset("orders", 0, 4, "all")
    assert marked.commit() == {0: (12, "all")}
    assert marked.commit() == {}
    marked.receive(messages((0, 12)))
    assert marked.commit() == {}, "there is a message again"
    marked.mark_partition_offset("orders", 0, 12)
    marked.marks.reach_end(ZERO, 14)
    assert marked.commit() == {0: (14, "")}


def test_a_log_without_messages_is_committed_to_its_end() -> None:
    """As after an aborted transaction, with something committed before or nothing."""
    for committed in (10, None):
        marked = Marked(committed)
        marked.marks.reach_end(ZERO, 102)
        marked.marks.reach_end(ONE, 0)
        assert marked.commit() == {0: (102, "")}


def test_a_reset_is_not_undone_at_the_end_of_the_log() -> None:
    marked = Marked()
    marked.receive(messages((0, 4)))
    marked.mark_partition_offset("orders", 0, 4)
    marked.reset_partition_offset("orders", 0, 1)
    marked.marks.reach_end(ZERO, 7)
    assert marked.commit() == {0: (2, "")}


@pytest.mark.parametrize("new", ["restart", "claim"])
def test_a_late_mark_of_a_former_log_does_not_count_for_the_new_one(new: str) -> None:
    """Though the new log has that offset too; it may have been noticed, or begin with a claim."""
    marked = Marked(100)
    old = messages((0, 100), (0, 139))
    marked.receive(old)
    if new == "restart":
        marked.marks.restart(ZERO, 0)
        marked.mark_messages(old)
    else:
        marked.marks.release([ZERO])
        marked.marks.claim({ZERO: Start(None)})
    young = [messages((0, at), at_ms=1)[0] for at in range(200)]
    marked.receive(young)
    stash = OffsetStash()
    stash.mark_messages(old)
    marked.mark_messages(old)
    marked.mark_offsets(stash)
    assert marked.commit() == ({0: (0, "")} if new == "restart" else {})
    for at in (30, 20, 138, 139, 199):
        marked.mark_offset(young[at])
        marked.mark_messages(old)
    assert marked.commit() == {0: (200, "")}


def test_a_reset_that_is_higher_changes_nothing() -> None:
    marked = Marked(100)
    for offset in (120, 99, 50, 70):
        marked.reset_partition_offset("orders", 0, offset)
    assert marked.commit() == {0: (51, "")}


def test_large_messages_of_an_unread_stream_do_not_fill_the_memory() -> None:
    """Its partition is paused from 16 MiB on, until half of that is taken."""
    stream = PartitionStream(TopicPartition("orders", 0), Mock(), threading.RLock())
    large = Message(topic="orders", partition=0, value=b"x" * (BUFFERED_BYTES // 4))
    paused = []
    for _ in range(5):
        stream.put([large])
        paused.append(stream.paused)
    paused.extend(stream.paused for _ in zip(range(4), stream, strict=False))
    assert paused == [False] * 4 + [True] * 3 + [False] * 2


class Reader(MessageReader[Message]):
    """Hands out what it is given, without a Kafka."""

    def __init__(self, work: Any) -> None:
        self._work, self._member, self._next = work, cast("Any", self), work.next
        self.ended = threading.Event()

    def _begin(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it is made without a subscription")

    def raise_failure(self) -> None:
        """Nothing has ended it but a signal."""


def awaited(reader: Reader) -> object:
    try:
        cast("Any", reader.__aiter__()).__anext__().send(None)
    except StopIteration as answer:
        return answer.value
    raise AssertionError("there was no message")


READS: dict[str, Callable[[Any], object]] = {
    "iteration": lambda reader: next(iter(reader)),
    "poll": lambda reader: reader.poll(),
    "batches": lambda reader: next(reader.batches(1))[0],
    "event loop": awaited,
    "stream": lambda stream: next(iter(stream)),
}


class InterruptedLock:
    """After its next use a signal's handler raises."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_due = False

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self.is_due:
            raise TimeoutError("too late")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


@pytest.mark.parametrize("how", READS)
def test_a_consumer_ends_where_a_signal_handler_may_have_lost_a_message(how: str) -> None:
    """A later mark would pass that message over, whatever the handler raises."""
    work, lock = MarkedStream(), InterruptedLock()
    work.lock = cast("Any", lock)
    work.claim({ZERO: Start(None)})
    reader = Reader(work)
    stream = PartitionStream(ZERO, cast("Any", reader), work.lock)
    for receive in (partial(work.receive, ZERO), stream.put):
        receive(messages((0, 1), (0, 2)))
    lock.is_due = True
    with pytest.raises(TimeoutError, match="too late"):
        READS[how](stream if how == "stream" else reader)
    assert reader.closed


class SharedDeque(deque[int]):
    """Another thread takes an item after this one has looked how many there are."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_errors_may_be_taken_by_several_threads_at_once() -> None:
    assert drain(SharedDeque([1, 2, 3])) == [1, 2, 3]
