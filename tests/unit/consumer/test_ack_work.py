"""Messages between Kafka and the application, with a clock and messages made by hand."""

from __future__ import annotations

from itertools import count
from math import ceil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message

from offsetmgr.acked_ranges import encode_acks
from offsetmgr.consumer.ack_work import AckMessage, AckSettings, AckWork, Claim
from offsetmgr.consumer.work import Start
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.interrupted import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterable

WHERE = TopicPartition("orders", 0)


class Consumer:
    """The messages of a claimed partition, with a clock of their own."""

    def __init__(self, committed: OffsetAndMetadata | None = None, **settings: Any) -> None:
        self.now_s = 0.0
        options = {"ack_timeout_s": 30, **settings}
        self.work = AckWork(AckSettings(**options), "here", None, lambda: self.now_s)
        self.errors: list[str] = []
        self.work.member = SimpleNamespace(report=lambda error, _: self.errors.append(str(error)))
        self.claim(committed)

    def claim(self, committed: OffsetAndMetadata | None, start: int | None = None) -> None:
        self.work.claim({WHERE: Start(committed, start)})

    @property
    def claimed(self) -> Claim:
        return self.work.claims[WHERE]

    def read(self, offsets: Iterable[int], due_s: float = 0) -> None:
        for offset in offsets:
            read = Message(topic="orders", partition=0, offset=offset, value=b"%d" % offset)
            if due_s:
                self.claimed.waiting.append((due_s, AckMessage(read, self.claimed)))
                self.claimed.waiting_bytes += self.claimed.waiting[-1][1].size
            else:
                self.work.receive(WHERE, [read])

    def handed_out(self) -> list[AckMessage]:
        self.work.refresh()
        return list(iter(self.work.next, None))

    def overdue(self, now_s: float) -> list[AckMessage]:
        self.now_s = now_s
        return self.work.overdue()

    @property
    def position(self) -> OffsetAndMetadata | None:
        return self.work.to_commit().get(WHERE)


def offsets(messages: Iterable[AckMessage]) -> list[int]:
    return [each.offset() for each in messages]


def test_an_ack_that_a_signal_handler_interrupts_anywhere() -> None:
    """Its message is acknowledged, or its time runs out: it never waits for good."""
    for at in count(1):
        consumer = Consumer()
        consumer.read([5])
        [message] = consumer.handed_out()
        was_interrupted = interrupted(message.ack, at)
        assert not message.is_pending or consumer.overdue(31) == [message]
        if not was_interrupted:
            return


def test_committed_offsets_are_not_committed_again() -> None:
    consumer = Consumer(OffsetAndMetadata(5))
    assert consumer.work.to_commit() == {}
    consumer.read([5, 6])
    for message in consumer.handed_out():
        message.ack()
    assert consumer.position == OffsetAndMetadata(7)
    consumer.work.committed({WHERE: OffsetAndMetadata(7)})
    assert consumer.work.to_commit() == {}


def test_the_end_of_the_log_is_committed_once_all_before_it_is_done() -> None:
    """Markers of transactions and other gaps are behind the last message, or alone in the log."""
    consumer = Consumer(OffsetAndMetadata(5))
    consumer.work.reach_end(WHERE, 7)
    assert consumer.position == OffsetAndMetadata(7)
    consumer.read([7, 8])
    consumer.read([9], due_s=10)
    first, second = consumer.handed_out()
    consumer.work.reach_end(WHERE, 12)
    second.ack()
    first.ack()
    assert consumer.position == OffsetAndMetadata(9), "a delayed message is before the end"
    consumer.now_s = 10
    (third,) = consumer.handed_out()
    third.ack()
    assert consumer.position == OffsetAndMetadata(12)


