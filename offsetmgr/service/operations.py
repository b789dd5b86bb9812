"""The table of what the HTTP API offers, which makes its routes and its OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from offsetmgr.service import messages
from offsetmgr.service.reads import MAX_PAGE, PAGE
from offsetmgr.types import MAX_PARTITION

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WAIT_S: Final = 60.0
"""Longest wait for initial offsets."""

DEFAULT_WAIT_S: Final = 5.0

CLIENT: Final = "Offsetmgr-Client"
INCARNATION: Final = "Offsetmgr-Incarnation"
INSTANCE: Final = "Offsetmgr-Instance"
LAST_EVENT: Final = "Last-Event-ID"


class Parameter(NamedTuple):
    """A header or a part of the query."""

    name: str
    place: Literal["header", "query"]
    description: str
    schema: dict[str, Any]
    required: bool = False


class Operation(NamedTuple):
    """One thing the API does."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    """Name of the handler, and the operation's id."""
    summary: str
    answer: type[msgspec.Struct] | None
    request: type[msgspec.Struct] | None = None
    parameters: tuple[Parameter, ...] = ()
    statuses: tuple[int, ...] = ()
    """What it may answer but 200 and what any may, each with an ErrorAnswer."""
    media_type: str = "application/json"
    others: Mapping[int, type[msgspec.Struct]] = {}
    """What it may answer with another body."""

    def queries(self) -> frozenset[str]:
        """Names that may stand in the query."""
        return frozenset(each.name for each in self.parameters if each.place == "query")


_TEXT: Final[dict[str, Any]] = {"type": "string"}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_PARTITION: Final[dict[str, Any]] = {**_COUNT, "maximum": MAX_PARTITION}
_FLAG: Final[dict[str, Any]] = {"type": "boolean", "default": False}


def _identity(*, required: bool) -> tuple[Parameter, ...]:
    name = {"type": "string", "minLength": 1, "maxLength": 255}
    text = "Name of the client, percent-encoded where not ASCII; renews its lease."
    return (
        Parameter(CLIENT, "header", text, name, required),
        Parameter(INCARNATION, "header", "The newest one owns the client's managers; 0.", _COUNT),
    )


_WRITER: Final = (
    *_identity(required=True),
    Parameter(INSTANCE, "header", "The only process of the service that may take it.", _TEXT),
)
_READER: Final = _identity(required=False)
_GROUP: Final = Parameter("group", "query", "Consumer group.", _TEXT, required=True)
_ANY_GROUP: Final = Parameter("group", "query", "Only this consumer group.", _TEXT)
_KAFKA_TIMEOUT: Final = Parameter(
    "timeout_s", "query",
    "Longest wait for Kafka in seconds; commit.request_timeout_s, which is also the most.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S},
)  # fmt: skip
_TOPICS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_WRITES: Final = (400, 408, 409, 413, 415, 429, 503)
_READS: Final = (400, 409, 429, 503)

ANY: Final = (412, 421, 500)
"""What every operation may answer."""

