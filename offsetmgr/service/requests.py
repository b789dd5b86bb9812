"""Requests of the HTTP API: the types of bodies and queries, their limits, and who sends them.

The OpenAPI document and the errors are made from the same types.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast
from urllib.parse import unquote_to_bytes

import anyio
import msgspec
from msgspec import Meta, Struct

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.manager import Submission
from offsetmgr.service.errors import HttpStatusError, MissingError, WrongValueError, wanted
from offsetmgr.service.sessions import Caller
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    MAX_INT32,
    MAX_METADATA_CHARS,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_TOPIC_CHARS,
    TopicPartition,
    check_group,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.datastructures import Headers
    from starlette.requests import Request

_R = TypeVar("_R", bound="ApiRequest")

CLIENT: Final = "Offsetmgr-Client"
INCARNATION: Final = "Offsetmgr-Incarnation"
INSTANCE: Final = "Offsetmgr-Instance"
LAST_EVENT: Final = "Last-Event-ID"

BODY_BYTES: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0
MAX_ENTRIES: Final = 10_000
MAX_NAME_CHARS: Final = 255
MAX_PAGE: Final = 10_000
MAX_TOPICS: Final = 1_000
MAX_INT_DIGITS: Final = 4300
"""Digits of an integer that Python reads and prints."""

Group = Annotated[
    str, Meta(min_length=1, max_length=MAX_GROUP_CHARS, description="Consumer group.")
]
Topic = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_TOPIC_CHARS,
        extra_json_schema={"pattern": "^[a-zA-Z0-9._-]+$"},
    ),
]
Partition = Annotated[int, Meta(ge=0, le=MAX_PARTITION)]
Int64 = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Offset = Annotated[Int64, Meta(description="The next offset to read (exclusive).")]
Version = Annotated[
    Int64,
    Meta(
        description="Rises with each change that an incarnation of the client asks for. One that "
        "is not higher than what was seen of the partition has no effect; null stands for the "
        "newest.",
    ),
]
Timeout = Annotated[
    float,
    Meta(
        gt=0,
        le=300,
        description="How long the service may wait for Kafka before it answers, in seconds.",
    ),
]
KafkaTimeout = Annotated[
    float,
    Meta(
        ge=0,
        le=60,
        description="Longest wait for Kafka in seconds; commit.request_timeout_s, which is also "
        "the most.",
    ),
]


class ApiRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of bodies and queries.  ``__post_init__`` checks what a type cannot say."""


# Bodies

# The entries of a request have few topics between them.
_check_topic: Final = lru_cache(maxsize=1_000)(check_topic)


class PartitionRef(ApiRequest, frozen=True, gc=False):
    """A partition of a topic."""

    topic: Topic
    partition: Partition

    def __post_init__(self) -> None:
        _check_topic(self.topic)


class OpenEntry(PartitionRef, frozen=True, gc=False):
    """A partition that the client wants a manager for."""

    version: Version | None = None


class SubmitEntry(PartitionRef, frozen=True, gc=False):
    """The newest offset of one partition."""

    offset: Offset
    metadata: Annotated[str, Meta(max_length=MAX_METADATA_CHARS)] = ""
    leader_epoch: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    rewind: Annotated[
        bool, Meta(description="Take the offset although it is lower than before.")
    ] = False
    version: Version | None = None

    def __post_init__(self) -> None:
        _check_topic(self.topic)
        if self.metadata:
            check_metadata(self.metadata)


