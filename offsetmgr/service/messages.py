"""The JSON of the HTTP API, version 1, as types: what is asked and what is answered.

Requests decode into these and are then checked (``validate``); answers encode from them.  The
OpenAPI document is derived from them too, so what is written here is what is served.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from offsetmgr.types import (
    MAX_GROUP_CHARS,
    MAX_INT32,
    MAX_METADATA_CHARS,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_TOPIC_CHARS,
)

MAX_TIMEOUT_S: Final = 300.0
"""Longest wait that a request may ask for."""

DEFAULT_TIMEOUT_S: Final = 10.0


def _integer(highest: int, *, nullable: bool = False) -> dict[str, Any]:
    kind: str | list[str] = ["integer", "null"] if nullable else "integer"
    return {"type": kind, "minimum": 0, "maximum": highest}


Group = Annotated[str, Meta(description="Consumer group.", extra_json_schema={
    "minLength": 1, "maxLength": MAX_GROUP_CHARS})]  # fmt: skip
Topic = Annotated[str, Meta(extra_json_schema={
    "minLength": 1, "maxLength": MAX_TOPIC_CHARS, "pattern": "^[a-zA-Z0-9._-]+$"})]  # fmt: skip
Metadata = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_METADATA_CHARS})]
# A decoder of ``int`` takes 1.0 for 1.  One of ``int | float`` makes a float of it, and there is no
# float above 1 and below 0: so every fraction and exponent is refused while it is decoded.
_NoFloat = Annotated[float, Meta(gt=1, lt=0)]
_Int32 = Annotated[int, Meta(ge=0, le=MAX_INT32)]
_Number = Annotated[int, Meta(ge=0, le=MAX_PARTITION)]
_Int64 = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Partition = Annotated[_Number | _NoFloat, Meta(extra_json_schema=_integer(MAX_PARTITION))]
Offset = Annotated[
    _Int64 | _NoFloat,
    Meta(
        description="The next offset to read (exclusive).", extra_json_schema=_integer(MAX_OFFSET)
    ),
]
LeaderEpoch = Annotated[
    _Int32 | _NoFloat | None, Meta(extra_json_schema=_integer(MAX_INT32, nullable=True))
]
Timeout = Annotated[
    float,
    Meta(
        gt=0,
        le=MAX_TIMEOUT_S,
        description="How long the service may wait for Kafka before it answers, in seconds.",
    ),
]

Version = Annotated[
    _Int64 | _NoFloat | None,
    Meta(
        description="Rises with each change that an incarnation of the client asks for. One that "
        "is not higher than what was seen of the partition has no effect; null stands for the "
        "newest.",
        extra_json_schema=_integer(MAX_OFFSET, nullable=True),
    ),
]

Phase = Annotated[
    str, Meta(extra_json_schema={"enum": ["fetching", "ready", "stopping", "stopped"]})
]


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what is asked."""


class PartitionRef(Request, frozen=True, gc=False):
    """A partition of a topic."""

    topic: Topic
    partition: Partition


class OpenEntry(Request, frozen=True, gc=False):
    """A partition that the client wants a manager for."""

    topic: Topic
    partition: Partition
    version: Version = None


class OpenRequest(Request, frozen=True):
    """Partitions of one group that the client wants managers for."""

    group: Group
    partitions: list[OpenEntry]


class SubmitEntry(Request, frozen=True, gc=False):
    """The newest offset of one partition."""

    topic: Topic
    partition: Partition
    offset: Offset
    metadata: Metadata = ""
    leader_epoch: LeaderEpoch = None
    rewind: Annotated[
        bool, Meta(description="Take the offset although it is lower than before.")
    ] = False
    version: Version = None


class SubmitRequest(Request, frozen=True):
    """Offsets of one group to commit; managers that do not exist yet are spawned."""

    group: Group
    offsets: list[SubmitEntry]
    wait: Annotated[
        bool, Meta(description="Answer after Kafka did, or when timeout_s is over.")
    ] = False
    timeout_s: Timeout = DEFAULT_TIMEOUT_S


class FlushRequest(Request, frozen=True):
    """Which of the client's managers to flush; all of them where nothing is named."""

    group: Group | None = None
    partitions: list[PartitionRef] | None = None
    timeout_s: Timeout = DEFAULT_TIMEOUT_S


class StopRequest(FlushRequest, frozen=True):
    """Which of the client's managers to stop; those with a newer version go on."""

    version: Version = None


