"""The ends of logs in confluent-kafka's words: what is asked of Kafka, and what that comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from confluent_kafka import IsolationLevel, Uuid
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec

from offsetmgr.coordinator.base import Failure, PartitionLog, TopicLog
from offsetmgr.coordinator.kafka_answers import failure_of_exception
from offsetmgr.errors import error_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient

Asked: TypeAlias = "Mapping[str, Mapping[tuple[str, int], Pending[Any]]]"
"""Field of a ``PartitionLog`` → topic and partition → its answer."""


class Wanted(NamedTuple):
    """An offset that is asked of every log."""

    field: str
    """Of ``PartitionLog``."""
    spec: OffsetSpec
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED


_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_ENDS: Final = (Wanted("log_start_offset", _EARLIEST), Wanted("high_watermark", _LATEST))
_NO_ID: Final = str(Uuid(0, 0))
_STABLE: Final = Wanted("last_stable_offset", _LATEST, IsolationLevel.READ_COMMITTED)
_AT: Final = "offset_at"
_NO_END: Final = Failure(error_info(-1), "Kafka's answer does not say where the log ends")


def wanted(at_ms: int | None, *, stable: bool) -> list[Wanted]:
    """Both ends of a log, and what else was asked for."""
    found = [*_ENDS, *([_STABLE] if stable else [])]
    if at_ms is not None:
        found.append(Wanted(_AT, OffsetSpec.for_timestamp(at_ms)))
    return found


def ask(
    client: AdminClient,
    topics: Mapping[str, Sequence[int]],
    asks: Iterable[Wanted],
    timeout_s: float,
) -> Asked:
    """Ask for the offsets of every log, each in one request to each leader."""
    asked: dict[str, dict[tuple[str, int], Pending[Any]]] = {}
    for field, spec, isolation in asks:
        request = {KafkaPartition(topic, n): spec for topic in topics for n in topics[topic]}
        pending = client.list_offsets(request, isolation_level=isolation, request_timeout=timeout_s)
        asked[field] = {(p.topic, p.partition): future for p, future in pending.items()}
    return asked


def id_of(found: Uuid) -> str:
    """A topic's id in words; empty where it has none, as with brokers before 2.8."""
    return "" if str(found) == _NO_ID else str(found)


def topic_logs(
    topics: Mapping[str, Sequence[int]], ids: Mapping[str, str], asked: Asked
) -> dict[str, TopicLog]:
    """Put the answers together, with the ids of the topics."""
    logs = {}
    for topic, numbers in topics.items():
        partitions = {number: _partition_log((topic, number), asked) for number in numbers}
        logs[topic] = TopicLog(partitions, topic_id=ids[topic])
    return logs


def _partition_log(where: tuple[str, int], asked: Asked) -> PartitionLog:
    answers = {field: pending[where] for field, pending in asked.items()}
    errors = (each.exception() for each in answers.values())
    error = next((each for each in errors if each is not None), None)
    if error is not None:
        return PartitionLog(0, 0, failure_of_exception(error))
    offsets = {field: int(each.result().offset) for field, each in answers.items()}
    # -1 where no record is as young as was asked for; a log without an end there is not.
    at = offsets.pop(_AT, -1)
    if min(offsets.values()) < 0:
        return PartitionLog(0, 0, _NO_END)
    return PartitionLog(
        offsets["log_start_offset"],
        offsets["high_watermark"],
        offset_at=at if at >= 0 else None,
        last_stable_offset=offsets.get("last_stable_offset"),
    )