class OpenRequest(ApiRequest, frozen=True):
    """Partitions of one group that the client wants managers for."""

    group: Group
    partitions: Annotated[list[OpenEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]

    def __post_init__(self) -> None:
        check_group(self.group)
        _check_distinct("partitions", self.partitions)


class SubmitRequest(ApiRequest, frozen=True):
    """Offsets of one group to commit; managers that do not exist yet are spawned."""

    group: Group
    offsets: Annotated[list[SubmitEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]
    wait: Annotated[
        bool, Meta(description="Answer after Kafka did, or when timeout_s is over.")
    ] = False
    timeout_s: Timeout = 10.0

    def __post_init__(self) -> None:
        check_group(self.group)
        _check_distinct("offsets", self.offsets)

    def submissions(self) -> dict[TopicPartition, int | Submission]:
        """Return plain offsets where no entry says more than that: the core takes them faster."""
        if any(e.metadata or e.rewind or e.leader_epoch is not None for e in self.offsets):
            return {
                TopicPartition(e.topic, e.partition): Submission(
                    e.offset, e.metadata, e.leader_epoch, e.rewind
                )
                for e in self.offsets
            }
        return {TopicPartition(e.topic, e.partition): e.offset for e in self.offsets}


class FlushRequest(ApiRequest, frozen=True):
    """Which of the client's managers to flush; all of them where nothing is named."""

    group: Group | None = None
    partitions: Annotated[list[PartitionRef], Meta(min_length=1, max_length=MAX_ENTRIES)] | None = (
        None
    )
    timeout_s: Timeout = 10.0

    def __post_init__(self) -> None:
        if self.group is not None:
            check_group(self.group)
        elif self.partitions is not None:
            fix = "name the group of these partitions, or leave partitions out"
            raise MissingError("group", fix)
        _check_distinct("partitions", self.partitions or ())


class StopRequest(FlushRequest, frozen=True):
    """Which of the client's managers to stop; those with a newer version go on."""

    version: Version | None = None


class HeartbeatRequest(ApiRequest, frozen=True):
    """Nothing: the headers say who is alive."""


def _check_distinct(field: str, entries: Sequence[PartitionRef]) -> None:
    if len({(each.topic, each.partition) for each in entries}) == len(entries):
        return
    first: dict[tuple[str, int], int] = {}
    for index, each in enumerate(entries):
        other = first.setdefault((each.topic, each.partition), index)
        if other != index:
            name = f"{each.topic}-{each.partition}"
            fix = f"give each partition once; the other is {field}[{other}]"
            raise InvalidValueError(f"{field}[{index}]", name, "is named twice", fix)


# Queries


class Query(ApiRequest, frozen=True):
    """Base of queries.  A field that is a list may stand several times."""

    def __post_init__(self) -> None:
        values = msgspec.structs.asdict(self)
        groups = values.get("group") or ()
        for group in [groups] if isinstance(groups, str) else groups:
            check_group(group)
        topics = values.get("topic") or ()
        for topic in [topics] if isinstance(topics, str) else topics:
            check_topic(topic)


class ManagersQuery(Query, frozen=True):
    group: Annotated[str, Meta(description="Only this consumer group.")] | None = None
    client: Annotated[str, Meta(description="Only those of this client.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Managers in a page.")] = 1_000
    after: Annotated[str, Meta(description="`next` of the page before.")] | None = None


class InitialOffsetsQuery(Query, frozen=True):
    group: Group
    wait_s: Annotated[float, Meta(ge=0, le=60, description="Longest wait in seconds.")] = 5.0
    topic: Annotated[str, Meta(description="Only this topic.")] | None = None
    partition: (
        Annotated[int, Meta(ge=0, le=MAX_PARTITION, description="Only this partition.")] | None
    ) = None


class CommittedQuery(Query, frozen=True):
    group: Group
    topic: Annotated[list[str], Meta(max_length=MAX_TOPICS, description="Only these topics.")] = []
    timeout_s: KafkaTimeout | None = None


_AT_MS: Final = "Also the first offset of that time or later; milliseconds since 1970."


class TopicsQuery(Query, frozen=True):
    topic: Annotated[
        list[str], Meta(min_length=1, max_length=MAX_TOPICS, description="Topics to look at.")
    ]
    at_ms: Annotated[Int64, Meta(description=_AT_MS)] | None = None
    stable: Annotated[
        bool,
        Meta(description="Also the last stable offset: where the first open transaction begins."),
    ] = False
    timeout_s: KafkaTimeout | None = None


class TopicNamesQuery(Query, frozen=True):
    timeout_s: KafkaTimeout | None = None


class GroupsQuery(Query, frozen=True):
    pass


class LagQuery(Query, frozen=True):
    group: Annotated[
        list[str], Meta(min_length=1, max_length=MAX_TOPICS, description="Consumer groups.")
    ]


class ClusterQuery(Query, frozen=True):
    cluster: Annotated[str, Meta(description="The service's `cluster_name`.")]


class ConsumerQuery(ClusterQuery, frozen=True):
    consumer: Annotated[str, Meta(description="A consumer group.")]


class TopicQuery(ClusterQuery, frozen=True):
    topic: Annotated[str, Meta(description="A topic.")]


class EventsQuery(Query, frozen=True, rename={"after": LAST_EVENT}):
    group: Annotated[str, Meta(description="Only this consumer group.")] | None = None
    after: (
        Annotated[Int64, Meta(description="Send failures again that came after this event.")] | None
    ) = None
    """From the header ``Last-Event-ID``."""


# From HTTP to these types


def read_caller(headers: Headers) -> Caller | None:
    """Return who sends the request, None where nobody is named.  Raises InvalidValueError."""
    raw = headers.get(CLIENT)
    if raw is None:
        return None
    text = headers.get(INCARNATION, "0")
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_OFFSET))
    if not digits or int(text) > MAX_OFFSET:
        raise WrongValueError(INCARNATION, text, f"a whole number from 0 to {MAX_OFFSET}")
    return Caller(_client_name(raw), int(text))


def _client_name(raw: str) -> str:
    try:
        name = unquote_to_bytes(raw.encode("ascii")).decode()
    except UnicodeError:
        fix = "send the name as UTF-8 with everything beyond ASCII as %XX"
        raise InvalidValueError(CLIENT, raw, "is not percent-encoded UTF-8", fix) from None
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        fix = f"give 1 to {MAX_NAME_CHARS} printable characters without spaces at the ends"
        raise InvalidValueError(CLIENT, name, "is not a client name", fix)
    return name


