"""The OpenAPI document, derived from the table of operations and the message types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from offsetmgr.service.messages import ErrorAnswer
from offsetmgr.service.operations import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetmgr.service.operations import Operation

_REF: Final = "#/components/schemas/{name}"

_STATUS_TEXT: Final = {
    400: "A value is wrong; nothing was done.",
    408: "The body did not arrive within limits.body_timeout_s; nothing was done.",
    409: "A newer incarnation of the client has taken over.",
    412: "The request is for an earlier process of the service; nothing was done.",
    413: "The body is larger than limits.body_bytes.",
    415: "The body is not JSON.",
    421: "The Host header is not one of this service.",
    429: "A limit was reached; nothing was done. Try again later.",
    431: "The first line and the headers are too large; nothing was done.",
    500: "The service failed at this request; its log says how.",
    502: "Kafka refused.",
    503: "The service is stopping (or, for /readyz, not ready).",
    504: "Kafka did not answer in time.",
}


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The whole document, as JSON-ready values."""
    used = {ErrorAnswer}.union(*((op.request, op.answer, *op.others.values()) for op in operations))
    types: list[Any] = sorted(used - {None}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, by_type)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "offsetmgr",
            "version": version,
            "description": "Committed Kafka offsets of consumer groups, one manager per "
            "group/topic/partition. Every answer carries Offsetmgr-Instance: when it changes, the "
            "service has restarted, and clients send again what they hold.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {name: _tidy(each) for name, each in components.items()}},
    }


def _operation(operation: Operation, by_type: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.required,
                "description": parameter.description,
                "schema": parameter.schema,
            }
            for parameter in operation.parameters
        ],
        "responses": {"200": {"description": "Success."}},
    }
    if operation.request is not None:
        body = {"application/json": {"schema": by_type[operation.request]}}
        described["requestBody"] = {"required": True, "content": body}
    if operation.answer is not None:
        content = {"application/json": {"schema": by_type[operation.answer]}}
    else:
        content = {operation.media_type: {"schema": {}}}
    described["responses"]["200"]["content"] = content
    errors = dict.fromkeys((*operation.statuses, *ANY), ErrorAnswer)
    for status, failure in sorted({**errors, **operation.others}.items()):
        described["responses"][str(status)] = {
            "description": _STATUS_TEXT[status],
            "content": {"application/json": {"schema": by_type[failure]}},
        }
    return described


def _tidy(schema: Any) -> Any:
    """Where a field says its JSON type itself, drop the one derived from the Python type."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    stated = "type" in schema and "anyOf" in schema
    return {k: _tidy(v) for k, v in schema.items() if not (stated and k == "anyOf")}
