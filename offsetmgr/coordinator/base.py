"""The port to the group coordinator.

It has four implementations: ``kafka.py`` (a pool of clients), ``fence.py`` around that one,
``memory.py`` (the same contract with scripted faults), and a database in ``stores``.  All answer
by futures and never block the calling thread.  A future's value always arrives by the given
deadline, and is never an exception: what failed is part of the answer, because a commit with one
refused partition is not a failed commit.

Callers are trusted: what users submit is checked where it enters the managers and the service.
Here names and time-outs are checked, because librdkafka ends the process on some of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from actors import Future
from offsetmgr.errors import ErrorInfo, Fault, Scope, Verdict, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.types import OffsetAndMetadata, TopicPartition

UNKNOWN_MEMBER_ID: Final = 25
"""Kafka's code for a commit to a group that has live members."""

TIMED_OUT: Final = -185
"""librdkafka's code for a request whose deadline passed before an answer came."""

_VARYING: Final = re.compile(r"\S+/(?:bootstrap|\d+)\b|'[^']*'|\(after .*|\d+", re.DOTALL)
"""Names of brokers, times with counts of repetitions, other numbers."""

NOT_SENT: Final = ErrorInfo(
    -166, "NOT_SENT", True, Scope.GROUP, Fault.NETWORK, Verdict.REFUSED,  # noqa: FBT003
    "the request was still waiting for a free connection at its deadline and was never sent; "
    "tried again; check whether Kafka is slow or down",
)  # fmt: skip
"""The deadline passed before the request was handed to the Kafka client: it had no effect."""

CLOSED: Final = ErrorInfo(
    -197, "CLOSED", False, Scope.GROUP, Fault.CALLER, Verdict.REFUSED,  # noqa: FBT003
    "the coordinator's connections were closed before this request was sent",
)  # fmt: skip
"""The coordinator was closed before the request was sent: it had no effect."""

_BATCH_BYTES: Final = 500_000
"""The largest batch that is sent: half of what a broker takes unless configured otherwise."""

_RECORD_BYTES: Final = 80
"""The most that a record takes beside its group, topic and metadata."""


class Failure(NamedTuple):
    """The reason why a partition was not committed or fetched."""

    info: ErrorInfo
    detail: str = ""
    """Facts of this case, such as the live members of the group; may be empty."""


_UNSENT: Final = Failure(NOT_SENT, "not sent, as the request before it in this commit failed")


class FetchResult(NamedTuple):
    """Answer to a fetch of committed offsets; each partition asked for is in one of the two."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata | None]
    """None where nothing is committed."""
    failures: Mapping[TopicPartition, Failure]
    group_failure: Failure | None = None
    """Set if all partitions were asked for (``partitions=None``) and the request failed."""

    @classmethod
    def failed(cls, asked: Iterable[TopicPartition] | None, failure: Failure) -> FetchResult:
        """Return the answer if nothing of what was asked for could be read."""
        return cls({}, dict.fromkeys(asked or (), failure), failure if asked is None else None)


class CommitResult(NamedTuple):
    """Answer to a commit: what was sent and is not in ``failures`` is committed."""

    failures: Mapping[TopicPartition, Failure]

    @classmethod
    def failed(cls, sent: Iterable[TopicPartition], failure: Failure) -> CommitResult:
        """Return the answer if nothing was committed."""
        return cls(dict.fromkeys(sent, failure))


class PartitionLog(NamedTuple):
    """The ends of one partition's log."""

    log_start_offset: int
    high_watermark: int
    failure: Failure | None = None
    """Set if the ends could not be read; both are then 0."""
    offset_at: int | None = None
    """First offset whose record is of the time that was asked for, or later; None if no time was
    asked for, or no record is that young."""
    last_stable_offset: int | None = None
    """The start of the first open transaction, or the high watermark; None if not asked for."""


class TopicLog(NamedTuple):
    """A topic's partitions, or the reason why they are not known."""

    partitions: Mapping[int, PartitionLog]
    failure: Failure | None = None
    topic_id: str = ""
    """Changes when a topic is deleted and made anew; empty if it is not known."""