def read_query(kind: type[_R], request: Request) -> _R:
    """Return the query, with the parameters of the path.  Raises InvalidValueError."""
    values: dict[str, Any] = dict(request.path_params)
    properties = _schema_of(kind)["properties"]
    if LAST_EVENT in properties and LAST_EVENT in request.headers:
        values[LAST_EVENT] = request.headers[LAST_EVENT]
    for name in request.query_params:
        given = request.query_params.getlist(name)
        if properties.get(name, {}).get("type") == "array":
            values[name] = list(dict.fromkeys(given))
        elif len(given) > 1:
            raise InvalidValueError(f"query.{name}", given[1], "is given twice", "give it once")
        else:
            values[name] = given[0]
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _explained(error, kind, values, "query") from None


async def read_body(request: Request) -> bytes:
    """Return the body of a JSON request.

    Raises HttpStatusError where it is not JSON (415), too large (413) or too slow (408), and
    Starlette's ClientDisconnect.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "the body must be JSON; send it with Content-Type: application/json"
        raise HttpStatusError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", text)
    # The server has checked that it is a number; one of so many digits is too large anyway.
    length = request.headers.get("content-length", "0")
    too_large = len(length) > len(str(MAX_OFFSET)) or int(length) > BODY_BYTES
    body = bytearray()
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            chunks = request.stream()
            while not too_large and (chunk := await anext(chunks, None)) is not None:
                body += chunk
                too_large = len(body) > BODY_BYTES
    except TimeoutError:
        text = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise HttpStatusError(HTTPStatus.REQUEST_TIMEOUT, "body_timeout", text) from None
    if too_large:
        text = f"the body is larger than {BODY_BYTES} bytes; send fewer offsets in one request"
        raise HttpStatusError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", text)
    return bytes(body)


def decode(kind: type[_R], body: bytes) -> _R:
    """Return a body as ``kind``.  Raises InvalidValueError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise _refused(error, kind, body) from None


def _refused(error: Exception, kind: type[ApiRequest], body: bytes) -> InvalidValueError:
    try:
        # Python converts no more digits than this; so long a number is too large wherever it is.
        given = json.loads(body, parse_int=lambda digits: int(digits[:MAX_INT_DIGITS]))
        if isinstance(error, msgspec.ValidationError):
            return _explained(error, kind, given, "")
    except (ValueError, RecursionError) as worse:  # not JSON, not UTF-8, or nested too deeply
        error = worse
    fix = "send one JSON object, encoded in UTF-8"
    return InvalidValueError("body", body[:40], f"is not JSON ({error})", fix)


# Errors with field, value and fix

_CHECKS: Final[dict[str, Callable[[object, str], object]]] = {
    "group": check_group,
    "topic": check_topic,
    "partition": check_partition,
    "offset": check_offset,
    "metadata": check_metadata,
    "leader_epoch": check_leader_epoch,
}
"""Checks of fields beyond their types."""

_STEP: Final = re.compile(r"\.([\w-]+)|\[(\d+)\]")


def _explained(
    error: msgspec.ValidationError, kind: type[ApiRequest], given: object, place: str
) -> InvalidValueError:
    """Return ``error`` with the field, its value and the fix; ``place`` is "query" or ""."""
    text, found, path = str(error).rpartition(" - at `$")
    text, path = (text, path.removesuffix("`")) if found else (path, "")
    schema, value = _schema_of(kind), cast("Any", given)
    for name, index in _STEP.findall(path):
        schema = _resolved(schema["properties"][name] if name else schema["items"], kind)
        value = value[name or int(index)]
    field = f"{place}{path}" if place else path.removeprefix(".")
    prefix = f"{field}." if field else ""
    cause = error.__cause__
    if isinstance(cause, MissingError):
        return cause
    if isinstance(cause, InvalidValueError):  # of a __post_init__
        return InvalidValueError(prefix + cause.field, cause.value, cause.problem, cause.fix)
    named = text.partition("`")[2].removesuffix("`")
    if text.startswith("Object missing"):
        fix = f"add ?{named}=…" if place else f"add {named!r} to {field or 'body'}"
        return MissingError(prefix + named, fix)
    if text.startswith("Object contains unknown"):
        known = ", ".join(schema["properties"]) or "nothing"
        escaped = shown(named)
        name = named if escaped == f"'{named}'" else escaped
        fix = f"remove it; known here: {known}"
        return InvalidValueError(prefix + name, value[named], "is an unknown field", fix)
    check = _CHECKS.get(path.rpartition(".")[2])
    try:
        if check is not None:
            check(value, field)
    except InvalidValueError as better:
        return better
    if isinstance(value, list) and schema["type"] == "array":
        value = len(value)
    return WrongValueError(field or "body", value, wanted(schema))


def _schema_of(kind: type[ApiRequest]) -> dict[str, Any]:
    return _resolved(msgspec.json.schema(kind), kind)


def _resolved(schema: dict[str, Any], kind: type[ApiRequest]) -> dict[str, Any]:
    """Return what a schema refers to; of alternatives the one that is not null."""
    schema = schema.get("anyOf", [schema])[0]
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = msgspec.json.schema(kind)["$defs"][schema["$ref"].rpartition("/")[2]]
    return found
