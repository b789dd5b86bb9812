"""Answers of the HTTP API, version 1: their JSON, and how it is made."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    InvalidValueError,
    KafkaRequestError,
    OffsetNoticeError,
    OverloadedError,
    shown,
)
from offsetmgr.service.errors import (
    LATE_CODES,
    HttpStatusError,
    KafkaFailedError,
    MissingError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition

RETRY_AFTER_S: Final = 1

_TOLD: Final = (
    *("field", "fix", "owner", "lease_left_s", "retriable", "hint"),
    *("group", "topic", "partition", "offset", "floor"),
)
"""Attributes of errors that are fields of an ErrorBody."""

encode: Final = msgspec.json.Encoder().encode

Phase = Annotated[
    str, Meta(extra_json_schema={"enum": ["fetching", "ready", "stopping", "stopped"]})
]


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """An error: its cause, whose fault it is, and its fix."""

    code: Annotated[str, Meta(description="Stable name of the error.")]
    message: Annotated[str, Meta(description="For people.")]
    field: Annotated[str | None, Meta(description="Where the bad value stands.")] = None
    value: Annotated[str | None, Meta(description="The bad value, escaped and cut.")] = None
    fix: str | None = None
    owner: Annotated[str | None, Meta(description="Who holds the manager.")] = None
    lease_left_s: Annotated[
        float | None, Meta(description="Until the owner's lease ends, if it stays silent.")
    ] = None
    kafka_code: Annotated[int | None, Meta(description="Kafka's error code.")] = None
    retriable: Annotated[bool | None, Meta(description="The service tries again itself.")] = None
    scope: str | None = None
    fault: Annotated[str | None, Meta(description="Who has to act.")] = None
    hint: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    floor: Annotated[int | None, Meta(description="Highest offset known before.")] = None
    notice: Annotated[bool, Meta(description="Nothing failed, but somebody should know.")] = False


class ErrorAnswer(Struct, frozen=True):
    error: ErrorBody


class OffsetValue(Struct, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class OfPartition(Struct, frozen=True):
    topic: str
    partition: int


class OfGroup(Struct, frozen=True):
    group: str
    topic: str
    partition: int


class OffsetEntry(OfPartition, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class ManagerState(OfPartition, frozen=True):
    """The client now has a manager for the partition, unless there is an error."""

    error: ErrorBody | None = None


class OpenAnswer(Struct, frozen=True):
    """One entry for each partition asked for, in their order."""

    managers: list[ManagerState]


class RefusedEntry(OfPartition, frozen=True):
    error: ErrorBody


class CommittedEntry(OfGroup, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class UncommittedEntry(OfGroup, frozen=True):
    """An offset that was taken and is not known to be committed; it is tried again."""

    offset: int
    metadata: str
    error: ErrorBody | None


class SubmitAnswer(Struct, frozen=True):
    """The outcome of each offset; ``committed`` and ``uncommitted`` need ``wait``."""

    accepted: int
    refused: list[RefusedEntry]
    committed: list[CommittedEntry]
    uncommitted: list[UncommittedEntry]


class FlushAnswer(Struct, frozen=True):
    committed: list[CommittedEntry]
    uncommitted: list[UncommittedEntry]


class HeartbeatAnswer(Struct, frozen=True):
    """The client's lease, and the position at which its event stream begins."""

    lease_s: float
    last_event_id: Annotated[
        int, Meta(description="Of the newest failure; a stream from there misses none after it.")
    ]


class InitialOffset(OfPartition, frozen=True):
    """The offset committed when the manager started; ``known`` is false until Kafka answers."""

    known: bool
    committed: OffsetEntry | None
    error: ErrorBody | None


class InitialOffsetsAnswer(Struct, frozen=True):
    initial_offsets: list[InitialOffset]


class OffsetsAnswer(Struct, frozen=True):
    """The offsets committed in Kafka now; partitions with nothing committed are absent."""

    group: str
    offsets: list[OffsetEntry]


