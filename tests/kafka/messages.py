"""Messages for the tests of consumers, and a pool that handles them."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.consumer import AckConsumer
from offsetmgr.consumer.retry import readable_letters
from tests.conftest import create_topic
from tests.tables import delete
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from confluent_kafka import Message

    from offsetmgr.clusters import MultiClusterAckConsumer
    from offsetmgr.consumer import (
        AckMessage,
        AckSettings,
        PartitionedConsumer,
        PartitionStream,
    )
    from offsetmgr.consumer.ack_work import OrderedBy
    from offsetmgr.consumer.retry import Letter
    from offsetmgr.devkafka import DevKafka
    from tests.kafka.mock_cluster import MockCluster

PARTITIONS = 4


def filled(kafka: DevKafka, topic: str, count: int, **options: Any) -> None:
    """Make ``topic`` with messages 0 to ``count``; ``options`` are those of ``produce``."""
    create_topic(kafka, topic, options.get("partitions", PARTITIONS))
    produce(kafka, topic, range(count), **options)


def recreate(kafka: DevKafka, topic: str, records: int, *, partitions: int = 1) -> None:
    """Create a topic that was just deleted, as soon as Kafka lets it, and fill it."""

    def created() -> bool:
        with suppress(KafkaException):
            create_topic(kafka, topic, partitions)
            return True
        return False

    until(created)
    produce(kafka, topic, range(records), partitions=partitions)


def replace_topic(
    kafka: DevKafka, topic: str, numbers: Iterable[int] = (), *, partitions: int = 1
) -> None:
    """Delete a topic and create it again at once, with these messages."""
    delete(kafka, topic)
    recreate(kafka, topic, 0, partitions=partitions)
    produce(kafka, topic, numbers, partitions=partitions)


def delete_records(kafka: DevKafka, topic: str, ends: dict[int, int]) -> None:
    """Delete the records before an offset of each partition, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    before = [KafkaPartition(topic, number, end) for number, end in ends.items()]
    for deleted in admin.delete_records(before).values():
        deleted.result(WAIT_S)


def produce(
    kafka: DevKafka | MockCluster,
    topic: str,
    numbers: Iterable[int],
    *,
    partitions: int = PARTITIONS,
    keys: int = 0,
    text: Callable[[int], str] = str,
) -> None:
    """Produce message n to partition n % ``partitions``, or by key where there are ``keys``."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        if keys:
            producer.produce(topic, text(number), f"key-{number % keys}")
        else:
            producer.produce(topic, text(number), partition=number % partitions)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def send(
    kafka: DevKafka, topic: str, *messages: str | bytes | dict[str, Any] | None, **config: Any
) -> None:
    """Produce messages: values, or arguments of ``produce``; ``config`` is of the producer."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **config})
    for each in messages:
        arguments = each if isinstance(each, dict) else {"value": each}
        producer.produce(topic, **arguments)
    assert producer.flush(WAIT_S) == 0


def number_of(message: Message | AckMessage) -> int:
    return int(message.value() or b"-1")


def read_letters(kafka: Mapping[str, object], topic: str, timeout_s: float) -> list[Letter]:
    """Return the letters of ``topic``, all of which can be read."""
    letters, unread = readable_letters(kafka, topic, timeout_s)
    assert not unread
    return letters


def polled(consumer: Any) -> Any:
    """Return the next message."""
    message = consumer.poll(timeout=WAIT_S)
    assert message is not None
    return message


def committed(
    kafka: DevKafka, group: str, topic: str, partitions: int = PARTITIONS
) -> dict[int, tuple[int, str | None]]:
    """Return offset and metadata of each partition that has one."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        asked = [KafkaPartition(topic, number) for number in range(partitions)]
        answers = consumer.committed(asked, WAIT_S)
        return {p.partition: (p.offset, p.metadata) for p in answers if p.offset >= 0}
    finally:
        consumer.close()


@contextmanager
def reading_streams(
    consumer: PartitionedConsumer, seen: list[int]
) -> Iterator[list[PartitionStream]]:
    """Read and mark each stream in a thread of its own; yields the streams that have ended."""
    ended: list[PartitionStream] = []

    def read(stream: PartitionStream) -> None:
        for message in stream:
            consumer.mark_offset(message)
            seen.append(number_of(message))
        ended.append(stream)

    def read_all() -> None:
        for stream in consumer.partitions():
            threading.Thread(target=read, args=[stream]).start()

    reader = threading.Thread(target=read_all)
    reader.start()
    with consumer:
        yield ended
    reader.join()


@contextmanager
def running(
    consumer: AckConsumer | MultiClusterAckConsumer,
    handler: Callable[[AckMessage], object],
    *,
    workers: int = 4,
    ordered_by: OrderedBy | None = None,
) -> Iterator[None]:
    """Run a pool in a thread; close the consumer, and wait for the pool, at the end."""
    options = {"workers": workers, "ordered_by": ordered_by}
    thread = threading.Thread(target=consumer.run, args=[handler], kwargs=options)
    thread.start()
    try:
        yield
    finally:
        consumer.close()
        thread.join()


def handled(
    kafka: DevKafka,
    group: str,
    handler: Callable[[AckMessage], object],
    done: Callable[[], object],
    settings: AckSettings | None = None,
    **options: Any,
) -> AckConsumer:
    """Run a pool for the topic of the group's name until ``done()``, and no message is pending."""
    consumer = AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings)
    with running(consumer, handler, **options):
        until(lambda: done() and consumer.pending == 0)
    return consumer
