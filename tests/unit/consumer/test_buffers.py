"""Messages and errors that wait for the application."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, cast

from confluent_kafka import Message

from offsetmgr.consumer.group import BUFFERED_BYTES, PartitionStream
from offsetmgr.consumer.settings import drain
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from offsetmgr.consumer.member import Member


def test_large_messages_of_an_unread_stream_do_not_fill_the_memory() -> None:
    """Its partition is paused from 16 MiB on, until half of that is taken."""
    stream = PartitionStream(TopicPartition("orders", 0), cast("Member", None))
    large = Message(topic="orders", partition=0, value=b"x" * (BUFFERED_BYTES // 4))
    paused = []
    for _ in range(5):
        stream.put([large])
        paused.append(stream.paused)
    paused.extend(stream.paused for _ in zip(range(4), stream, strict=False))
    assert paused == [False] * 4 + [True] * 3 + [False] * 2


class SharedDeque(deque[int]):
    """Another thread takes an item after this one has looked how many there are."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_errors_may_be_taken_by_several_threads_at_once() -> None:
    assert drain(SharedDeque([1, 2, 3])) == [1, 2, 3]
