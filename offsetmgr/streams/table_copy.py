"""Copies a table's topic into one with another number of partitions."""

from __future__ import annotations

import time
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.kafka.messages import headers_of
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.streams.errors import TopicsError
from offsetmgr.streams.kafka import PARTITIONER
from offsetmgr.streams.topics import TopicManager, TopicSettings
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from offsetmgr.answers import Written


class TableCopy(NamedTuple):
    """A copy that is planned or done."""

    source: str
    target: str
    source_partitions: int
    target_partitions: int
    messages: int
    """Offsets of the source before the copy, afterwards the messages that were copied."""


def plan_copy(
    kafka: Mapping[str, object], source: str, target: str, partitions: int | None
) -> TableCopy:
    """Return what a copy would do; ``partitions`` are those of a target that does not exist.

    Raises TopicsError where there is no source, an open transaction hides a part of it, or the
    target has messages; InvalidValueError without a number of partitions; KafkaRequestError.
    """
    with TopicManager(kafka) as topics:
        found = topics.partitions([source, target])
        if source not in found or source == target:
            raise TopicsError(f"topic {source} cannot be copied: name one that exists, and another")
        logs = {topic: log.partitions.values() for topic, log in topics.logs(found).items()}
    sizes = {
        topic: sum(ends.high_watermark - ends.log_start_offset for ends in log)
        for topic, log in logs.items()
    }
    if sizes.get(target):
        raise TopicsError(f"topic {target} has {sizes[target]} messages: name one that has none")
    for place, ends in enumerate(logs[source]):
        if (ends.last_stable_offset or 0) < ends.high_watermark:
            raise TopicsError(
                f"an open transaction hides the messages of {source}/{place} from offset "
                f"{ends.last_stable_offset} on: stop what writes the table, or abort it"
            )
    number = len(found[target]) if target in found else partitions
    if number is None:
        hint = "give the number of the target, which does not exist"
        raise InvalidValueError("partitions", None, "is missing", hint)
    return TableCopy(source, target, len(found[source]), number, sizes[source])


def copy_table(kafka: Mapping[str, object], plan: TableCopy, timeout_s: float) -> TableCopy:
    """Copy all messages, tombstones included, each to the partition of its key.

    Where a key is in two partitions, the copy has its messages in the order of their timestamps.
    Nothing else may write the source meanwhile.  Raises TopicsError, KafkaRequestError; then the
    target has a part of the messages: delete it.
    """
    with TopicManager(kafka, TopicSettings(mismatch="fail")) as topics:
        topics.ensure_table(plan.target, plan.target_partitions)
    failures: list[KafkaRequestError] = []

    def delivered(answer: Written | KafkaRequestError) -> None:
        if isinstance(answer, KafkaRequestError):
            failures.append(answer)

    def produce(message: Message) -> None:
        # The target's broker may refuse times of the future, whatever the source's did.
        at_ms = min(max(0, _timestamp_ms(message)), int(time.time() * 1_000))
        headers = headers_of(message)
        producer.send(
            plan.target, message.value(), message.key() or b"", delivered,
            headers=headers, timestamp_ms=at_ms, wait=True,
        )  # fmt: skip

    parts = [TopicPartition(plan.source, number) for number in range(plan.source_partitions)]
    logs = [read_to_end(kafka, {part: OFFSET_BEGINNING}, timeout_s) for part in parts]
    producer = MessageProducer({**kafka, "partitioner": PARTITIONER}, name="copy-table")
    copied = 0
    try:
        for message in merge(*logs, key=_timestamp_ms):
            produce(message)
            copied += 1
            if failures:
                break
    finally:
        producer.close()
    if failures:
        raise failures[0]
    return plan._replace(messages=copied)


def _timestamp_ms(message: Message) -> int:
    return message.timestamp()[1]
