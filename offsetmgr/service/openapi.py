"""The OpenAPI document, made from the table of operations."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from offsetmgr.http.errors import ErrorAnswer
from offsetmgr.service.errors import schema_of
from offsetmgr.service.messages import INSTANCE, LAST_EVENT, ApiRequest, Caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.responses import Response

    from offsetmgr.service.access import Names, Requester

    # Of the sender, and of a request of the operation's type.
    Handler = Callable[[Requester, Any], Awaitable[msgspec.Struct | Response]]


_H = TypeVar("_H", bound="Callable[..., Any]")


class Operation(NamedTuple):
    """One thing the API does."""

    method: Literal["GET", "POST"]
    path: str
    """May hold names in braces, which are fields of ``request``."""
    handler: Handler
    """Its name is the operation's id, its docstring the summary."""
    needs: Callable[[Any], Names]
    """Returns the names in a request for which its sender needs a right."""
    request: type[ApiRequest] | None = None
    """Type of the body of a POST, of the query of a GET.  None for what needs neither a client nor
    a service that is not stopping: health, metrics, this document."""
    answer: type[msgspec.Struct] | None = None
    others: Mapping[int, type[msgspec.Struct]] = {}
    """Further statuses with a body of their own."""
    media_type: str = "application/json"
    reads: bool = False
    """True for a POST that changes nothing but what the service knows of the client."""

    @property
    def changes(self) -> bool:
        return self.method == "POST" and not self.reads

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def streams(self) -> bool:
        """True if the answer has no end."""
        return self.media_type == "text/event-stream"


def operation(
    method: Literal["GET", "POST"],
    path: str,
    request: type[ApiRequest] | None = None,
    answer: type[msgspec.Struct] | None = None,
    *,
    needs: Callable[[Any], Names],
    **more: Any,
) -> Callable[[_H], _H]:
    """Offer a method over HTTP."""

    def mark(handler: _H) -> _H:
        made = Operation(method, path, handler, needs, request, answer, **more)
        vars(handler)["operation"] = made
        return handler

    return mark


def operations(part: object) -> list[Operation]:
    """Return what methods of ``part`` offer."""
    marked = (vars(each).get("operation") for each in vars(type(part)).values() if callable(each))
    return [each._replace(handler=getattr(part, each.name)) for each in marked if each is not None]


_NOT_HTTP: Final = "The head of the request is too large, or is not HTTP."
_ANY: Final = (400, 401, 403, 412, 421, 429, 500)
_READS: Final = (409, 502, 503, 504)
_WRITES: Final = (*_READS, 408, 413, 415)


def document(version: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document, as JSON-ready values."""
    used: set[Any] = {ErrorAnswer}
    for each in operations:
        used |= {each.answer, *each.others.values()}
        used |= {each.request} if each.method == "POST" else set()
    types = sorted(used - {None}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))
    for kind in types:
        components[kind.__name__] |= getattr(kind, "schema", {})
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(each, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "offsetmgr",
            "version": version,
            "description": "Committed Kafka offsets of consumer groups, one manager per "
            "group/topic/partition. Every answer has the header Offsetmgr-Instance: when it "
            "changes, the service has restarted, and clients send their offsets again.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation, by_type: Mapping[Any, Any]) -> dict[str, Any]:
    answer = {} if operation.answer is None else by_type[operation.answer]
    success = {"description": "Success.", "content": {operation.media_type: {"schema": answer}}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (operation.handler.__doc__ or "").partition("\n")[0].rstrip("."),
        "parameters": _parameters(operation),
        "responses": {"200": success},
    }
    statuses: tuple[int, ...] = _ANY
    if operation.method == "POST":
        body = {"application/json": {"schema": by_type[operation.request]}}
        described["requestBody"] = {"required": True, "content": body}
        statuses += _WRITES
    elif operation.request is not None:
        statuses += _READS
    failures = {**dict.fromkeys(statuses, ErrorAnswer), **operation.others}
    for status, failure in sorted(failures.items()):
        content: dict[str, Any] = {"application/json": {"schema": by_type[failure]}}
        if status == HTTPStatus.BAD_REQUEST:
            content["text/plain"] = {"schema": {"type": "string", "description": _NOT_HTTP}}
        described["responses"][str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": content,
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.request is None:
        return []
    writes = operation.method == "POST"
    caller, schema = schema_of(Caller), schema_of(operation.request)
    found = [
        _parameter(name, "header", kind, required=writes and name in caller["required"])
        for name, kind in caller["properties"].items()
    ]
    if writes:
        text = "The only process of the service that may take it."
        kind = {"type": "string", "description": text}
        return [*found, _parameter(INSTANCE, "header", kind, required=False)]
    for field, kind in schema["properties"].items():
        place = "path" if f"{{{field}}}" in operation.path else "query"
        place = "header" if field == LAST_EVENT else place
        found.append(_parameter(field, place, kind, required=field in schema["required"]))
    return found


def _parameter(name: str, place: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    given = {**schema.get("anyOf", [schema])[0]}  # a parameter that may be left out is not null
    text = given.pop("description", "")
    return {"name": name, "in": place, "required": required, "description": text, "schema": given}
