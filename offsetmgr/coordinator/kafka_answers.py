"""From what confluent-kafka answers to the port's records, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import Member, live_members, one_line
from offsetmgr.errors import ERRORS, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future as Pending

    from offsetmgr.coordinator.kafka_offsets import FetchedPartition, RefusedPartition

TIMED_OUT: Final = -185
NOT_COORDINATOR: Final = 16
UNKNOWN_MEMBER_ID: Final = 25

_new: Final = tuple.__new__
"""Makes a named tuple in half the time; for what is made once for each offset."""

_MISSING: Final = Failure(error_info(-1), "Kafka's answer does not name this partition")


def failure_of(error: KafkaError) -> Failure:
    """Translate an error of Kafka or librdkafka; what the table lacks is told in their words."""
    code: int = error.code()
    detail = "" if code in ERRORS else one_line(error.str())
    return Failure(error_info(code, error.name()), detail)


def failure_of_code(code: int, text: str = "") -> Failure:
    """Translate a bare code; what the table lacks is told in ``text``."""
    if code in ERRORS:
        return Failure(ERRORS[code])
    error = KafkaError(code)
    return Failure(error_info(code, error.name()), one_line(text or error.str()))


def failure_of_exception(error: BaseException) -> Failure:
    """Translate what a future of confluent-kafka raised."""
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return failure_of(error.args[0])
    return Failure(error_info(-1), one_line(f"{type(error).__name__}: {error}"))


def partition_failures(refused: Iterable[RefusedPartition]) -> dict[TopicPartition, Failure]:
    """Why these were not committed although the request as a whole succeeded."""
    return {TopicPartition(p.topic, p.partition): failure_of_code(p.error) for p in refused}


def offsets_of(
    answered: Sequence[FetchedPartition], asked: Sequence[TopicPartition] | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, Failure]]:
    """Split the answer to a fetch into committed offsets and failures."""
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures: dict[TopicPartition, Failure] = {}
    for topic, partition, offset, metadata, epoch, error in answered:
        where = _new(TopicPartition, (topic, partition))
        if error:
            failures[where] = failure_of_code(error)
        elif offset < 0:  # nothing is committed
            offsets[where] = None
        else:
            known_epoch = epoch if epoch >= 0 else None
            offsets[where] = _new(OffsetAndMetadata, (offset, metadata, known_epoch))
    if asked is None:
        # "All of the group's" are those with something committed.
        return {p: o for p, o in offsets.items() if o is not None}, failures
    missing = set(asked).difference(offsets, failures)
    return offsets, {**failures, **dict.fromkeys(missing, _MISSING)}


def holders(group: str, described: Pending[Any]) -> str:
    """Say who the live members of ``group`` are; empty where that cannot be told (any more)."""
    if described.exception() is not None:
        return ""
    members = [Member(m.client_id, m.host) for m in described.result().members]
    return live_members(group, members) if members else ""
