"""From what confluent-kafka answers to the port's records, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import Member, live_members, one_line
from offsetmgr.errors import ERRORS, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future as Pending

    from offsetmgr.coordinator.librdkafka import FetchedPartition

TIMED_OUT: Final = -185
NOT_COORDINATOR: Final = 16
UNKNOWN_MEMBER_ID: Final = 25

_MISSING: Final = Failure(error_info(-1), "Kafka's answer does not name this partition")


def failure_of(error: KafkaError) -> Failure:
    """Translate an error of Kafka or librdkafka; what the table lacks is told in their words."""
    code: int = error.code()
    detail = "" if code in ERRORS else one_line(error.str())
    return Failure(error_info(code, error.name()), detail)


def failure_of_code(code: int, text: str = "") -> Failure:
    """Translate a bare code; what the table lacks is told in ``text``."""
    return Failure(error_info(code, KafkaError(code).name()), "" if code in ERRORS else text)


def failure_of_exception(error: BaseException) -> Failure:
    """Translate what a future of confluent-kafka raised."""
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return failure_of(error.args[0])
    return Failure(error_info(-1), one_line(f"{type(error).__name__}: {error}"))


def partition_failures(answered: Iterable[KafkaPartition]) -> dict[TopicPartition, Failure]:
    """Find the partitions that carry an error although the request as a whole succeeded."""
    return {key_of(p): failure_of(p.error) for p in answered if p.error is not None}


def offsets_of(
    answered: Sequence[FetchedPartition], asked: Sequence[TopicPartition] | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, Failure]]:
    """Split the answer to a fetch into committed offsets and failures."""
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures: dict[TopicPartition, Failure] = {}
    for each in answered:
        where = TopicPartition(each.topic, each.partition)
        if each.error:
            failures[where] = failure_of_code(each.error)
        else:
            offsets[where] = _offset_of(each)
    if asked is None:
        # "All of the group's" are those with something committed.
        return {p: o for p, o in offsets.items() if o is not None}, failures
    missing = {p: _MISSING for p in asked if p not in offsets and p not in failures}
    return offsets, {**failures, **missing}


def to_kafka(partition: TopicPartition, value: OffsetAndMetadata) -> KafkaPartition:
    """Say in confluent-kafka's words what is to be committed."""
    epoch = -1 if value.leader_epoch is None else value.leader_epoch
    return KafkaPartition(
        partition.topic, partition.partition, value.offset, value.metadata, leader_epoch=epoch
    )


def key_of(partition: KafkaPartition) -> TopicPartition:
    """Name the partition in the port's words."""
    return TopicPartition(partition.topic, partition.partition)


def holders(group: str, described: Pending[Any]) -> str:
    """Say who the live members of ``group`` are; empty where that cannot be told (any more)."""
    if described.exception() is not None:
        return ""
    members = [Member(m.client_id, m.host) for m in described.result().members]
    return live_members(group, members) if members else ""


def _offset_of(partition: FetchedPartition) -> OffsetAndMetadata | None:
    if partition.offset < 0:  # nothing is committed
        return None
    known_epoch = partition.leader_epoch if partition.leader_epoch >= 0 else None
    return OffsetAndMetadata(partition.offset, partition.metadata, known_epoch)