class FenceCounts(NamedTuple):
    """Groups of a service with a fence; both are 0 without one."""

    held: int
    """Groups that no other service can commit."""
    fenced: int
    """Groups that another service has taken over: this one never commits them again."""


class TopicNames(NamedTuple):
    """The topics that the service may see, without Kafka's own."""

    names: Sequence[str]
    failure: Failure | None = None


class Coordinator(Protocol):
    """Kafka, as the managers and the service use it; with the defaults of one without a fence."""

    @property
    def reader(self) -> Coordinator:
        """The same Kafka, for reading only: with a fence, ``fetch`` itself takes the group over."""
        return self

    @property
    def fence(self) -> FenceCounts:
        """Return the counts of the fence; for any thread."""
        return FenceCounts(0, 0)

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Read the committed offsets of ``partitions``, or all of the group's if None."""

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets``: in one request, or one after the other if the broker takes less.

        The caller leaves ``offsets`` as it is until it is answered.
        """

    def release(self, group: str) -> None:  # noqa: ARG002
        """Give up what was taken for ``group``, which has no manager any more."""
        return

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """Read the log start offset and high watermark of all partitions of ``topics``.

        With ``at_ms`` (milliseconds since 1970, UTC) also the first offset of that time or later,
        with ``stable`` the last stable offset.
        """

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """Read the names of all topics, sorted."""

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """Return None if Kafka answers, else why it does not."""

    def close(self, timeout: float) -> None:
        """Let requests under way end, then release the connections; within ``timeout`` seconds."""


class LiveMember(NamedTuple):
    """A live member of a consumer group, as the broker describes it."""

    client_id: str
    host: str
    member_id: str = ""
    instance_id: str = ""
    """Its ``group.instance.id``; empty without one."""


def live_members(group: str, members: Sequence[LiveMember]) -> str:
    """Return the members in one line, for the ``detail`` of an UNKNOWN_MEMBER_ID."""
    who = listed([f"{one_line(each.client_id)}, host {one_line(each.host)}" for each in members])
    return f"group {one_line(group)} has live members ({who}); commit to another group or stop them"


def cause_of(text: str) -> str:
    """Return librdkafka's ``text`` without what differs from one broker, or time, to the next."""
    return _VARYING.sub("", text)


def one_line(text: str, most_chars: int = 100) -> str:
    """Return ``text`` with control and unprintable characters escaped, and cut when long."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in text[:most_chars]
    )
    return shown if len(text) <= most_chars else f"{shown}…"


def commit_in_batches(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    send: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Future[CommitResult]],
) -> Future[CommitResult]:
    """Commit ``offsets`` with as many calls of ``send`` as it takes, one at a time.

    The broker writes the offsets of one request as one record batch of ``__consumer_offsets``, and
    refuses them all if it is larger than that topic's ``max.message.bytes`` (1 MiB by default).
    ``send`` keeps the deadline.  Nothing is sent behind a failure of the whole group.
    """
    batches = _batches(group, offsets)
    failures: dict[TopicPartition, Failure] = {}
    committed: Future[CommitResult] = Future()

    def send_next() -> None:
        if batches:
            send(batches.pop(0)).add_done_callback(answered)
        else:
            committed.set(CommitResult(failures))

    def answered(done: Future[CommitResult]) -> None:
        found = done.get().failures
        failures.update(found)
        stop = next((f for f in found.values() if f.info.scope is Scope.GROUP), None)
        if stop is not None:
            rest = stop if stop.info.verdict is Verdict.REFUSED else _UNSENT
            failures.update({partition: rest for batch in batches for partition in batch})
            batches.clear()
        send_next()

    send_next()
    return committed


def _batches(
    group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[dict[TopicPartition, OffsetAndMetadata]]:
    batches: list[dict[TopicPartition, OffsetAndMetadata]] = []
    fixed, left = _RECORD_BYTES + len(group.encode()), 0
    for partition, value in offsets.items():
        size = fixed + len(partition.topic) + len(value.metadata.encode())
        if size > left:
            batches.append({})
            left = _BATCH_BYTES
        batches[-1][partition] = value
        left -= size
    return batches
