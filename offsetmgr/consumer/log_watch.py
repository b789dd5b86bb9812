"""Offsets belong to logs: recreated topics, and offsets that are out of range."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED, error_info
from offsetmgr.errors import KafkaRequestError
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.stores.base import as_store_error
from offsetmgr.types import MAX_OFFSET
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.kafka.cluster import ClusterReader
    from offsetmgr.types import TopicPartition

LOOK_S: Final = 1.0
"""A commit uses topic ids that were looked up so recently, and waits so long for them."""


class LogWatch:
    """The logs that a consumer reads, by the ids of their topics; for one thread at a time.

    Brokers before 2.8 have no ids: there a recreated topic is noticed once an offset is out of
    range.
    """

    def __init__(
        self, reader: ClusterReader, report: Callable[[OffsetManagerError, str], None]
    ) -> None:
        self.missing: frozenset[str] = frozenset()
        """Topics that did not exist at the last look."""
        self.positions: dict[TopicPartition, int] = {}
        """Offsets at which partitions were claimed, or up to which they were committed since."""
        self._reader = reader
        self._report = report
        self._ids: dict[TopicPartition, str] = {}
        self._seen_at_s = -inf
        self._question: Question[Mapping[str, str | OffsetManagerError]] | None = None

    def expire(self) -> None:
        """Let the next look ask again, also where a question is under way."""
        self._seen_at_s = -inf
        self._question = None

    def begin(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Take in that a partition is claimed, and read from ``offset`` on.

        Returns True if that is our own position in a former claim, of which the log has to be the
        same.  Else its log is taken as it is at the next look.
        """
        resumed = self.positions.get(topic_partition) == offset
        if not resumed:
            self._ids.pop(topic_partition, None)
            self.positions[topic_partition] = offset
        return resumed

    def look(
        self, partitions: Collection[TopicPartition], wait_s: float = 0.0
    ) -> list[TopicPartition] | None:
        """Look topics up, unless that was done within 1 s; return partitions with another log.

        None where there is no answer within ``wait_s``.  One that takes long is not waited for.
        """
        if not partitions or time.monotonic() - self._seen_at_s < LOOK_S:
            return []
        if self._question is None:
            topics = {each.topic for each in partitions}
            self._question = Question(lambda: self._reader.topic_ids(topics))
        question = self._question
        if not question.wait(wait_s):
            return None if time.monotonic() - question.asked_at_s < LOOK_S else []
        self._question = None
        try:
            found = question.result()
        except Exception as error:  # noqa: BLE001 -- the reader may be closed
            self._report(as_store_error("topic ids", error), "could not look up topics")
            return []
        self._seen_at_s = question.asked_at_s
        self.missing = frozenset(topic for topic, each in found.items() if does_not_exist(each))
        recreated = []
        for each in partitions:
            topic_id = found.get(each.topic)
            if isinstance(topic_id, str) and topic_id:
                if self._ids.setdefault(each, topic_id) != topic_id:
                    recreated.append(each)
                self._ids[each] = topic_id
        return recreated


def restart_at(
    topic_partition: TopicPartition, offset: int | None, low: int, high: int, *, latest: bool
) -> tuple[int, KafkaRequestError | None]:
    """Return the offset at which to go on in a log from ``low`` up to before ``high``, and why.

    ``offset`` was out of range; MAX_OFFSET if that part of the log was replaced by another one, and
    None if the topic was recreated, which is read from its start.  A logical offset stays.
    """
    start, code = high if latest else low, OFFSET_OUTSIDE_LOG
    if offset is None:
        start, code = low, TOPIC_RECREATED
        text = f"its new log of {high - low} records is read from offset {low} on"
    elif 0 <= offset < low:
        start = low
        text = f"{low - offset} records were deleted before they were read; goes on at {low}"
    elif offset > high:
        cut = "was cut before" if offset == MAX_OFFSET else "ends at"
        text = f"the log {cut} {high}; goes on at {start}, so {high - start} are read again"
        offset = None if offset == MAX_OFFSET else offset
    else:
        return offset, None
    topic, partition = topic_partition
    place: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
    error = KafkaRequestError(f"reading of {topic_partition}", error_info(code), text, **place)
    return start, error
