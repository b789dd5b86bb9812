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

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors import Future
    from offsetmgr.errors import ErrorInfo
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class Failure(NamedTuple):
    """The reason why a partition was not committed or fetched."""

    info: ErrorInfo
    detail: str = ""
    """Facts of this case, such as the live members of the group; may be empty."""


class FetchResult(NamedTuple):
    """Answer to a fetch of committed offsets; each partition asked for is in one of the two."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata | None]
    """None where nothing is committed."""
    failures: Mapping[TopicPartition, Failure]
    group_failure: Failure | None = None
    """Set if all partitions were asked for (``partitions=None``) and the request failed."""


class CommitResult(NamedTuple):
    """Answer to a commit: what was sent and is not in ``failures`` is committed."""

    failures: Mapping[TopicPartition, Failure]


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


NO_FENCE: Final = FenceCounts(0, 0)
"""The counts of a coordinator without a fence."""


class TopicNames(NamedTuple):
    """The topics that the service may see, without Kafka's own."""

    names: Sequence[str]
    failure: Failure | None = None


class Coordinator(Protocol):
    """Kafka, as the managers and the service use it."""

    @property
    def reader(self) -> Coordinator:
        """The same Kafka, for reading only: with a fence, ``fetch`` itself takes the group over."""

    @property
    def fence(self) -> FenceCounts:
        """Return the counts of the fence; for any thread."""

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

    def release(self, group: str) -> None:
        """Give up what was taken for ``group``, which has no manager any more."""

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
