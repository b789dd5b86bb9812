"""Messages for the tests of consumers, and a pool that handles them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.conftest import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from offsetmgr.clusters import MultiClusterAckConsumer
    from offsetmgr.consumer import AckConsumer, AckMessage
    from offsetmgr.consumer.ack_work import OrderedBy
    from offsetmgr.devkafka import DevKafka
    from tests.kafka.mock_cluster import MockCluster

PARTITIONS = 4
WAIT_S = 60.0


def filled(kafka: DevKafka, topic: str, count: int, **options: Any) -> None:
    """Make ``topic`` with messages 0 to ``count``; ``options`` are those of ``produce``."""
    create_topic(kafka, topic, options.get("partitions", PARTITIONS))
    produce(kafka, topic, range(count), **options)


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
