"""Topics of tables: rows are sent to them, transactions hide some, and topics are deleted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka

BY_KEY = -1


def send(
    kafka: DevKafka, topic: str, *rows: tuple[str, str | bytes | None], partition: int = BY_KEY
) -> None:
    """Produce rows to the partitions of their keys, or to one partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "fnv1a"})
    for key, value in rows:
        producer.produce(topic, value, key, partition)
    assert producer.flush(WAIT_S) == 0


def grow(kafka: DevKafka, topic: str, partitions: int) -> None:
    """Add partitions to a topic, and wait until they are listed."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)
    eventually(lambda: len(admin.list_topics(topic, WAIT_S).topics[topic].partitions), partitions)


def delete(kafka: DevKafka, topic: str) -> None:
    """Delete a topic, and wait until it is not listed any more."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    listed = partial(admin.list_topics, timeout=WAIT_S)
    eventually(lambda: topic in listed().topics, expected=False)


class Transactional:
    """A producer that leaves a transaction open."""

    def __init__(self, kafka: DevKafka, name: str) -> None:
        servers = {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "fnv1a"}
        self._producer = Producer({**servers, "transactional.id": name})
        self._producer.init_transactions(WAIT_S)

    def write(self, *rows: tuple[str, str, str], partition: int = BY_KEY) -> None:
        """Begin a transaction with rows, each a topic, a key and a value."""
        self._producer.begin_transaction()
        for topic, key, value in rows:
            self._producer.produce(topic, value, key, partition)
        assert self._producer.flush(WAIT_S) == 0

    def end(self, *, commits: bool) -> None:
        if commits:
            self._producer.commit_transaction(WAIT_S)
        else:
            self._producer.abort_transaction(WAIT_S)
