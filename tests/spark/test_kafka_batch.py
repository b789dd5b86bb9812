"""Spark's batch reads of pinned ranges, against the real service and a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from offsetmgr.spark import kafka_batch
from offsetmgr.types import TopicPartition
from tests.spark.support import WAIT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetmgr.spark import KafkaBatch
    from tests.spark.support import Job, Topic


def numbers(spark: SparkSession, topic: Topic, batch: KafkaBatch) -> list[int]:
    """The records that Spark reads with the options of the batch."""
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", topic.kafka.bootstrap_servers)
        .options(**batch.options)
        .load()
    )
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_transactions_are_read_when_they_are_over(job: Job) -> None:
    """One that is open holds a batch up no more than an empty topic; an aborted one is not read.

    Spark takes empty ranges, also together with one of records, and ends where they say.
    """
    spark, client, topic, group, _ = job
    config = {"bootstrap.servers": topic.kafka.bootstrap_servers, "transactional.id": group}
    producer = Producer(config)
    producer.init_transactions(WAIT_S)
    where = TopicPartition(topic.name, 0)

    def read(most: int = 1_000) -> list[int]:
        bounds: Any = {"max_records": most, "read_committed": True}
        with kafka_batch(client, group, [topic.name], **bounds) as batch:
            return numbers(spark, topic, batch)

    for first, end, expected in (
        (0, producer.abort_transaction, []),
        (11, producer.commit_transaction, list(range(11, 21))),
    ):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(topic.name, str(number), partition=0)
        assert producer.flush(WAIT_S) == 0
        assert read() == []
        end(WAIT_S)
        # Behind ten records stands the marker of the end; the producer does not wait for it.
        stable = first + 11
        eventually(lambda: client.stable_ends([topic.name])[where], stable)
        assert read() == expected
    topic.produce(12)
    assert read(3) == [0, 1, 2]
    assert topic.described(group) == {0: 23, 1: 1, 2: 1}
