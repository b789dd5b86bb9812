"""Requests and answers of the HTTP API: their types, and the limits of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from msgspec import Meta, Raw, Struct

from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.http.errors import ErrorBody, MissingError, error_body
from offsetmgr.lag.report import PartitionField
from offsetmgr.manager import Submission
from offsetmgr.service.errors import schema_of
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    MAX_INT32,
    MAX_METADATA_CHARS,
    MAX_NAME_BYTES,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_TOPIC_CHARS,
    ManagerKey,
    StopResult,
    TopicPartition,
    check_existing_group,
    check_group,
    check_metadata,
    check_topic,
    new_tuple,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CLIENT: Final = "Offsetmgr-Client"
INCARNATION: Final = "Offsetmgr-Incarnation"
INSTANCE: Final = "Offsetmgr-Instance"
LAST_EVENT: Final = "Last-Event-ID"

MAX_ENTRIES: Final = 10_000
MAX_NAME_CHARS: Final = 255
MAX_TOPICS: Final = 100
"""Topics, or groups, in one query: a request's head has a limit."""
MAX_QUERIES: Final = 50
"""Streaming queries that are remembered of a client."""

_WORD: Final = "[^\\u0000-\\u0020\\u007f-\\u00a0]+"
"""Without control characters; regular expressions of JSON Schema know no "printable"."""

Group = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_GROUP_CHARS,
        description="Consumer group: printable, without spaces at the ends.",
        extra_json_schema={"pattern": f"^{_WORD}( +{_WORD})*$"},
    ),
]
ExistingGroup = Annotated[
    str,
    Meta(
        max_length=MAX_NAME_BYTES,
        description="Group of any name that Kafka lists.",
        extra_json_schema={"pattern": "^[^\\u0000]*$"},
    ),
]
Topic = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_TOPIC_CHARS,
        extra_json_schema={"pattern": "^(?!\\.{1,2}$)[a-zA-Z0-9._-]+$"},
    ),
]
Partition = Annotated[int, Meta(ge=0, le=MAX_PARTITION)]
Int64 = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
TopicId = Annotated[str, Meta(min_length=1, max_length=64)]

TopicIds = Annotated[
    dict[str, str],
    Meta(description="The ids of the topics; submitted with offsets, they name their logs."),
]

Version = Annotated[
    Int64,
    Meta(description="One that is not higher than before has no effect; null is the newest."),
]
_NEXT: Final = "`next` of the page before."
CURSOR: Final = r"([\s\S]*)/([^/]*)/([0-9]{1,7})"
Cursor = Annotated[
    str,
    Meta(description=_NEXT, extra_json_schema={"pattern": f"^{CURSOR}$"}),
]
PageLimit = Annotated[int, Meta(ge=1, le=10_000, description="Entries in a page.")]
Timeout = Annotated[float, Meta(gt=0, le=300, description="Longest wait for Kafka, in seconds.")]
KafkaTimeout = Annotated[float, Meta(ge=0, le=60, description="Longest wait for Kafka in seconds")]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
OfClient = Annotated[str, Meta(description="Only those of this client.")]
Live = Annotated[
    bool, Meta(description="Let the group's managers set the offsets, while its job runs.")
]
WITHOUT_VALUE: Final = ("to-earliest", "to-latest", "to-current")
ResetMode = Literal[
    "to-earliest",
    "to-latest",
    "to-current",
    "to-offset",
    "shift-by",
    "to-datetime",
    "by-duration",
    "from-group",
    "to-history",
]
PlannedTopics = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=1_000,
        description="`orders` or `orders:0,3`; null: all that the group has committed.",
    ),
]
Entries: Final = Meta(min_length=1, max_length=MAX_ENTRIES, description="Each partition once.")
Metadata = Annotated[
    str,
    Meta(
        max_length=MAX_METADATA_CHARS,
        description="Its characters beyond U+FFFF count twice.",
        extra_json_schema={"pattern": "^[^\\u0000]*$"},
    ),
]


class ApiRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all requests.  ``__post_init__`` checks what a type cannot express.

    A field of a query that is a list may stand several times.
    """

    check_name: ClassVar[Callable[[object], str]] = check_group
    schema: ClassVar[dict[str, object]] = {}
    """Rules that are added to the JSON schema of the type."""

    def __post_init__(self) -> None:
        for field, check in (
            ("group", type(self).check_name),
            ("groups", check_group),
            ("topic", check_topic),
        ):
            given = getattr(self, field, None) or ()
            for name in [given] if isinstance(given, str) else given:
                check(name)
        for field in ("offsets", "partitions"):
            _check_entries(field, getattr(self, field, None) or ())


class Caller(ApiRequest, frozen=True, rename={"name": CLIENT, "incarnation": INCARNATION}):
    """The sender of a request, as its headers say."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_NAME_CHARS,
            description="Percent-encoded UTF-8.",
            extra_json_schema={"pattern": "^[!-~]+( +[!-~]+)*$"},
        ),
    ]
    incarnation: Annotated[
        Int64, Meta(description="Of two that are alive the higher one takes over.")
    ] = 0

    def __post_init__(self) -> None:
        if not self.name.isprintable() or self.name != self.name.strip():
            fix = "use printable characters, without spaces at the ends"
            raise InvalidValueError(CLIENT, self.name, "is not a client name", fix)


# Bodies


