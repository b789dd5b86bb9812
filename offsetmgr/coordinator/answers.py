"""Converts answers of librdkafka and confluent-kafka to the port's records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec

from offsetmgr.coordinator.base import Failure, LiveMember, PartitionLog, TopicLog, one_line
from offsetmgr.coordinator.librdkafka import NOT_NAMED
from offsetmgr.errors import ERRORS, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient

    from offsetmgr.coordinator.librdkafka import PartitionAnswer

NOT_COORDINATOR: Final = 16
TRANSPORT: Final = -195
_GROUP_ID_NOT_FOUND: Final = 69
_LEFT_OUT: Final = Failure(error_info(NOT_NAMED), "Kafka's answer does not name this partition")


def failure_of_code(code: int, text: str = "") -> Failure:
    """Translate a code of Kafka or librdkafka; ``text`` explains one that the table lacks."""
    if code in ERRORS:
        return Failure(ERRORS[code])
    error = KafkaError(code)
    return Failure(error_info(code, error.name()), one_line(text or error.str()))


def failure_of_exception(error: BaseException) -> Failure:
    """Translate what confluent-kafka raised, and drop its traceback.

    That and the future that keeps the error would make a circle that holds an admin client until a
    garbage collection, maybe in a thread of librdkafka's, which aborts where a client ends there.
    """
    error.__traceback__ = None
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return failure_of_code(error.args[0].code(), error.args[0].str())
    return Failure(error_info(-1), one_line(f"{type(error).__name__}: {error}"))


def commit_failures(refused: Iterable[PartitionAnswer]) -> dict[TopicPartition, Failure]:
    """Return why these were not committed although the request as a whole succeeded."""
    return {
        TopicPartition(p.topic, p.partition): (
            _LEFT_OUT if p.error == NOT_NAMED else failure_of_code(p.error)
        )
        for p in refused
    }


def offsets_of(
    answered: Iterable[PartitionAnswer], asked: Iterable[TopicPartition] | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, Failure]]:
    """Split the answer to a fetch into committed offsets and failures."""
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failures: dict[TopicPartition, Failure] = {}
    for topic, number, offset, metadata, epoch, error in answered:
        partition = TopicPartition(topic, number)
        if error:
            failures[partition] = failure_of_code(error)
        elif offset >= 0:
            known_epoch = epoch if epoch >= 0 else None
            offsets[partition] = OffsetAndMetadata(offset, metadata, known_epoch)
        elif asked is not None:  # else all that have something committed were asked for
            offsets[partition] = None
    missing = set(asked or ()).difference(offsets, failures)
    return offsets, {**failures, **dict.fromkeys(missing, _LEFT_OUT)}


def live_members(
    client: AdminClient, group: str, wait_s: float, limit_s: float
) -> list[LiveMember]:
    """Ask for the members of ``group`` and wait ``wait_s``; librdkafka is given ``limit_s``.

    A group that does not exist has none.  Raises KafkaException, or TimeoutError.
    """
    pending = client.describe_consumer_groups([group], request_timeout=limit_s)[group]
    try:
        members = pending.result(wait_s).members
    except KafkaException as error:
        if failure_of_exception(error).info.code == _GROUP_ID_NOT_FOUND:
            return []
        raise
    return [
        LiveMember(m.client_id, m.host, m.member_id, m.group_instance_id or "") for m in members
    ]


_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID: Final = str(Uuid(0, 0))
_NO_END: Final = Failure(error_info(-1), "Kafka's answer does not say where the log ends")


def topic_logs(
    client: AdminClient,
    topics: Sequence[str],
    at_ms: int | None,
    wait_s: float,
    limit_s: float,
    *,
    stable: bool,
) -> dict[str, TopicLog]:
    """Ask for the partitions of ``topics``, then for the ends of their logs, and wait ``wait_s``.

    librdkafka is given ``limit_s`` for each request.  Raises TimeoutError.
    """
    deadline_s = time.monotonic() + wait_s
    logs: dict[str, TopicLog] = {}
    found: dict[str, Any] = {}
    described = client.describe_topics(TopicCollection(list(topics)), request_timeout=limit_s)
    for topic, pending in described.items():
        try:
            found[topic] = pending.result(max(deadline_s - time.monotonic(), 0.0))
        except KafkaException as error:
            logs[topic] = TopicLog({}, failure_of_exception(error))
    partitions = [KafkaPartition(topic, p.id) for topic in found for p in found[topic].partitions]
    specs = {"log_start_offset": _EARLIEST, "high_watermark": _LATEST}
    if stable:
        specs["last_stable_offset"] = _LATEST
    if at_ms is not None:
        specs["offset_at"] = OffsetSpec.for_timestamp(at_ms)
    answers: dict[str, dict[tuple[str, int], Pending[Any]]] = {}
    for field, spec in specs.items() if partitions else ():
        isolation = (
            IsolationLevel.READ_COMMITTED
            if field == "last_stable_offset"
            else IsolationLevel.READ_UNCOMMITTED
        )
        request = dict.fromkeys(partitions, spec)
        sent = client.list_offsets(request, isolation_level=isolation, request_timeout=limit_s)
        answers[field] = {(p.topic, p.partition): each for p, each in sent.items()}
    for topic, description in found.items():
        ends = {}
        for partition in description.partitions:
            where = topic, partition.id
            asked_of_it = {field: each[where] for field, each in answers.items()}
            ends[partition.id] = partition_log(asked_of_it, deadline_s)
        logs[topic] = TopicLog(ends, topic_id=id_of(description.topic_id))
    return logs


def partition_log(pending: Mapping[str, Pending[Any]], deadline_s: float) -> PartitionLog:
    """Put together what was asked of one log, by the fields of a ``PartitionLog``."""
    try:
        offsets = {
            field: int(each.result(max(deadline_s - time.monotonic(), 0.0)).offset)
            for field, each in pending.items()
        }
    except KafkaException as error:
        return PartitionLog(0, 0, failure_of_exception(error))
    # -1 if no record is as young as was asked for; every log has ends.
    at = offsets.pop("offset_at", -1)
    if min(offsets.values()) < 0:
        return PartitionLog(0, 0, _NO_END)
    return PartitionLog(
        offsets["log_start_offset"],
        offsets["high_watermark"],
        offset_at=at if at >= 0 else None,
        last_stable_offset=offsets.get("last_stable_offset"),
    )


def id_of(found: Uuid) -> str:
    """Return a topic's id; empty where it has none, as with brokers before 2.8."""
    return "" if str(found) == _NO_ID else str(found)