class HeartbeatRequest(Request, frozen=True):
    """Nothing: the headers say who is alive."""


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """What went wrong, whose fault it is and what to do."""

    code: Annotated[str, Meta(description="Stable name of the error.")]
    message: Annotated[str, Meta(description="For people.")]
    field: Annotated[str | None, Meta(description="Where the bad value stands.")] = None
    value: Annotated[str | None, Meta(description="The bad value, escaped and cut.")] = None
    fix: str | None = None
    owner: Annotated[str | None, Meta(description="Who holds the manager.")] = None
    lease_left_s: Annotated[
        float | None, Meta(description="Until the owner's lease ends, if it stays silent.")
    ] = None
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
    """Body of every answer that is not a success."""

    error: ErrorBody


class OffsetValue(Struct, frozen=True):
    """An offset with what travels along."""

    offset: int
    metadata: str
    leader_epoch: int | None


class OffsetEntry(Struct, frozen=True):
    """An offset of a partition."""

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int | None


class GroupOffsetEntry(Struct, frozen=True):
    """An offset of a partition of a group."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int | None


class ManagerState(Struct, frozen=True):
    """True if the client now has a manager for the partition."""

    topic: str
    partition: int
    error: ErrorBody | None = None


class OpenAnswer(Struct, frozen=True):
    """One entry for each partition asked for, in their order."""

    managers: list[ManagerState]


class Refused(Struct, frozen=True):
    """An offset that was not taken."""

    topic: str
    partition: int
    error: ErrorBody


class Uncommitted(Struct, frozen=True):
    """An offset that was taken and is not known to be committed; it is tried again."""

    topic: str
    partition: int
    offset: int
    metadata: str
    error: ErrorBody | None


class SubmitAnswer(Struct, frozen=True):
    """What became of the offsets; the last two are filled with ``wait`` alone."""

    accepted: int
    refused: list[Refused]
    committed: list[OffsetEntry]
    uncommitted: list[Uncommitted]


class GroupUncommitted(Struct, frozen=True):
    """An offset of a group's partition that is not known to be committed."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str
    error: ErrorBody | None


class FlushAnswer(Struct, frozen=True):
    """What a flush or a stop ended with."""

    committed: list[GroupOffsetEntry]
    uncommitted: list[GroupUncommitted]


class HeartbeatAnswer(Struct, frozen=True):
    """How long the client may stay silent, and from where on it has to listen."""

    lease_s: float
    last_event_id: Annotated[
        int, Meta(description="Of the newest failure; a stream from there misses none after it.")
    ]


class InitialOffset(Struct, frozen=True):
    """What was committed when the manager started; ``known`` is false until Kafka answered."""

    topic: str
    partition: int
    known: bool
    committed: OffsetEntry | None
    error: ErrorBody | None


class InitialOffsetsAnswer(Struct, frozen=True):
    """Initial offsets of a group's managers."""

    initial_offsets: list[InitialOffset]


class OffsetsAnswer(Struct, frozen=True):
    """What Kafka says is committed now; partitions with nothing committed are absent."""

    group: str
    offsets: list[OffsetEntry]


class PartitionEnds(Struct, frozen=True):
    """The ends of a partition's log; both 0 where ``error`` says why they are not known."""

    partition: int
    log_start_offset: int
    high_watermark: int
    error: ErrorBody | None = None
    offset_at: Annotated[
        int | None,
        Meta(description="First offset at `at_ms` or later; null where no record is, or no time."),
    ] = None
    last_stable_offset: Annotated[
        int | None,
        Meta(description="End for readers of committed transactions; null without `stable`."),
    ] = None


class TopicState(Struct, frozen=True):
    """A topic's partitions, or why they are not known."""

    topic: str
    error: ErrorBody | None
    partitions: list[PartitionEnds]


class TopicsAnswer(Struct, frozen=True):
    """One entry for each topic asked for."""

    topics: list[TopicState]


class TopicNamesAnswer(Struct, frozen=True):
    """The topics of the cluster that the service may see, but Kafka's own; sorted."""

    names: list[str]


class ManagerView(Struct, frozen=True):
    """A manager as an operator sees it."""

    group: str
    topic: str
    partition: int
    client: str
    phase: Phase
    submitted: OffsetValue | None
    committed: OffsetValue | None
    dirty: bool
    last_error: ErrorBody | None
    regressions: int


class ManagersAnswer(Struct, frozen=True):
    """A page of managers, by group, topic and partition."""

    managers: list[ManagerView]
    next: Annotated[
        str | None, Meta(description="Give it as `after` for the next page; null on the last.")
    ]


class LiveAnswer(Struct, frozen=True):
    """The process is alive."""

    live: bool


class ReadyAnswer(Struct, frozen=True):
    """True if requests are of use now; names no groups."""

    ready: bool
    draining: bool
    kafka: Annotated[str, Meta(description='"ok", or what is wrong with it.')]
    fenced_groups: Annotated[
        int, Meta(description="Groups that another service has taken over from this one.")
    ]
