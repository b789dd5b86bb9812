"""The interface between a member of a group and what its consumer does with messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.types import OffsetAndMetadata, TopicPartition


class Start(NamedTuple):
    """The place where reading of a claimed partition begins."""

    committed: OffsetAndMetadata | None
    offset: int | None = None
    """Set where nothing is committed, and this is to be committed at once."""
    resumed: bool = False
    """True if reading goes on at this member's own position in a former claim."""


class Work(Protocol):
    """The part of a consumer that handles its messages; called by the thread that polls."""

    member: Any
    """The Member that calls; set before any call."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        """Partitions of which nothing is to be received from the next poll on."""

    def receive(self, topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
        """Take in messages of a claimed partition, in their order."""

    def reach_end(self, topic_partition: TopicPartition, end: int) -> None:
        """Take in that a partition has no further message before the offset ``end``."""

    def claim(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Take partitions."""

    def restart(self, topic_partition: TopicPartition, offset: int) -> None:
        """Begin again with a claimed partition, which has a new log: read it from ``offset`` on."""

    def begin_release(self, partitions: Collection[TopicPartition], timeout_s: float) -> None:
        """Hand out no more of partitions; wait so many seconds for what is in work of them.

        Not called where the consumer is being closed.
        """

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions: another member may have them already."""

    def to_commit(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit that are not committed yet; called by any thread."""

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Take in that these offsets are committed; called by any thread."""