OPERATIONS: Final = (
    Operation(
        "POST", "/v1/managers", "open", "Have managers for partitions (idempotent)",
        messages.OpenAnswer, messages.OpenRequest, _WRITER, _WRITES,
    ),
    Operation(
        "GET", "/v1/managers", "managers", "List managers",
        messages.ManagersAnswer, None,
        (
            *_READER,
            _ANY_GROUP,
            Parameter("client", "query", "Only those of this client.", _TEXT),
            Parameter(
                "limit", "query", f"Managers in a page; {PAGE}.",
                {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
            ),
            Parameter("after", "query", "`next` of the page before.", _TEXT),
        ),
        _READS,
    ),
    Operation(
        "GET", "/v1/initial-offsets", "initial_offsets",
        "What was committed when the managers started; waits until Kafka told",
        messages.InitialOffsetsAnswer, None,
        (
            *_READER,
            _GROUP,
            Parameter(
                "wait_s", "query", f"Longest wait in seconds; {DEFAULT_WAIT_S:g}.",
                {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S},
            ),
            Parameter("topic", "query", "Only this topic.", _TEXT),
            Parameter("partition", "query", "Only this partition.", _PARTITION),
        ),
        _READS,
    ),
    Operation(
        "POST", "/v1/offsets", "submit", "Submit offsets of one group",
        messages.SubmitAnswer, messages.SubmitRequest, _WRITER, _WRITES,
    ),
    Operation(
        "GET", "/v1/offsets", "committed", "What Kafka says is committed now",
        messages.OffsetsAnswer, None,
        (
            *_READER, _GROUP, Parameter("topic", "query", "Only these topics.", _TOPICS),
            _KAFKA_TIMEOUT,
        ),
        (*_READS, 502, 504),
    ),
    Operation(
        "GET", "/v1/topics", "topics", "Partitions of topics and the ends of their logs",
        messages.TopicsAnswer, None,
        (
            *_READER,
            Parameter("topic", "query", "Topics to look at.", _TOPICS, required=True),
            Parameter(
                "at_ms", "query",
                "Also the first offset of that time or later; milliseconds since 1970.", _COUNT,
            ),
            Parameter(
                "stable", "query",
                "Also the last stable offset, where the first open transaction begins.", _FLAG,
            ),
            _KAFKA_TIMEOUT,
        ),
        _READS,
    ),
    Operation(
        "GET", "/v1/topic-names", "topic_names", "Topics of the cluster, but Kafka's own",
        messages.TopicNamesAnswer, None, (*_READER, _KAFKA_TIMEOUT), (*_READS, 502, 504),
    ),
    Operation(
        "POST", "/v1/flush", "flush", "Commit what the client's managers hold",
        messages.FlushAnswer, messages.FlushRequest, _WRITER, _WRITES,
    ),
    Operation(
        "POST", "/v1/stop", "stop", "Commit what the client's managers hold and stop them",
        messages.FlushAnswer, messages.StopRequest, _WRITER, _WRITES,
    ),
    Operation(
        "POST", "/v1/heartbeat", "heartbeat", "Renew the client's lease",
        messages.HeartbeatAnswer, messages.HeartbeatRequest, _WRITER, _WRITES,
    ),
    Operation(
        "GET", "/v1/events", "events",
        "Server-sent events: committed, failed, stopped, dropped",
        None, None,
        (
            *_READER,
            _ANY_GROUP,
            Parameter(LAST_EVENT, "header", "Send failures again that came after this id.", _COUNT),
        ),
        _READS, "text/event-stream",
    ),
    Operation("GET", "/livez", "live", "Whether the process lives", messages.LiveAnswer),
    Operation(
        "GET", "/readyz", "ready", "Whether the service is of use now", messages.ReadyAnswer,
        others={503: messages.ReadyAnswer},
    ),
    Operation(
        "GET", "/metrics", "metrics", "Prometheus metrics", None,
        statuses=(429,), media_type="text/plain",
    ),
    Operation("GET", "/openapi.json", "openapi", "This document", None, statuses=(429,)),
)  # fmt: skip
"""Everything that is served."""

_REF: Final = "#/components/schemas/{name}"

_STATUS_TEXT: Final = {
    400: "A value is wrong; nothing was done.",
    408: "The body did not arrive in time; nothing was done.",
    409: "A newer incarnation of the client has taken over.",
    412: "The request is for an earlier process of the service; nothing was done.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header is not one of this service.",
    429: "A limit was reached; nothing was done. Try again later.",
    500: "The service failed at this request; its log says how.",
    502: "Kafka refused.",
    503: "The service is stopping (or, for /readyz, not ready).",
    504: "Kafka did not answer in time.",
}


def document(version: str) -> dict[str, Any]:
    """Return the OpenAPI document, as JSON-ready values."""
    used = {messages.ErrorAnswer}.union(
        *((op.request, op.answer, *op.others.values()) for op in OPERATIONS)
    )
    types: list[Any] = sorted(used - {None}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
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
    errors = dict.fromkeys((*operation.statuses, *ANY), messages.ErrorAnswer)
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