class PartitionRef(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A partition of a topic."""

    topic: Topic
    partition: Partition

    @property
    def where(self) -> TopicPartition:
        return new_tuple(TopicPartition, (self.topic, self.partition))


class OpenEntry(PartitionRef, frozen=True, gc=False):
    """A partition that the client wants a manager for."""

    version: Version | None = None


class SubmitEntry(PartitionRef, frozen=True, gc=False):
    """The newest offset of one partition."""

    offset: Annotated[Int64, Meta(description="The next offset to read (exclusive).")]
    metadata: Metadata = ""
    leader_epoch: Annotated[int, Meta(ge=0, le=MAX_INT32)] | None = None
    rewind: Annotated[bool, Meta(description="Take it also if it is lower than before.")] = False
    version: Version | None = None


class OpenRequest(ApiRequest, frozen=True):
    """Partitions of one group that the client wants managers for."""

    group: Group
    partitions: Annotated[list[OpenEntry], Entries]


class SubmitRequest(ApiRequest, frozen=True):
    """Offsets of one group to commit; managers that do not exist yet are spawned."""

    group: Group
    offsets: Annotated[list[SubmitEntry], Entries]
    topic_ids: Annotated[
        dict[Topic, TopicId],
        Meta(description="The topics that the offsets were read from, as an answer named them."),
    ] = {}
    wait: Annotated[bool, Meta(description="Answer after Kafka, or after timeout_s.")] = False
    timeout_s: Timeout = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for index, each in enumerate(self.offsets):  # here, as a method of each takes time
            if each.metadata:
                check_metadata(each.metadata, f"offsets[{index}].metadata")

    def submissions(self) -> dict[TopicPartition, int | Submission]:
        """Return plain offsets where an entry says no more: the core takes them faster."""
        return {
            e.where: Submission(e.offset, e.metadata, e.leader_epoch, e.rewind)
            if e.rewind or e.metadata or e.leader_epoch is not None
            else e.offset
            for e in self.offsets
        }


class FlushRequest(ApiRequest, frozen=True):
    """Which of the client's managers to flush; all of them where nothing is named.

    Partitions need their group.
    """

    wait: ClassVar[bool] = True
    schema: ClassVar[dict[str, object]] = {
        "anyOf": [
            {"properties": {"group": {"type": "string"}}, "required": ["group"]},
            {"properties": {"partitions": {"type": "null"}}},
        ]
    }

    group: Group | None = None
    partitions: Annotated[list[PartitionRef], Entries] | None = None
    timeout_s: Timeout = 10.0

    def __post_init__(self) -> None:
        if self.group is None and self.partitions is not None:
            fix = "name the group of these partitions, or leave partitions out"
            raise MissingError("group", fix)
        super().__post_init__()


class StopRequest(FlushRequest, frozen=True):
    """Which of the client's managers to stop; those with a newer version go on."""

    version: Version | None = None


class HeartbeatRequest(ApiRequest, frozen=True):
    """Nothing: the headers say who is alive."""


class StreamingQuery(ApiRequest, frozen=True):
    """A streaming query of Spark, as its driver last reported it."""

    id: Annotated[Name, Meta(description="Of its checkpoint.")]
    run_id: Annotated[Name, Meta(description="Of this start.")]
    state: Annotated[Literal["running", "ended", "failed"], Meta(description="Of the run.")]
    name: Name | None = None
    groups: Annotated[list[Group], Meta(max_length=10)] = []
    batch_id: Int64 | None = None
    time: Annotated[str, Meta(max_length=40, description="When the batch began.")] | None = None
    batch_ms: Annotated[Int64, Meta(description="Duration of the batch.")] | None = None
    input_rows: Int64 | None = None
    input_rows_per_second: Rate | None = None
    processed_rows_per_second: Rate | None = None
    error: Annotated[str, Meta(max_length=4_000)] | None = None


class QueriesRequest(ApiRequest, frozen=True):
    """All queries of the client; they take the place of those it reported before.

    Each is decoded on its own, so that a bad one hides no other.
    """

    queries: Annotated[
        list[Raw],
        Meta(max_length=MAX_QUERIES, extra_json_schema={"items": schema_of(StreamingQuery)}),
    ]


class OfExistingGroup(ApiRequest, frozen=True):
    """Base of requests about groups that anybody may have made, under any name."""

    check_name: ClassVar[Callable[[object], str]] = check_existing_group


class PlanRequest(OfExistingGroup, frozen=True):
    """The reset to plan: the mode is an option of ``offsetmgr reset``, the value its argument."""

    wait: ClassVar[bool] = True
    schema: ClassVar[dict[str, object]] = {
        "anyOf": [
            {"properties": {"mode": {"enum": list(WITHOUT_VALUE)}}},
            {"properties": {"value": {"type": "string"}}, "required": ["value"]},
        ]
    }

    group: ExistingGroup
    mode: ResetMode
    value: Name | None = None
    topics: PlannedTopics | None = None
    live: Live = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value is None and self.mode not in WITHOUT_VALUE:
            raise MissingError("value", f"give the value of {self.mode}")


class ResetEntry(PartitionRef, frozen=True, gc=False):
    """A row of the plan: where the partition stood, and where it is set to."""

    current: Annotated[Int64, Meta(description="null: nothing was committed.")] | None
    new: Int64
    metadata: Metadata = ""

    def __post_init__(self) -> None:
        check_metadata(self.metadata)


class ResetRequest(OfExistingGroup, frozen=True):
    """The rows of a plan to carry out."""

    wait: ClassVar[bool] = True

    group: ExistingGroup
    partitions: Annotated[list[ResetEntry], Entries]
    topic_ids: Annotated[
        dict[Topic, TopicId], Meta(description="Of the plan: a topic must not be recreated since.")
    ] = {}
    live: Live = False


def _check_entries(field: str, entries: Sequence[PartitionRef]) -> None:
    """Raise InvalidValueError where a topic is not legal, or a partition stands twice."""
    legal: set[str] = set()
    first: dict[tuple[str, int], int] = {}
    for index, each in enumerate(entries):
        if each.topic not in legal:
            legal.add(check_topic(each.topic, f"{field}[{index}].topic"))
        other = first.setdefault((each.topic, each.partition), index)
        if other != index:
            name = f"{each.topic}-{each.partition}"
            fix = f"give each partition once; the other is {field}[{other}]"
            raise InvalidValueError(f"{field}[{index}]", name, "is named twice", fix)


# Queries


class ManagersQuery(ApiRequest, frozen=True):
    group: Group | None = None
    client: OfClient | None = None
    limit: PageLimit = 1_000
    after: Cursor | None = None


class InitialOffsetsQuery(ApiRequest, frozen=True):
    group: Group
    wait_s: KafkaTimeout = 5.0
    topic: Topic | None = None
    partition: Partition | None = None


class TopicsQuery(ApiRequest, frozen=True):
    topic: Annotated[list[Topic], Meta(min_length=1, max_length=MAX_TOPICS)]
    at_ms: Annotated[Int64, Meta(description="For `offset_at`; ms since 1970.")] | None = None
    stable: Annotated[bool, Meta(description="Also read the last stable offset.")] = False
    timeout_s: KafkaTimeout | None = None


class StartingOffsetsQuery(OfExistingGroup, frozen=True):
    group: ExistingGroup
    topic: Annotated[
        list[Topic],
        Meta(max_length=MAX_TOPICS, description="By default those with committed offsets."),
    ] = []
    timeout_s: KafkaTimeout | None = None


class CommittedQuery(StartingOffsetsQuery, frozen=True):
    limit: PageLimit | None = None
    after: Cursor | None = None


class TopicNamesQuery(ApiRequest, frozen=True):
    timeout_s: KafkaTimeout | None = None


class LagQuery(OfExistingGroup, frozen=True):
    group: Annotated[list[ExistingGroup], Meta(min_length=1, max_length=MAX_TOPICS)]
    field: Annotated[
        list[PartitionField],
        Meta(description="Each partition is a list of these of its fields, in this order."),
    ] = []


class WatchedQuery(OfExistingGroup, frozen=True):
    group: Annotated[
        list[ExistingGroup], Meta(max_length=MAX_TOPICS, description="By default all groups.")
    ] = []
    limit: PageLimit | None = None
    after: Annotated[ExistingGroup, Meta(description=_NEXT)] | None = None


class HistoryQuery(OfExistingGroup, frozen=True):
    group: ExistingGroup
    topic: Topic | None = None
    partition: Partition | None = None
    since: Annotated[Name, Meta(description="A time, or how long ago: 2h30m.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Newest steps.")] = 1_000


class QueriesQuery(ApiRequest, frozen=True):
    client: OfClient | None = None


class ClusterQuery(ApiRequest, frozen=True):
    cluster: Annotated[str, Meta(description="The service's `cluster_name`.")]


class ConsumerQuery(ClusterQuery, frozen=True):
    consumer: ExistingGroup


class TopicQuery(ClusterQuery, frozen=True):
    topic: Topic


class EventsQuery(ApiRequest, frozen=True, rename={"after": LAST_EVENT}):
    group: Group | None = None
    after: Annotated[Int64, Meta(description="Send later failures again.")] | None = None
    only: Annotated[Literal["failed"], Meta(description="No other events.")] | None = None


# Answers

Next = Annotated[str | None, Meta(description="`after` of the next page; null on the last.")]


class OffsetValue(Struct, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class OfGroup(Struct, frozen=True):
    group: str
    topic: str
    partition: int


class OffsetEntry(PartitionRef, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class PartitionOutcome(PartitionRef, frozen=True):
    """Done for the partition, unless there is an error."""

    error: ErrorBody | None = None


class OpenAnswer(Struct, frozen=True):
    """One entry for each partition asked for, in their order."""

    managers: list[PartitionOutcome]


class CommittedEntry(OfGroup, frozen=True):
    offset: int
    metadata: str
    leader_epoch: int | None


class UncommittedEntry(OfGroup, frozen=True):
    """An offset that was taken and is not known to be committed; it is tried again."""

    offset: int
    metadata: str
    error: ErrorBody | None


class FlushAnswer(Struct, frozen=True):
    committed: list[CommittedEntry]
    uncommitted: list[UncommittedEntry]
    topic_ids: TopicIds = {}


class SubmitAnswer(FlushAnswer, frozen=True, kw_only=True):
    """The outcome of each offset; ``committed`` and ``uncommitted`` need ``wait``."""

    accepted: int
    refused: list[PartitionOutcome]


class HeartbeatAnswer(Struct, frozen=True):
    """The client's lease, and the position at which its event stream begins."""

    lease_s: float
    last_event_id: Annotated[int, Meta(description="Of the newest failure.")]
    topic_ids: TopicIds = {}


class QueriesKept(Struct, frozen=True):
    kept: Annotated[int, Meta(description="Until the lease of the client ends.")]
    refused: Annotated[list[ErrorBody], Meta(description="Why the others were left out.")]


class InitialOffset(PartitionRef, frozen=True):
    """The offset committed when the manager started; ``known`` is false until Kafka answers."""

    known: bool
    committed: OffsetEntry | None
    error: ErrorBody | None


class InitialOffsetsAnswer(Struct, frozen=True):
    initial_offsets: list[InitialOffset]


class OffsetsAnswer(Struct, frozen=True):
    """The offsets committed in Kafka now; partitions with nothing committed are absent."""

    group: str
    offsets: list[OffsetEntry]
    next: Next = None


class PartitionEnds(Struct, frozen=True):
    """The ends of a partition's log; both 0 where ``error`` says why they are not known."""

    partition: int
    log_start_offset: int
    high_watermark: int
    error: ErrorBody | None = None
    offset_at: Annotated[int | None, Meta(description="First one at `at_ms` or later.")] = None
    last_stable_offset: Annotated[int | None, Meta(description="If `stable` is asked for.")] = None


class TopicState(Struct, frozen=True):
    """A topic's partitions, or why they are not known."""

    topic: str
    error: ErrorBody | None
    partitions: list[PartitionEnds]
    topic_id: Annotated[
        str, Meta(description="Changes when the topic is recreated; empty if it is not known.")
    ] = ""


class TopicsAnswer(Struct, frozen=True):
    topics: list[TopicState]


class StartingOffsetsAnswer(Struct, frozen=True):
    group: str
    starting_offsets: Annotated[
        str, Meta(description="The option `startingOffsets` of Spark's Kafka source.")
    ]


class TopicNamesAnswer(Struct, frozen=True):
    """The topics of the cluster that the service may see, but Kafka's own; sorted."""

    names: list[str]


class ManagerView(OfGroup, frozen=True):
    client: str
    phase: Annotated[
        str, Meta(extra_json_schema={"enum": ["fetching", "ready", "stopping", "stopped"]})
    ]
    submitted: OffsetValue | None
    committed: OffsetValue | None
    dirty: bool
    last_error: ErrorBody | None
    regressions: int


class ManagersAnswer(Struct, frozen=True):
    """A page of managers, by group, topic and partition."""

    managers: list[ManagerView]
    next: Next


class LiveAnswer(Struct, frozen=True):
    live: bool


class ReadyAnswer(Struct, frozen=True, omit_defaults=True):
    """True if requests are of use now; names no groups."""

    ready: bool
    draining: bool
    kafka: Annotated[str, Meta(description='"ok", or what is wrong with it.')]
    fenced_groups: Annotated[int, Meta(description="Groups taken over by another service.")]
    reload_refused: Annotated[bool, Meta(description="The last SIGHUP; the log has the reason.")]
    watch: Annotated[str, Meta(description="Why the watch of groups fails; else absent.")] = ""


# From the core's values and errors


def body_or_none(error: OffsetManagerError | None) -> ErrorBody | None:
    return None if error is None else error_body(error)


def flush_answer(
    results: Mapping[ManagerKey, StopResult], topic_ids: dict[str, str] | None = None
) -> FlushAnswer:
    """Return the answer to a flush or stop of many managers."""
    committed, uncommitted = [], []
    for key, result in results.items():
        if result.uncommitted is not None:
            left = result.uncommitted
            error = body_or_none(result.error)
            uncommitted.append(UncommittedEntry(*key, left.offset, left.metadata, error))
        elif result.committed is not None:
            committed.append(CommittedEntry(*key, *result.committed))
    return FlushAnswer(committed, uncommitted, topic_ids or {})


def read_cursor(text: str) -> ManagerKey:
    """Return the last key of the page before, from its text.  Raises InvalidValueError."""
    if (match := re.fullmatch(CURSOR, text)) is None:
        hint = "give `next` of the previous page unchanged"
        raise InvalidValueError("query.after", text, "is not a cursor of this service", hint)
    group, topic, partition = match.groups()
    return ManagerKey(group, topic, int(partition))
