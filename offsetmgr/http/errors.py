"""Errors of requests: their HTTP status, and their form in JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from offsetmgr.errors import (
    CoordinatorError,
    InvalidValueError,
    KafkaRequestError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetStoreError,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

LATE_CODES: Final = frozenset(
    {"REQUEST_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"}
)


class HttpStatusError(OffsetManagerError):
    """A request that HTTP has a status of its own for, such as 415."""

    def __init__(
        self, status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] = {}
    ) -> None:
        """``code`` and ``message`` as the body carries them."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class MissingError(InvalidValueError):
    """A required value was not given."""

    def __init__(self, field: str, fix: str) -> None:
        """``fix`` says where to give it."""
        super().__init__(field, None, "is missing", fix)
        self.args = (f"{field} is missing; {fix}",)


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """An error: its cause, whose fault it is, and its fix."""

    code: Annotated[str, Meta(description="Stable name of the error.")]
    message: Annotated[str, Meta(description="For people.")]
    field: Annotated[str | None, Meta(description="Where the bad value stands.")] = None
    value: Annotated[str | None, Meta(description="The bad value, escaped and cut.")] = None
    fix: str | None = None
    owner: Annotated[str | None, Meta(description="Who holds the manager.")] = None
    lease_left_s: Annotated[float | None, Meta(description="Of the owner, if silent.")] = None
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


def error_body(error: OffsetManagerError) -> ErrorBody:
    """Return ``error`` with all that is known of it."""
    values: dict[str, Any] = {
        name: getattr(error, name, None) for name in ErrorBody.__struct_fields__
    }
    values |= {"message": str(error), "notice": isinstance(error, OffsetNoticeError)}
    if isinstance(error, InvalidValueError) and not isinstance(error, MissingError):
        values["value"] = shown(error.value)
    if isinstance(error, (CoordinatorError, KafkaRequestError, OffsetStoreError)):
        info = error.info
        values |= {"kafka_code": info.code, "scope": info.scope.value, "fault": info.fault.value}
    return ErrorBody(**values)


_STATUS: Final = {
    "client_fenced": HTTPStatus.CONFLICT,
    "group_held": HTTPStatus.CONFLICT,
    "offset_conflict": HTTPStatus.CONFLICT,
    "overloaded": HTTPStatus.TOO_MANY_REQUESTS,
    "service_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
}
"""By the code of an error."""


def status_of(error: OffsetManagerError) -> HTTPStatus:
    """Return the HTTP status of an error that ends a request."""
    if isinstance(error, HttpStatusError):
        return error.status
    if isinstance(error, (KafkaRequestError, OffsetStoreError)):
        late = error.info.name in LATE_CODES
        return HTTPStatus.GATEWAY_TIMEOUT if late else HTTPStatus.BAD_GATEWAY
    if isinstance(error, InvalidValueError):
        return HTTPStatus.BAD_REQUEST
    return _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
