"""Names, ids, logs and creation of topics, by an admin client; every function waits."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotAnsweredError
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec

from offsetmgr.answers import Failure, PartitionLog, TopicLog
from offsetmgr.codes import TIMED_OUT, TRANSPORT, error_info
from offsetmgr.deadlines import Deadline
from offsetmgr.kafka.errors import failure_of, request_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import AdminClient, NewTopic

EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

NO_LEADERS: Final = -156
"""librdkafka's _NOENT, whatever the reason, where none of the partitions has a leader."""
NO_LEADER: Final = 5

_LOGS_AT_ONCE: Final = 1_000
_TOPIC_ALREADY_EXISTS: Final = 36
_NO_ID: Final = str(Uuid(0, 0))
_NO_END: Final = Failure(error_info(-1), "Kafka's answer lacks offsets of the log")
_STABLE: Final = IsolationLevel.READ_COMMITTED


def topic_names(client: AdminClient, topic: str | None, left_s: float) -> list[str]:
    """Ask for the names of all topics, or for one.  Raises TimeoutError, KafkaException."""
    try:
        return list(client.list_topics(topic, left_s).topics)
    except KafkaException as error:
        # No connection in all that time counts as no answer: the client may have lost all
        # addresses, and is replaced like any unresponsive one.
        if failure_of(error).info.code in {TIMED_OUT, TRANSPORT}:
            raise NotAnsweredError from None
        raise


def topic_logs(
    client: AdminClient,
    topics: list[str],
    wait_s: float,
    limit_s: float,
    at_ms: int | None = None,
    *,
    stable: bool = False,
) -> dict[str, TopicLog]:
    """Ask for the partitions of ``topics``, then for offsets of their logs, and wait ``wait_s``.

    ``at_ms`` and ``stable`` as in ``Coordinator.topic_logs``.  librdkafka is given ``limit_s`` for
    each request.  Raises TimeoutError.
    """
    deadline = Deadline(wait_s)
    logs: dict[str, TopicLog] = {}
    found: dict[str, Any] = {}
    described = client.describe_topics(TopicCollection(topics), request_timeout=limit_s)
    for topic, pending in described.items():
        try:
            found[topic] = pending.result(deadline.left_s)
        except KafkaException as error:
            logs[topic] = TopicLog({}, failure_of(error))
    partitions = [KafkaPartition(topic, p.id) for topic in found for p in found[topic].partitions]
    specs = {"log_start_offset": EARLIEST, "high_watermark": LATEST}
    if stable:
        specs["last_stable_offset"] = LATEST
    if at_ms is not None:
        specs["offset_at"] = OffsetSpec.for_timestamp(at_ms)
    answers: dict[str, dict[tuple[str, int], Pending[Any]]] = {}
    for field, spec in specs.items() if partitions else ():
        request = dict.fromkeys(partitions, spec)
        isolation = _STABLE if field == "last_stable_offset" else IsolationLevel.READ_UNCOMMITTED
        answers[field] = list_offsets(client, request, limit_s, isolation_level=isolation)
    for topic, description in found.items():
        ends = {}
        for partition in description.partitions:
            where = topic, partition.id
            asked_of_it = {field: sent[where] for field, sent in answers.items()}
            ends[partition.id] = partition_log(asked_of_it, deadline)
        logs[topic] = TopicLog(ends, topic_id=id_of(description.topic_id))
    return logs


def list_offsets(
    client: AdminClient, specs: Mapping[KafkaPartition, OffsetSpec], limit_s: float, **options: Any
) -> dict[tuple[str, int], Pending[Any]]:
    """Ask for an offset of each log, in as many requests as needed; ``options`` as of ``client``.

    librdkafka searches all partitions of a request for each one of an answer.
    """
    sent: dict[tuple[str, int], Pending[Any]] = {}
    left = iter(specs.items())
    while some := dict(islice(left, _LOGS_AT_ONCE)):
        pending = client.list_offsets(some, request_timeout=limit_s, **options)
        sent |= {(p.topic, p.partition): answer for p, answer in pending.items()}
    return sent


def partition_log(pending: Mapping[str, Pending[Any]], deadline: Deadline) -> PartitionLog:
    """Return the answers about one log; ``pending`` is by the fields of a ``PartitionLog``."""
    try:
        offsets: dict[str, Any] = {
            field: int(answer.result(deadline.left_s).offset) for field, answer in pending.items()
        }
    except KafkaException as error:
        failure = failure_of(error)
        exists_unled = failure.info.code == NO_LEADERS  # its topic was described before
        return PartitionLog(0, 0, failure_of(NO_LEADER) if exists_unled else failure)
    # -1 if all records are older, less if the leader did not answer; every log has ends.
    at = offsets.pop("offset_at", -1)
    if min(offsets.values()) < 0 or at < -1:
        return PartitionLog(0, 0, _NO_END)
    return PartitionLog(**offsets, offset_at=at if at >= 0 else None)


def id_of(found: Uuid) -> str:
    """Return a topic's id; empty with brokers before 2.8, which have none."""
    return "" if str(found) == _NO_ID else str(found)


def create_topics(admin: AdminClient, topics: Iterable[NewTopic], timeout_s: float) -> None:
    """Create those of ``topics`` that do not exist.  Raises KafkaRequestError."""
    pending = admin.create_topics(list(topics), request_timeout=timeout_s)
    for topic, answer in pending.items():
        try:
            answer.result()
        except KafkaException as error:
            if failure_of(error).info.code != _TOPIC_ALREADY_EXISTS:
                what = f"creation of topic {topic}"
                raise request_error(what, error, right="CREATE", topic=topic) from None
