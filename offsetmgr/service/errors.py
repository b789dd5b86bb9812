"""Errors of the service itself; ``messages`` turns errors into answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.errors import InvalidValueError, OffsetManagerError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.coordinator.base import Failure

LATE_CODES: Final = frozenset(
    {"REQUEST_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"}
)


class HttpStatusError(OffsetManagerError):
    """A request that HTTP has a status of its own for, such as 415."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``code`` and ``message`` as the body carries them."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


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


class DrainingError(HttpStatusError):
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

    def __init__(self, what: str, failure: Failure, timeout_s: float) -> None:
        """``what`` was asked, such as ``fetch of the offsets of group orders``; "" goes unsaid."""
        self.info = failure.info
        self.code = failure.info.name
        self.retriable = failure.info.retriable
        self.hint = failure.detail or failure.info.hint
        reason = self.hint
        if self.code in LATE_CODES:
            reason = (
                f"Kafka did not answer the service within {timeout_s:.3g} s; check the brokers, "
                "and the network between them and the service"
            )
        asked = f"{what} failed: " if what else ""
        super().__init__(f"{asked}{reason} ({failure.info.name})")


_WORDS: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a JSON object",
    "string": "text",
}


def wanted(schema: Mapping[str, Any]) -> str:
    """Return what a JSON schema allows, such as "a whole number from 0 to 9"."""
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = _WORDS[schema["type"]]
    if schema["type"] == "array":
        return f"a list of {schema.get('minItems', 0)} to {schema['maxItems']} entries"
    if "minLength" in schema:
        return f"{kind} of at least {schema['minLength']} character"
    if "exclusiveMinimum" in schema:
        return f"{kind} above {schema['exclusiveMinimum']}, up to {schema['maximum']:.16g}"
    if "maximum" in schema:
        return f"{kind} from {schema['minimum']} to {schema['maximum']:.16g}"
    return kind
