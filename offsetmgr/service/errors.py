"""Errors of the service itself, and msgspec's errors with field, value and fix."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from offsetmgr.errors import InvalidValueError, KafkaRequestError, shown
from offsetmgr.http.errors import LATE_CODES, HttpStatusError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.coordinator.base import Failure


class DrainingError(HttpStatusError):
    """The service is stopping and takes no new work."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "draining",
            "the service is stopping and commits what it holds; keep your offsets and send them "
            "to the service that starts next",
        )


class ClientExistsError(HttpStatusError):
    """A client of this name is alive that was started later, by the clocks of their machines."""

    def __init__(self, name: str, lease_left_s: float) -> None:
        """``lease_left_s`` is how long that one is waited for if it stays silent."""
        super().__init__(
            HTTPStatus.CONFLICT,
            "client_exists",
            f"another process is client {name!r}, and by the clock of its machine it was started "
            f"later; close it; if it has ended without a close, its lease ends in "
            f"{lease_left_s:.0f} s, and this one takes over then",
        )
        self.lease_left_s = lease_left_s


class WrongValueError(InvalidValueError):
    """A value that is not of the kind, or in the range, that its field takes."""

    def __init__(self, field: str, value: object, wanted: str) -> None:
        """``wanted`` is what the field takes, such as ``true or false``."""
        super().__init__(field, value, f"is not {wanted}", f"give {wanted}")
        self.args = (f"{field} must be {wanted}, not {shown(value)}",)


def kafka_error(what: str, failure: Failure, timeout_s: float) -> KafkaRequestError:
    """Return the error of a request to Kafka that had ``timeout_s`` to be answered."""
    detail = failure.detail
    if failure.info.name in LATE_CODES:
        detail = (
            f"Kafka did not answer the service within {timeout_s:.3g} s; check the brokers, "
            "and the network between them and the service"
        )
    return KafkaRequestError(what, failure.info, detail)


# msgspec's errors

_PLACE: Final = re.compile(r"(.*) - at (?:`(key)` in )?`\$(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")
_WORDS: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a JSON object",
    "string": "text",
}


def explained(
    error: Exception, kind: type, given: Any, name: Callable[[str], str]
) -> InvalidValueError:
    """Return an ``error`` of msgspec with the field, its value and the fix.

    ``given`` could not be converted to ``kind``.  ``name`` makes a field's name of its path, which
    is "" for the whole, else such as ``.offsets[0].topic``.
    """
    match = _PLACE.fullmatch(str(error))
    text, of_key, path = match.groups() if match else (str(error), None, "")
    cause = error.__cause__
    if isinstance(cause, MissingError):
        return cause
    if isinstance(cause, InvalidValueError):  # of a __post_init__
        return InvalidValueError(
            name(f"{path}.{cause.field}"), cause.value, cause.problem, cause.hint
        )
    schema, value = schema_of(kind), given
    for key, index in _STEP.findall(path):
        if index == "...":  # some value of an object
            schema = _resolved(schema["additionalProperties"], kind)
            continue
        schema = _resolved(schema["properties"][key] if key else schema["items"], kind)
        value = value[key or int(index)]
    if of_key:
        schema, path = {"type": "string", **schema["propertyNames"]}, f"{path}[...]"
    field = text.partition("`")[2].removesuffix("`")
    if text.startswith("Object missing"):
        return MissingError(name(f"{path}.{field}"), f"add {field!r} to the request")
    if text.startswith("Object contains unknown"):
        known = ", ".join(schema["properties"]) or "nothing"
        escaped = field if shown(field) == f"'{field}'" else shown(field)
        fix = f"remove it; known here: {known}"
        problem = "is an unknown field"
        return InvalidValueError(name(f"{path}.{escaped}"), value[field], problem, fix)
    if isinstance(value, list) and schema.get("type") == "array":
        value = len(value)
    return WrongValueError(name(path), value, _wanted(schema))


@cache
def schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of an object; it takes a millisecond to make."""
    return _resolved(msgspec.json.schema(kind), kind)


def _resolved(schema: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return what a schema refers to; of alternatives the one that is not null."""
    schema = schema.get("anyOf", [schema])[0]
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = msgspec.json.schema(kind)["$defs"][schema["$ref"].rpartition("/")[2]]
    return found


def _wanted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    kind = _WORDS[schema["type"]]
    if schema["type"] == "array":
        return f"a list of {schema.get('minItems', 0)} to {schema['maxItems']} entries"
    if "maxLength" in schema:
        return f"text of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    if "exclusiveMinimum" in schema:
        return f"{kind} above {schema['exclusiveMinimum']}, up to {int(schema['maximum'])}"
    if "maximum" in schema:
        return f"{kind} from {schema['minimum']} to {int(schema['maximum'])}"
    return kind
