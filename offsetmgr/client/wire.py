"""The service's JSON: what is asked as bytes, what is answered as the words of the product."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from offsetmgr.client.offsets import LogEnds, kafka_refusal
from offsetmgr.errors import (
    ClientFencedError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OffsetTimeoutError,
    OverloadedError,
    ServiceError,
    error_info,
    shown,
)
from offsetmgr.text import visible
from offsetmgr.types import (
    MAX_OFFSET,
    ManagerKey,
    OffsetAndMetadata,
    TopicPartition,
    check_leader_epoch,
    check_offset,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from offsetmgr.client.offsets import QueryReport
    from offsetmgr.client.partitions import Batch, Item

MANAGERS: Final = "/v1/managers"
OFFSETS: Final = "/v1/offsets"
FLUSH: Final = "/v1/flush"
STOP: Final = "/v1/stop"
HEARTBEAT: Final = "/v1/heartbeat"
QUERIES: Final = "/v1/queries"
EVENTS: Final = "/v1/events"
INITIAL_OFFSETS: Final = "/v1/initial-offsets"
TOPICS: Final = "/v1/topics"
TOPIC_NAMES: Final = "/v1/topic-names"

MALFORMED: Final = "malformed"
TOO_LARGE: Final = "answer_too_large"
_BAD_GATEWAY: Final = 502
_UNREADABLE: Final = (
    KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
_TEXT_CHARS: Final = 4_000


Settled = tuple[dict[ManagerKey, OffsetAndMetadata], dict[ManagerKey, OffsetManagerError]]
"""The offsets that a flush or a stop has committed, and the reasons for the others."""


# Requests


def target(path: str, *parameters: tuple[str, object]) -> str:
    return f"{path}?{urlencode(parameters)}"


def batch_body(batch: Batch) -> bytes:
    entries = list(map(_entry, batch.items))
    body: dict[str, object] = {
        "group": batch.group,
        "offsets" if batch.submits else "partitions": entries,
    }
    if batch.topic_ids:
        body["topic_ids"] = dict(batch.topic_ids)
    return _dump(body)


def flush_body(
    group: str | None,
    partitions: Collection[TopicPartition] | None,
    timeout_s: float,
    version: int | None = None,
) -> bytes:
    """Return the body of a flush, or with a `version` of a stop; None stands for all."""
    body: dict[str, object] = {"timeout_s": timeout_s}
    if version is not None:
        body["version"] = version
    if group is not None:
        body["group"] = group
    if partitions is not None:
        body["partitions"] = [each._asdict() for each in partitions]
    return _dump(body)


def queries_body(reports: Iterable[QueryReport]) -> bytes:
    """Return the body of a report; JSON has no number for a rate that is not finite."""
    return _dump({"queries": [_known(each._asdict()) for each in reports]})


def _known(report: Mapping[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in report.items()
    }


def _entry(item: Item) -> dict[str, object]:
    (_, topic, partition), version, value, rewind = item
    entry: dict[str, object] = {"topic": topic, "partition": partition, "version": version}
    if value is not None:
        entry["offset"] = value.offset
        if value.metadata:
            entry["metadata"] = value.metadata
        if value.leader_epoch is not None:
            entry["leader_epoch"] = value.leader_epoch
    if rewind:
        entry["rewind"] = True
    return entry


def _dump(body: Mapping[str, object]) -> bytes:
    # An escape takes three times the bytes.  Lone surrogates are in no group, topic or metadata; in
    # the text of an error, or in an id of a strange service, they must not end the request.
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


# Answers


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever an answer lacks into a ServiceError."""
    try:
        yield
    except _UNREADABLE as error:
        text = (
            f"the service's answer about {what} cannot be read ({type(error).__name__}: {error}); "
            "is it of another version than this client?"
        )
        raise ServiceError(_BAD_GATEWAY, text, MALFORMED) from None


def heartbeat_of(data: Mapping[str, Any]) -> tuple[float, int, dict[str, str]]:
    """Return the seconds of the lease, the number of the newest event, and the ids of topics."""
    lease_s = float(data["lease_s"])
    if not math.isfinite(lease_s):
        raise ValueError("a lease without an end")
    # Within the numbers that a service takes: any other would keep the event stream shut for good.
    event_id = min(max(int(data["last_event_id"]), 0), MAX_OFFSET)
    return lease_s, event_id, topic_ids_of(data)


def refused_of(data: Mapping[str, Any]) -> list[OffsetManagerError]:
    """Return why queries of a report were left out; nothing from an older service."""
    return [error_of(each, None) for each in data.get("refused") or ()]


