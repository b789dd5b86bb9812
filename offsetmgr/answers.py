"""Kafka's answers about offsets, logs and messages, as values; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.codes import ErrorInfo
    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class Failure(NamedTuple):
    """The reason why a partition was not committed or fetched."""

    info: ErrorInfo
    detail: str = ""
    """Facts of this case, such as the live members of the group; may be empty."""

    @property
    def reason(self) -> str:
        """The facts of this case, or what is known of the code."""
        return self.detail or self.info.hint


class FetchResult(NamedTuple):
    """Answer to a fetch of committed offsets; each partition asked for is in one of the two."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata | None]
    """None where nothing is committed."""
    failures: Mapping[TopicPartition, Failure]
    group_failure: Failure | None = None
    """Set if all partitions were asked for (``partitions=None``) and the request failed."""

    @classmethod
    def failed(cls, asked: Iterable[TopicPartition] | None, failure: Failure) -> FetchResult:
        """Return the answer if nothing could be read."""
        return cls({}, dict.fromkeys(asked or (), failure), failure if asked is None else None)


class CommitResult(NamedTuple):
    """Answer to a commit: a sent partition that is not in ``failures`` is committed."""

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
    """Changes when a topic is deleted and recreated; empty if it is not known."""


class Written(NamedTuple):
    """The place where a message was written."""

    partition: int
    offset: int


class FenceCounts(NamedTuple):
    """Groups of a service with a fence; both are 0 without one."""

    held: int
    """Groups that no other service can commit."""
    fenced: int
    """Groups that another service has taken over: this one never commits them again."""


class GroupMember(NamedTuple):
    """A live member of a group."""

    member_id: str
    client_id: str
    host: str
    """With a slash before the address, as Kafka's tools show it."""
    group_instance_id: str = ""
    """Empty without one."""
    partitions: tuple[TopicPartition, ...] = ()
    """Its assigned partitions, sorted; none if they were not asked for."""


class TopicNames(NamedTuple):
    """The topics that the service may see, without Kafka's own."""

    names: Sequence[str]
    failure: Failure | None = None
