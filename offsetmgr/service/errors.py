"""Errors: which body and which HTTP status an error of the product becomes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from offsetmgr.errors import (
    ClientFencedError,
    CoordinatorError,
    InvalidValueError,
    ManagerExistsError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OverloadedError,
    shown,
)
from offsetmgr.service.messages import ErrorBody

if TYPE_CHECKING:
    from offsetmgr.coordinator.base import Failure

_LATE_CODES: Final = frozenset(
    {"REQUEST_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"}
)


class RefusedRequestError(OffsetManagerError):
    """A request that HTTP has a status of its own for, such as 415."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        """``code`` and ``message`` as the body carries them."""
        super().__init__(message)
        self.status = status
        self.code = code


class MissingError(InvalidValueError):
    """A value that has to be given was not."""

    def __init__(self, field: str, fix: str) -> None:
        """``fix`` says where to give it."""
        super().__init__(field, None, "is missing", fix)
        self.args = (f"{field} is missing; {fix}",)


class WrongValueError(InvalidValueError):
    """A value that is not of the kind, or in the range, that its field takes."""

    def __init__(self, field: str, value: object, wanted: str) -> None:
        """``wanted`` is what the field takes, such as ``true or false``."""
        super().__init__(field, value, f"is not {wanted}", f"give {wanted}")
        self.args = (f"{field} must be {wanted}, not {shown(value)}",)


class DrainingError(RefusedRequestError):
    """The service is stopping and takes no new work."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "draining",
            "the service is stopping and commits what it holds; keep your offsets and send them "
            "to the service that starts next",
        )


class KafkaFailedError(OffsetManagerError):
    """Kafka refused, or did not answer, a request that is about no single manager."""

    code = "kafka_failed"

    def __init__(self, what: str, failure: Failure, timeout_s: float) -> None:
        """``what`` was asked, such as ``fetch of the offsets of group orders``."""
        super().__init__(f"{what} failed: {_said(failure, timeout_s)}")
        self.failure = failure
        self.timeout_s = timeout_s


def error_body(error: OffsetManagerError) -> ErrorBody:
    """Return ``error`` with all that is known of it."""
    text = str(error)
    if isinstance(error, InvalidValueError):
        value = None if isinstance(error, MissingError) else shown(error.value)
        return ErrorBody(error.code, text, field=error.field, value=value, fix=error.fix)
    if isinstance(error, OffsetRegressionError):
        return ErrorBody(error.code, text, offset=error.offset, floor=error.floor)
    if isinstance(error, ManagerExistsError):
        return ErrorBody(error.code, text, owner=error.owner, lease_left_s=error.lease_left_s)
    if isinstance(error, CoordinatorError):
        return ErrorBody(
            error.code,
            text,
            kafka_code=error.info.code,
            retriable=error.retriable,
            scope=error.info.scope.value,
            fault=error.info.fault.value,
            hint=error.hint,
            group=error.group,
            topic=error.topic,
            partition=error.partition,
            offset=error.offset,
            notice=isinstance(error, OffsetNoticeError),
        )
    if isinstance(error, KafkaFailedError):
        return failure_body(error.failure, error.timeout_s, text)
    return ErrorBody(error.code, text)


def _said(failure: Failure, timeout_s: float) -> str:
    info = failure.info
    if info.name in _LATE_CODES:
        text = (
            f"Kafka did not answer the service within {timeout_s:.3g} s; check the brokers, and "
            "the network between them and the service"
        )
        return f"{text} ({info.name})"
    return f"{failure.detail or info.hint} ({info.name})"


def failure_body(failure: Failure, timeout_s: float, message: str = "") -> ErrorBody:
    """Return what Kafka said of a topic, partition or group in ``timeout_s``."""
    info = failure.info
    hint = failure.detail or info.hint
    return ErrorBody(
        info.name,
        message or _said(failure, timeout_s),
        kafka_code=info.code,
        retriable=info.retriable,
        scope=info.scope.value,
        fault=info.fault.value,
        hint=hint,
    )


def status_of(error: OffsetManagerError) -> HTTPStatus:
    """Return the HTTP status of an error that ends a request."""
    if isinstance(error, RefusedRequestError):
        return error.status
    if isinstance(error, KafkaFailedError):
        late = error.failure.info.name in _LATE_CODES
        return HTTPStatus.GATEWAY_TIMEOUT if late else HTTPStatus.BAD_GATEWAY
    if isinstance(error, InvalidValueError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, ClientFencedError):
        return HTTPStatus.CONFLICT
    if isinstance(error, OverloadedError):
        return HTTPStatus.TOO_MANY_REQUESTS
    return HTTPStatus.INTERNAL_SERVER_ERROR