def test_committed_ranges_beyond_the_end_of_the_log_are_ignored() -> None:
    consumer = Consumer(OffsetAndMetadata(5, encode_acks(5, [(6, 8), (20, 30)])))
    assert not consumer.claimed.checked
    assert not Consumer(OffsetAndMetadata(5)).claimed.drop_ranges_beyond(0)
    assert consumer.claimed.drop_ranges_beyond(29)
    consumer.read(range(5, 10))
    assert offsets(consumer.handed_out()) == [5, 6, 7, 8, 9]
    fits = Consumer(OffsetAndMetadata(5, encode_acks(5, [(6, 8)])))
    assert not fits.claimed.drop_ranges_beyond(8)
    fits.read(range(5, 10))
    assert offsets(fits.handed_out()) == [5, 8, 9]


def test_a_nack_delivers_again_after_its_delay_and_counts() -> None:
    consumer = Consumer()
    consumer.read([0, 1])
    first, second = consumer.handed_out()
    first.nack(delay=5)
    first.nack(delay=0)  # done already
    second.ack()
    consumer.now_s = 4.9
    assert consumer.handed_out() == []
    assert consumer.work.refresh() == 5
    consumer.now_s = 5
    (again,) = consumer.handed_out()
    assert (again.offset(), again.tries, again.value()) == (0, 2, b"0")
    assert consumer.position == OffsetAndMetadata(0, encode_acks(0, [(1, 2)]))
    again.ack()
    assert consumer.position == OffsetAndMetadata(2)
    assert consumer.work.pending == 0


def test_a_late_ack_counts_and_is_not_delivered_again() -> None:
    consumer = Consumer()
    consumer.read([0])
    (message,) = consumer.handed_out()
    assert consumer.overdue(29.9) == []
    assert consumer.overdue(30) == [message]
    message.nack(delay=1)
    message.ack()
    consumer.now_s = 31
    assert consumer.handed_out() == []
    assert consumer.position == OffsetAndMetadata(1)


@pytest.mark.parametrize("start", [None, 0])
def test_acks_of_a_former_claim_are_reported_and_change_nothing(start: int | None) -> None:
    """Not those of messages that were acknowledged in time: they do not come again.

    The first offset of a new log is to be committed at once.
    """
    consumer = Consumer(OffsetAndMetadata(0))
    consumer.read([0, 1, 2])
    old = consumer.handed_out()
    old[2].ack()
    if start is None:
        consumer.work.release([WHERE])
        assert consumer.work.pending == 0
    consumer.claim(OffsetAndMetadata(0) if start is None else None, start)
    position = None if start is None else OffsetAndMetadata(start)
    assert consumer.position == position
    consumer.read([0, 1])
    for message in old:
        message.ack()
        message.nack()
        consumer.work.acknowledge_up_to(message)
    assert consumer.work.pending == 2
    late = "orders-0 was released before messages of it were acknowledged"
    assert {each.split(";")[0] for each in consumer.errors} == {late}
    consumer.errors.clear()
    old[2].ack()
    assert consumer.errors == []
    assert offsets(consumer.handed_out()) == [0, 1]
    assert consumer.position == position


def test_a_release_waits_for_a_message_that_is_just_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if it begins right after the last look at the message's partition."""
    consumer, seen = Consumer(), list[bool]()

    def is_releasing(_: Claim) -> bool:
        seen.append(consumer.work._has_in_work([WHERE]))
        return False

    consumer.read([0])
    monkeypatch.setattr(Claim, "releasing", property(is_releasing), raising=False)
    assert consumer.work.next() is not None
    assert seen == [True]


def test_only_messages_in_work_time_out_and_hold_up_a_release() -> None:
    consumer = Consumer()
    consumer.read([0, 1, 2])
    assert consumer.overdue(1_000) == []
    in_work = [message for message in (consumer.work.next(), consumer.work.next()) if message]
    assert consumer.overdue(1_029) == []
    assert consumer.overdue(1_030) == in_work
    consumer.work.begin_release([WHERE], 0)
    assert consumer.handed_out() == []
    for message in in_work:
        assert consumer.work._has_in_work([WHERE])
        message.ack()
    assert not consumer.work._has_in_work([WHERE])
    assert consumer.position == OffsetAndMetadata(2)