def topic_ids_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of topics; none from a service that is older than this client."""
    found = (data.get("topic_ids") or {}).items()
    return {topic: topic_id for topic, topic_id in found if isinstance(topic_id, str)}


def offset_of(data: Mapping[str, Any]) -> OffsetAndMetadata:
    offset, leader_epoch = check_offset(data["offset"]), check_leader_epoch(data["leader_epoch"])
    return OffsetAndMetadata(offset, str(data["metadata"]), leader_epoch)


def partition_of(data: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(data["topic"]), int(data["partition"]))


def key_of(data: Mapping[str, Any]) -> ManagerKey:
    return ManagerKey(str(data["group"]), *partition_of(data))


def outcome_of(
    data: Mapping[str, Any], batch: Batch
) -> tuple[dict[ManagerKey, OffsetManagerError], dict[str, str]]:
    """Return the refusals in the answer to `batch`, and the ids of its topics."""
    refused: dict[ManagerKey, OffsetManagerError] = {}
    for entry in data["refused"] if batch.submits else data["managers"]:
        key = ManagerKey(batch.group, *partition_of(entry))
        with _reading_entry(key, refused):
            if entry["error"] is not None:
                refused[key] = error_of(entry["error"], key)
    return refused, topic_ids_of(data)


def settled_of(data: Mapping[str, Any]) -> tuple[Settled, dict[str, str]]:
    """Return what is settled by the answer to a flush or a stop, and the ids of topics."""
    committed: dict[ManagerKey, OffsetAndMetadata] = {}
    errors: dict[ManagerKey, OffsetManagerError] = {}
    for key, entry in _keyed(data["committed"]):
        with _reading_entry(key, errors):
            committed[key] = offset_of(entry)
    for key, entry in _keyed(data["uncommitted"]):
        with _reading_entry(key, errors):
            errors[key] = error_of(entry["error"], key)
    return (committed, errors), topic_ids_of(data)


def _keyed(entries: Iterable[Any]) -> Iterator[tuple[ManagerKey, Any]]:
    """Yield entries with their keys; one without a key answers for nobody."""
    for entry in entries:
        with suppress(*_UNREADABLE):
            key = key_of(entry)
            yield key, entry


@contextmanager
def _reading_entry(key: ManagerKey, errors: dict[ManagerKey, OffsetManagerError]) -> Iterator[None]:
    """Make what an entry lacks an error of its own key alone."""
    try:
        with reading(str(key)):
            yield
    except ServiceError as error:
        errors[key] = error


def initial_of(data: Mapping[str, Any], key: ManagerKey) -> tuple[OffsetAndMetadata | None] | None:
    """Return the initial offset of `key`, or None without a manager; raise why it is not known."""
    for entry in data["initial_offsets"]:
        if partition_of(entry) == key.topic_partition:
            if not entry["known"]:
                raise error_of(entry["error"], key)
            committed = entry["committed"]
            return (None if committed is None else offset_of(committed),)
    return None


def committed_of(data: Mapping[str, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition_of(each): offset_of(each) for each in data["offsets"]}


def page_of(
    data: Mapping[str, Any],
) -> tuple[dict[TopicPartition, OffsetAndMetadata], str | None]:
    """Return a page of committed offsets, and where the next one begins; None after the last."""
    after = data["next"]
    return committed_of(data), None if after is None else str(after)


def names_of(data: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in data["names"]]


def logs_of(data: Mapping[str, Any], topics: Iterable[str]) -> dict[TopicPartition, LogEnds]:
    """Return the ends of ``topics``; raise what Kafka says against one or a partition of it."""
    found: dict[TopicPartition, LogEnds] = {}
    answers = {str(topic["topic"]): topic for topic in data["topics"]}
    for name in topics:
        topic = answers[name]
        _check_kafka(f"topic {name}", topic.get("error"))
        for each in topic["partitions"]:
            where = TopicPartition(name, int(each["partition"]))
            _check_kafka(f"partition {where}", each.get("error"))
            for field in ("log_start_offset", "high_watermark"):
                check_offset(each[field], field)
            ends = LogEnds(*map(each.get, LogEnds._fields))
            found[where] = ends._replace(topic_id=str(topic.get("topic_id", "")))
    return found


def _check_kafka(what: str, error: Mapping[str, Any] | None) -> None:
    if error is not None:
        text = f"{what}: {error['message']}"
        retriable = bool(error.get("retriable"))
        raise kafka_refusal(what, str(error["code"]), text, error.get("fault"), retriable=retriable)


def error_of(
    data: Mapping[str, Any] | None, key: ManagerKey | None, status: int = 200
) -> OffsetManagerError:
    """Return the error in an answer or an event about `key`; None stands for Kafka's silence."""
    if data is None:
        return OffsetTimeoutError("Kafka did not answer the service in time")
    code, message = _line(data["code"]), _line(data["message"])
    if data.get("kafka_code") is not None:
        return _kafka_error(data, key, status, code, message)
    name = "a manager" if key is None else str(key)
    if code == OffsetRegressionError.code:
        return OffsetRegressionError(name, int(data["offset"]), int(data["floor"]))
    if code == ManagerExistsError.code:
        left_s = data.get("lease_left_s")
        owner = _line(data.get("owner") or "another client")
        return ManagerExistsError(name, owner, None if left_s is None else float(left_s))
    for kind in (ManagerStoppedError, ClientFencedError, OffsetTimeoutError, OverloadedError):
        if code == kind.code:
            return kind(message)
    return ServiceError(status, message, code)


def _kafka_error(
    data: Mapping[str, Any], key: ManagerKey | None, status: int, code: str, message: str
) -> OffsetManagerError:
    if key is None:
        return ServiceError(status, message, code)
    # Two names of the product's own share a number with codes of librdkafka.
    info = error_info(int(data["kafka_code"]), code)._replace(name=code)
    hint = _line(data.get("hint") or "")
    detail = "" if hint == info.hint else hint
    offset = None if data.get("offset") is None else check_offset(data["offset"])
    # Only a commit is about an offset.
    kind = OffsetFetchError if offset is None else OffsetCommitError
    return (OffsetNoticeError if data.get("notice") else kind)(*key, offset, info, detail)


def _line(text: object) -> str:
    """Return a text of the service as one line: it may repeat names of others, and not be ours."""
    return visible(str(text), _TEXT_CHARS)


def failure_of(status: int, body: bytes) -> OffsetManagerError:
    """Return the error of a failed request."""
    try:
        return error_of(json.loads(body)["error"], None, status)
    except _UNREADABLE:
        return ServiceError(status, f"the service answered with status {status}: {shown(body)}")
