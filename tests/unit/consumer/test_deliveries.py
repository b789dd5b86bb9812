"""Messages between Kafka and the application, with a clock and messages made by hand."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from confluent_kafka import Message

from offsetmgr.acked_ranges import encode_acks
from offsetmgr.consumer.ack_work import AckSettings, AckWork
from offsetmgr.consumer.deliveries import AckFunctions, AckMessage, Claim, Deliveries
from offsetmgr.consumer.member import Start
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

WHERE = TopicPartition("orders", 0)


class Consumer:
    """Takes the acks and nacks of messages."""

    def __init__(self, committed: OffsetAndMetadata | None = None) -> None:
        self.deliveries = Deliveries(ack_timeout_s=30)
        self.now_s = 0.0
        self.claim(committed)

    def claim(self, committed: OffsetAndMetadata | None, start: int | None = None) -> None:
        functions = AckFunctions("here", self.deliveries.acknowledge, self.reject)
        self.deliveries.claim(Claim(functions, WHERE, committed, start=start))

    @property
    def claimed(self) -> Claim:
        claim = self.deliveries.claim_of(WHERE)
        assert claim is not None
        return claim

    def end(self, offset: int) -> None:
        self.claimed.reach_end(offset)

    def read(self, offsets: Iterable[int], due_s: float = 0) -> None:
        for offset in offsets:
            read = Message(topic="orders", partition=0, offset=offset, value=b"%d" % offset)
            self.deliveries.add(AckMessage(read, self.claimed), due_s, self.now_s)

    def handed_out(self) -> list[AckMessage]:
        self.deliveries.refresh(self.now_s)
        found = []
        while (message := self.deliveries.next(self.now_s)) is not None:
            found.append(message)
        return found

    def reject(
        self, message: AckMessage, delay: float | None, error: BaseException | str | None
    ) -> None:
        del error
        if self.deliveries.reject(message):
            self.deliveries.redeliver(message, self.now_s + (delay or 0))

    @property
    def position(self) -> OffsetAndMetadata | None:
        return self.deliveries.positions().get(WHERE)


def offsets(messages: Iterable[AckMessage]) -> list[int]:
    return [each.offset() for each in messages]


def test_committed_offsets_are_not_committed_again() -> None:
    consumer = Consumer(OffsetAndMetadata(5))
    assert consumer.deliveries.positions() == {}
    consumer.read([5, 6])
    for message in consumer.handed_out():
        message.ack()
    assert consumer.position == OffsetAndMetadata(7)
    consumer.deliveries.committed({WHERE: OffsetAndMetadata(7)})
    assert consumer.deliveries.positions() == {}


def test_a_new_log_begins_with_new_acks() -> None:
    """Its first offset is to be committed at once; acks of the former log are ignored."""
    consumer = Consumer(OffsetAndMetadata(100))
    consumer.read([100, 101])
    old = consumer.handed_out()
    consumer.claim(None, start=0)
    assert consumer.position == OffsetAndMetadata(0)
    consumer.read([0, 1])
    assert offsets(consumer.handed_out()) == [0, 1]
    for message in old:
        message.ack()
    assert consumer.position == OffsetAndMetadata(0)


def test_the_end_of_the_log_is_committed_once_all_before_it_is_done() -> None:
    """Markers of transactions and other gaps are behind the last message, or alone in the log."""
    consumer = Consumer(OffsetAndMetadata(5))
    consumer.end(7)
    assert consumer.position == OffsetAndMetadata(7)
    consumer.read([7, 8])
    consumer.read([9], due_s=10)
    first, second = consumer.handed_out()
    consumer.end(12)
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
    assert consumer.deliveries.next_due_s() == 5
    consumer.now_s = 5
    (again,) = consumer.handed_out()
    assert (again.offset(), again.tries, again.value()) == (0, 2, b"0")
    assert consumer.position == OffsetAndMetadata(0, encode_acks(0, [(1, 2)]))
    again.ack()
    assert consumer.position == OffsetAndMetadata(2)
    assert consumer.deliveries.pending == 0


def test_a_late_ack_counts_and_is_not_delivered_again() -> None:
    consumer = Consumer()
    consumer.read([0])
    (message,) = consumer.handed_out()
    consumer.now_s = 29.9
    assert consumer.deliveries.overdue(consumer.now_s) == []
    consumer.now_s = 30
    assert consumer.deliveries.overdue(consumer.now_s) == [message]
    message.nack(delay=1)
    message.ack()
    consumer.now_s = 31
    assert consumer.handed_out() == []
    assert consumer.position == OffsetAndMetadata(1)


def test_acks_of_a_former_claim_are_ignored() -> None:
    consumer = Consumer()
    consumer.read([0, 1, 2])
    old = consumer.handed_out()
    consumer.deliveries.release([WHERE])
    assert consumer.deliveries.pending == 0
    consumer.claim(OffsetAndMetadata(0))
    consumer.read([0, 1])
    for message in old:
        message.ack()
        message.nack()
        consumer.deliveries.acknowledge_up_to(message)
    assert consumer.deliveries.pending == 2
    assert offsets(consumer.handed_out()) == [0, 1]
    assert consumer.position in {None, OffsetAndMetadata(0)}


def test_a_release_waits_only_for_messages_in_work() -> None:
    consumer = Consumer()
    consumer.read([0, 1, 2, 3])
    in_work = [consumer.deliveries.next(0), consumer.deliveries.next(0)]
    assert len(consumer.deliveries.in_work()) == 2
    consumer.deliveries.begin_release([WHERE])
    assert consumer.handed_out() == []
    for message in in_work:
        assert message is not None
        message.ack()
    assert consumer.deliveries.in_work() == []
    assert consumer.position == OffsetAndMetadata(2)


def test_a_queued_message_has_no_time_out_and_holds_up_no_release() -> None:
    consumer = Consumer()
    consumer.read([0, 1])
    first, second = (consumer.deliveries.next_ready() for _ in range(2))
    assert first is not None
    assert second is not None
    assert consumer.deliveries.overdue(1_000) == []
    assert consumer.deliveries.begin(first, 1_000)
    assert consumer.deliveries.overdue(1_029) == []
    assert consumer.deliveries.overdue(1_030) == [first]
    assert len(consumer.deliveries.in_work()) == 1
    consumer.deliveries.begin_release([WHERE])
    assert not consumer.deliveries.begin(second, 1_030)
    first.ack()
    assert consumer.deliveries.in_work() == []


def test_commit_up_to_includes_messages_not_handed_out() -> None:
    consumer = Consumer()
    consumer.read(range(10))
    messages = [consumer.deliveries.next(0) for _ in range(4)]
    last = messages[-1]
    assert last is not None
    consumer.deliveries.acknowledge_up_to(last)
    assert consumer.position == OffsetAndMetadata(4)
    assert consumer.deliveries.in_work() == []
    assert offsets(consumer.handed_out()) == [4, 5, 6, 7, 8, 9]


def test_a_partition_without_room_waits_and_its_metadata_fits() -> None:
    """Every second message is acknowledged: the metadata grows, until no more is delivered."""
    consumer = Consumer()
    consumer.read(range(10_000))
    seen = []
    while messages := consumer.handed_out():
        seen += messages
        for message in messages:
            if message.offset() % 2:
                message.ack()
    assert consumer.deliveries.blocked() == {WHERE}
    position = consumer.position
    assert position is not None
    assert len(position.metadata) <= 4095
    for message in seen:
        message.ack()
    while messages := consumer.handed_out():
        seen += messages
        for message in messages:
            message.ack()
    assert offsets(seen) == list(range(10_000))
    assert consumer.deliveries.blocked() == set()
    assert consumer.position == OffsetAndMetadata(10_000)


def test_a_delayed_message_holds_back_those_behind_it() -> None:
    consumer = Consumer()
    consumer.read([0], due_s=10)
    consumer.read([1])
    assert consumer.handed_out() == []
    assert consumer.deliveries.blocked() == {WHERE}
    consumer.now_s = 10
    assert offsets(consumer.handed_out()) == [0, 1]
    assert consumer.deliveries.blocked() == set()


def test_messages_acknowledged_at_once_are_read_in_large_batches() -> None:
    """The usual size of a message is known though none is pending between two reads."""
    settings = AckSettings(max_pending=1_000, max_pending_bytes=100_000)
    work = AckWork(settings, "here", None)
    work.claim({WHERE: Start(None, 0)})
    for offset, size in enumerate((10, 10, 1_500)):
        value = b"x" * size
        work.receive([Message(topic="orders", partition=0, offset=offset, value=value)])
        message = work.next()
        assert message is not None
        message.ack()
        assert work._room() == min(1_000, ceil(100_000 / message.size))
