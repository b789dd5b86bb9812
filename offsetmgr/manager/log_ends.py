"""Finds committed offsets that lie outside their partition's log.

With each verification of a group the ends of its logs are read too.  A committed offset below the
log's start or above its high watermark is reported once; so is a topic that was deleted and made
anew, known by its id.  No commit waits for this, or costs more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED, error_info
from offsetmgr.coordinator.base import Failure

if TYPE_CHECKING:
    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.types import TopicPartition


class LogChecks:
    """Topic ids and reported out-of-range offsets of one group."""

    def __init__(self) -> None:
        self._topic_ids: dict[TopicPartition, str] = {}
        self._reported: dict[TopicPartition, int] = {}

    def forget(self, partition: TopicPartition) -> None:
        """Its manager is gone."""
        self._topic_ids.pop(partition, None)
        self._reported.pop(partition, None)

    def recreated(self, partition: TopicPartition, log: TopicLog) -> Failure | None:
        """Return what to report where the topic is not the one that was seen before."""
        if not log.topic_id:
            return None
        known = self._topic_ids.get(partition, log.topic_id)
        self._topic_ids[partition] = log.topic_id
        if known == log.topic_id:
            return None
        info = error_info(TOPIC_RECREATED)
        why = f"the topic was made anew, as {log.topic_id}, not {known}; {info.hint}"
        return Failure(info, why)

    def outside(self, partition: TopicPartition, offset: int, log: TopicLog) -> Failure | None:
        """Return what to report where ``offset`` lies outside its log; once for each offset."""
        ends = log.partitions.get(partition.partition)
        if ends is None or ends.failure is not None:
            return None
        start, end = ends.log_start_offset, ends.high_watermark
        if start <= offset <= end or self._reported.get(partition) == offset:
            return None
        self._reported[partition] = offset
        why = "was the topic recreated or cut, or the offset made up?"
        text = f"it lies outside the log, which holds {start} to {end}; {why}"
        return Failure(error_info(OFFSET_OUTSIDE_LOG), text)
