"""The causes of deleted offsets: the end of their topic, their age, or a person.

An offset belongs to one log: those of a deleted or recreated topic must not be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.admin.history import Cause, Move
from offsetmgr.errors import OffsetManagerError
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.kafka.log_reader import NextRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.admin.history import CommitStep
    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.types import PartitionRange, TopicPartition


def cause_of(
    deletion: CommitStep,
    log: PartitionRange | OffsetManagerError | None,
    first: NextRecord | OffsetManagerError | None,
) -> Cause | None:
    """Return the cause of a partition's deletion; None if its log cannot be read.

    ``first`` is the first record of a log that begins at 0.  If it is younger than the deletion,
    the topic was recreated; so it was if the log is shorter than the deleted offset.
    """
    if does_not_exist(log):
        return Cause.TOPIC_DELETED
    if log is None or isinstance(log, OffsetManagerError):
        return None
    is_shorter = (deletion.before or 0) > log.high_watermark
    began_s = first.at_s if isinstance(first, NextRecord) and first.offset == 0 else None
    is_younger = began_s is not None and began_s > deletion.at_s
    return Cause.TOPIC_RECREATED if is_shorter or is_younger else Cause.OTHER


def first_records_of(
    logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, list[int]]:
    """Return the offset 0 of each log that begins there and has records, to be read."""
    found: dict[TopicPartition, list[int]] = {}
    for where in partitions:
        log = logs.get(where)
        if log is None or isinstance(log, OffsetManagerError):
            continue
        if log.log_start_offset == 0 < log.high_watermark:
            found[where] = [0]
    return found


def read_causes(reader: ClusterReader, steps: Iterable[CommitStep]) -> dict[CommitStep, Cause]:
    """Return the causes of the deletions among ``steps``, as far as they are known."""
    deletions = [step for step in steps if step.move is Move.DELETED]
    if not deletions:
        return {}
    partitions = {step.partition for step in deletions}
    logs = reader.log_ranges(partitions)
    firsts = reader.next_records(first_records_of(logs, partitions))
    causes = {
        step: cause_of(step, logs[step.partition], firsts.get((step.partition, 0)))
        for step in deletions
    }
    return {step: cause for step, cause in causes.items() if cause is not None}
