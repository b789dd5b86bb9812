"""The position of a streaming query's checkpoint, and the effect of a restart from it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition


class PartitionStatus(NamedTuple):
    """A partition of the query."""

    partition: TopicPartition
    finished: int
    """The offset at which a restart begins: the end of the last finished batch."""
    begun: int
    """The end of the newest batch; ``finished`` where that one is finished."""
    committed: int | None
    """The group's; None where it has none, or no group was named."""
    log: PartitionRange | None
    """None where the partition does not exist any more, or could not be read."""
    error: OffsetManagerError | None = None
    """Why the log could not be read."""
    is_compared: bool = False
    """True where a group was named."""

    @property
    def repeated(self) -> int:
        """Records that a restart hands to the sink again, if the sink had them already."""
        return max(self.begun - self.finished, 0)

    @property
    def lost(self) -> int:
        """Records behind the checkpoint that the log has no more."""
        return 0 if self.log is None else max(self.log.log_start_offset - self.finished, 0)

    @property
    def lag(self) -> int | None:
        """Records of the log that are not read yet."""
        return None if self.log is None else max(self.log.high_watermark - self.finished, 0)

    @property
    def note(self) -> str:
        """Return what an operator should know of the partition; empty where all is well."""
        notes = []
        if self.error is not None:
            notes.append(str(self.error))
        elif self.log is None:
            notes.append("does not exist: the query fails")
        elif self.finished > min(self.log.high_watermark, self.begun):
            notes.append("beyond the end of the log: the topic was recreated, or its log cut")
        if self.lost:
            notes.append(f"{self.lost} offsets expired unread: lost")
        if self.repeated:
            notes.append(f"{self.repeated} offsets are read again")
        if self.is_compared and self.committed is None:
            notes.append("group has nothing committed")
        elif self.committed is not None and self.committed != self.finished:
            ahead = self.committed - self.finished
            notes.append(f"group is {abs(ahead)} {'ahead' if ahead > 0 else 'behind'}")
        return "; ".join(notes)


def positions(checkpoint: Checkpoint) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ends of the last finished and of the newest batch.  Raises InvalidValueError."""
    finished, begun = checkpoint.last_finished(), checkpoint.last_begun()
    if begun is None:
        return {}
    ends = {} if finished is None else dict(finished.offsets)
    if finished is not None and finished.batch_id == begun.batch_id:
        return {where: (end, end) for where, end in ends.items()}
    ranges = checkpoint.ranges(begun.batch_id)
    return {where: (ends.get(where, each.start), each.end) for where, each in ranges.items()}


def status(
    ends: Mapping[TopicPartition, tuple[int, int]],
    committed: Mapping[TopicPartition, OffsetAndMetadata] | None,
    logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError],
) -> list[PartitionStatus]:
    """Compare the ``positions`` of a checkpoint with the logs it reads, and its group if given."""
    rows = []
    for where, (end, newest) in sorted(ends.items()):
        group = (committed or {}).get(where)
        offset = None if group is None else group.offset
        log = logs.get(where)
        error, log = (log, None) if isinstance(log, OffsetManagerError) else (None, log)
        is_compared = committed is not None
        rows.append(PartitionStatus(where, end, newest, offset, log, error, is_compared))
    return rows
