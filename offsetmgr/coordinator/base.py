"""The port to the group coordinator.

Three sides stand behind it: ``kafka.py`` (a pool of admin clients), ``fence`` around that one, and
``memory.py`` (the same contract with scripted faults).  All answer by futures and never block the
calling thread; a future's value always arrives, by the deadline given, and is never an exception:
what failed is part of the answer, because a commit with one refused partition is not a failed
commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors import Future
    from offsetmgr.errors import ErrorInfo
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class Failure(NamedTuple):
    """Why a partition was not committed or fetched."""

    info: ErrorInfo
    detail: str = ""
    """What only this case knows (who the live members are); empty where the table says it all."""


class FetchResult(NamedTuple):
    """Answer to a fetch of committed offsets; each partition asked for is in one of the two."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata | None]
    """None where nothing is committed."""
    failures: Mapping[TopicPartition, Failure]
    group_failure: Failure | None = None
    """Set where all partitions were asked for (``partitions=None``) and the request failed."""


class CommitResult(NamedTuple):
    """Answer to a commit: what was sent and is not in ``failures`` is committed."""

    failures: Mapping[TopicPartition, Failure]


class PartitionLog(NamedTuple):
    """The ends of one partition's log."""

    log_start_offset: int
    high_watermark: int
    failure: Failure | None = None
    """Set where the ends could not be read; both are then 0."""
    offset_at: int | None = None
    """First offset whose record is as old as was asked for, or younger; None where nothing was
    asked for, or no record is."""
    last_stable_offset: int | None = None
    """Where the first transaction begins that is open still, else the high watermark; None where
    it was not asked for."""


class TopicLog(NamedTuple):
    """A topic's partitions, or why they are not known."""

    partitions: Mapping[int, PartitionLog]
    failure: Failure | None = None
    topic_id: str = ""
    """Another one where a topic of the same name was made anew; empty where it is not known."""


class FenceCounts(NamedTuple):
    """How a service with a fence stands to its groups; both are 0 without one."""

    held: int
    """Groups that it keeps for itself."""
    fenced: int
    """Groups that another service has taken over: it never commits them again."""


NO_FENCE: Final = FenceCounts(0, 0)
"""Of a coordinator without a fence."""


class TopicNames(NamedTuple):
    """The topics of the cluster that the service may see, but Kafka's own; or why not."""

    names: Sequence[str]
    failure: Failure | None = None


class Coordinator(Protocol):
    """What the service asks of Kafka, for the managers of its groups."""

    @property
    def reader(self) -> Coordinator:
        """The same Kafka for who only looks: with a fence, fetching here takes the group over."""

    @property
    def fence(self) -> FenceCounts:
        """How it stands with the groups, where there is a fence; for any thread."""

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, timeout_s: float
    ) -> Future[FetchResult]:
        """Committed offsets of ``partitions`` (all of the group's where None), in one request."""

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Future[CommitResult]:
        """Commit ``offsets`` in one request, as a simple (memberless) committer."""

    def release(self, group: str) -> None:
        """No manager of ``group`` is left: what was taken for it is given up."""

    def topic_logs(
        self,
        topics: Sequence[str],
        timeout_s: float,
        at_ms: int | None = None,
        *,
        stable: bool = False,
    ) -> Future[Mapping[str, TopicLog]]:
        """Partitions of ``topics`` with their log start offset and high watermark.

        With ``at_ms`` (milliseconds since 1970, UTC) also the first offset of that time or later,
        with ``stable`` the last stable offset.
        """

    def topic_names(self, timeout_s: float) -> Future[TopicNames]:
        """The topics of the cluster, sorted."""

    def check(self, timeout_s: float) -> Future[Failure | None]:
        """Whether Kafka answers: None where it does."""

    def close(self, timeout_s: float) -> None:
        """Let requests under way end, then release the connections; returns by ``timeout_s``."""