def test_commit_up_to_includes_messages_not_handed_out() -> None:
    consumer = Consumer()
    consumer.read(range(10))
    messages = [consumer.work.next() for _ in range(4)]
    last = messages[-1]
    assert last is not None
    consumer.work.acknowledge_up_to(last)
    assert consumer.position == OffsetAndMetadata(4)
    assert consumer.work._of([WHERE]) == []
    assert offsets(consumer.handed_out()) == [4, 5, 6, 7, 8, 9]


@pytest.fixture
def small_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetmgr.consumer.ack_work.MOST_METADATA_CHARS", 400)


@pytest.mark.usefixtures("small_metadata")
def test_a_partition_without_room_waits_and_its_metadata_fits() -> None:
    """Every second message is acknowledged: the metadata grows, until no more is delivered."""
    consumer = Consumer()
    consumer.read(range(1_000))
    seen = []
    while messages := consumer.handed_out():
        seen += messages
        for message in messages:
            if message.offset() % 2:
                message.ack()
    assert consumer.work.paused == {WHERE}
    position = consumer.position
    assert position is not None
    assert 300 < len(position.metadata) <= 400
    for message in seen:
        message.ack()
    while messages := consumer.handed_out():
        seen += messages
        for message in messages:
            message.ack()
    assert offsets(seen) == list(range(1_000))
    assert consumer.work.paused == set()
    assert consumer.position == OffsetAndMetadata(1_000)


@pytest.mark.usefixtures("small_metadata")
def test_a_partition_that_is_full_of_given_up_messages_is_reported() -> None:
    """Nothing more of it comes, and no ack will change that: it would look like an idle topic."""
    consumer = Consumer(max_tries=1)
    texts = consumer.errors
    consumer.read(range(1_000))
    given_up = []
    while messages := consumer.handed_out():
        for message in messages:
            if message.offset() % 2:
                message.ack()
            else:
                assert not any("no more of" in text for text in texts)
                message.nack()
                given_up.append(message)
    consumer.work.refresh()
    assert texts[-1].startswith(f"no more of orders-0 is delivered: {len(given_up)} messages")
    for message in given_up:
        message.ack()
    assert consumer.handed_out()


def test_a_delayed_message_holds_back_those_behind_it() -> None:
    consumer = Consumer()
    consumer.read([0], due_s=10)
    consumer.read([1])
    assert consumer.handed_out() == []
    assert consumer.work.paused == {WHERE}
    consumer.now_s = 10
    assert offsets(consumer.handed_out()) == [0, 1]
    assert consumer.work.paused == set()


def test_messages_that_wait_take_half_of_the_room() -> None:
    """The others are read again, once those are handed out; none is skipped."""
    consumer = Consumer(max_pending_bytes=10_000)
    consumer.read([0], due_s=10)
    log = [Message(topic="orders", partition=0, offset=offset) for offset in range(30)]
    consumer.work.receive(WHERE, log[1:20])
    consumer.work.receive(WHERE, log[20:])
    consumer.work.reach_end(WHERE, 30)
    assert consumer.work._room() >= 5_000 // consumer.claimed.waiting[0][1].size
    assert consumer.work.take_left_off() == {}
    consumer.now_s = 10
    seen = consumer.handed_out()
    while left_off := consumer.work.take_left_off():
        consumer.work.receive(WHERE, log[left_off[WHERE] :])
        seen += consumer.handed_out()
    assert offsets(seen) == list(range(30))
    for message in seen:
        message.ack()
    assert consumer.position == OffsetAndMetadata(30)


def test_messages_acknowledged_at_once_are_read_in_large_batches() -> None:
    """The usual size of a message is known though none is pending between two reads."""
    settings = AckSettings(max_pending=1_000, max_pending_bytes=100_000)
    work = AckWork(settings, "here", None)
    work.claim({WHERE: Start(None, 0)})
    for offset, size in enumerate((10, 10, 1_500)):
        value = b"x" * size
        work.receive(WHERE, [Message(topic="orders", partition=0, offset=offset, value=value)])
        message = work.next()
        assert message is not None
        message.ack()
        assert work._room() == min(1_000, ceil(100_000 / message.size))
