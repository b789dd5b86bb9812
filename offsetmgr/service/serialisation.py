"""Serialisation: values and errors of the core as JSON answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

from offsetmgr.errors import OverloadedError
from offsetmgr.service.errors import error_body, status_of
from offsetmgr.service.messages import (
    ErrorAnswer,
    FlushAnswer,
    GroupOffsetEntry,
    GroupUncommitted,
    OffsetEntry,
    OffsetValue,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.service.messages import ErrorBody
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult, TopicPartition

RETRY_AFTER_S: Final = 1

encode: Final = msgspec.json.Encoder().encode


def json_response(answer: msgspec.Struct, status: int = HTTPStatus.OK) -> Response:
    return Response(encode(answer), status, media_type="application/json")


def error_response(error: OffsetManagerError) -> Response:
    """Return the answer to a request that ended with ``error``."""
    response = json_response(ErrorAnswer(error_body(error)), status_of(error))
    if isinstance(error, OverloadedError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


def entry(where: TopicPartition, value: OffsetAndMetadata) -> OffsetEntry:
    topic, partition = where
    return OffsetEntry(topic, partition, value.offset, value.metadata, value.leader_epoch)


def group_entry(key: ManagerKey, value: OffsetAndMetadata) -> GroupOffsetEntry:
    group, topic, partition = key
    return GroupOffsetEntry(
        group, topic, partition, value.offset, value.metadata, value.leader_epoch
    )


def value_or_none(value: OffsetAndMetadata | None) -> OffsetValue | None:
    return None if value is None else OffsetValue(*value)


def body_or_none(error: OffsetManagerError | None) -> ErrorBody | None:
    return None if error is None else error_body(error)


def settled(results: Mapping[ManagerKey, StopResult]) -> FlushAnswer:
    """Return the answer to a flush or stop of many managers."""
    committed, uncommitted = [], []
    for key, result in results.items():
        if result.uncommitted is not None:
            left = result.uncommitted
            error = body_or_none(result.error)
            uncommitted.append(GroupUncommitted(*key, left.offset, left.metadata, error))
        elif result.committed is not None:
            committed.append(group_entry(key, result.committed))
    return FlushAnswer(committed, uncommitted)