class PartitionEnds(Struct, frozen=True):
    """The ends of a partition's log; both 0 where ``error`` says why they are not known."""

    partition: int
    log_start_offset: int
    high_watermark: int
    error: ErrorBody | None = None
    offset_at: Annotated[
        int | None,
        Meta(description="First offset at `at_ms` or later; null where no record is, or no time."),
    ] = None
    last_stable_offset: Annotated[
        int | None,
        Meta(description="End for readers of committed transactions; null without `stable`."),
    ] = None


class TopicState(Struct, frozen=True):
    """A topic's partitions, or why they are not known."""

    topic: str
    error: ErrorBody | None
    partitions: list[PartitionEnds]


class TopicsAnswer(Struct, frozen=True):
    topics: list[TopicState]


class TopicNamesAnswer(Struct, frozen=True):
    """The topics of the cluster that the service may see, but Kafka's own; sorted."""

    names: list[str]


class ManagerView(OfGroup, frozen=True):
    client: str
    phase: Phase
    submitted: OffsetValue | None
    committed: OffsetValue | None
    dirty: bool
    last_error: ErrorBody | None
    regressions: int


class ManagersAnswer(Struct, frozen=True):
    """A page of managers, by group, topic and partition."""

    managers: list[ManagerView]
    next: Annotated[
        str | None, Meta(description="Give it as `after` for the next page; null on the last.")
    ]


class LiveAnswer(Struct, frozen=True):
    live: bool


class ReadyAnswer(Struct, frozen=True):
    """True if requests are of use now; names no groups."""

    ready: bool
    draining: bool
    kafka: Annotated[str, Meta(description='"ok", or what is wrong with it.')]
    fenced_groups: Annotated[
        int, Meta(description="Groups that another service has taken over from this one.")
    ]


# From the core's values and errors


def json_response(answer: msgspec.Struct | dict[str, Any], status: int = HTTPStatus.OK) -> Response:
    return Response(encode(answer), status, media_type="application/json")


def error_response(error: OffsetManagerError) -> Response:
    response = json_response(ErrorAnswer(error_body(error)), status_of(error))
    if isinstance(error, HttpStatusError):
        response.headers.update(error.headers)
    if isinstance(error, OverloadedError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


def entry(where: TopicPartition, value: OffsetAndMetadata) -> OffsetEntry:
    return OffsetEntry(where.topic, where.partition, *value)


def value_or_none(value: OffsetAndMetadata | None) -> OffsetValue | None:
    return None if value is None else OffsetValue(*value)


def body_or_none(error: OffsetManagerError | None) -> ErrorBody | None:
    return None if error is None else error_body(error)


def flush_answer(results: Mapping[ManagerKey, StopResult]) -> FlushAnswer:
    """Return the answer to a flush or stop of many managers."""
    committed, uncommitted = [], []
    for key, result in results.items():
        if result.uncommitted is not None:
            left = result.uncommitted
            error = body_or_none(result.error)
            uncommitted.append(UncommittedEntry(*key, left.offset, left.metadata, error))
        elif result.committed is not None:
            committed.append(CommittedEntry(*key, *result.committed))
    return FlushAnswer(committed, uncommitted)


def error_body(error: OffsetManagerError) -> ErrorBody:
    """Return ``error`` with all that is known of it."""
    told = {name: getattr(error, name, None) for name in _TOLD}
    if isinstance(error, InvalidValueError) and not isinstance(error, MissingError):
        told["value"] = shown(error.value)
    if isinstance(error, (CoordinatorError, KafkaFailedError, KafkaRequestError)):
        told["kafka_code"] = error.info.code
        told["scope"] = error.info.scope.value
        told["fault"] = error.info.fault.value
    return ErrorBody(error.code, str(error), notice=isinstance(error, OffsetNoticeError), **told)


def status_of(error: OffsetManagerError) -> HTTPStatus:
    """Return the HTTP status of an error that ends a request."""
    if isinstance(error, HttpStatusError):
        return error.status
    if isinstance(error, (KafkaFailedError, KafkaRequestError)):
        late = error.info.name in LATE_CODES
        return HTTPStatus.GATEWAY_TIMEOUT if late else HTTPStatus.BAD_GATEWAY
    if isinstance(error, InvalidValueError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, ClientFencedError):
        return HTTPStatus.CONFLICT
    if isinstance(error, OverloadedError):
        return HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.INTERNAL_SERVER_ERROR
