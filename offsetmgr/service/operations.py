"""The table of what the HTTP API offers; routes and the OpenAPI document both come from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from offsetmgr.service import messages
from offsetmgr.service.reads import MAX_PAGE, PAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

MAX_WAIT_S: Final = 60.0
"""Longest wait for initial offsets."""

DEFAULT_WAIT_S: Final = 5.0

CLIENT: Final = "Offsetmgr-Client"
INCARNATION: Final = "Offsetmgr-Incarnation"
SEQUENCE: Final = "Offsetmgr-Sequence"
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
    Parameter(SEQUENCE, "header", "Rises with each request; a repeated one has no effect.", _COUNT),
    Parameter(INSTANCE, "header", "The only process of the service that may take it.", _TEXT),
)
_READER: Final = _identity(required=False)
_GROUP: Final = Parameter("group", "query", "Consumer group.", _TEXT, required=True)
_ANY_GROUP: Final = Parameter("group", "query", "Only this consumer group.", _TEXT)
_TOPICS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
_WRITES: Final = (400, 408, 409, 413, 415, 429, 503)
_READS: Final = (400, 409, 429, 503)

ANY: Final = (412, 421, 431, 500)
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
            Parameter("partition", "query", "Only this partition.", _COUNT),
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
        (*_READER, _GROUP, Parameter("topic", "query", "Only these topics.", _TOPICS)),
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
        ),
        _READS,
    ),
    Operation(
        "GET", "/v1/topic-names", "topic_names", "Topics of the cluster, but Kafka's own",
        messages.TopicNamesAnswer, None, _READER, (*_READS, 502, 504),
    ),
    Operation(
        "POST", "/v1/flush", "flush", "Commit what the client's managers hold",
        messages.SettleAnswer, messages.SettleRequest, _WRITER, _WRITES,
    ),
    Operation(
        "POST", "/v1/stop", "stop", "Commit what the client's managers hold and stop them",
        messages.SettleAnswer, messages.SettleRequest, _WRITER, _WRITES,
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
