"""What a broker knows, in memory: groups, their members, and the topics' logs.

Synchronous and without faults: ``memory.py`` decides when a request reaches it and what becomes
of the answer.  Tests play "somebody else" here: a member that joins, a tool that commits.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from offsetmgr.coordinator.base import Failure, PartitionLog, TopicLog
from offsetmgr.coordinator.explain import Member, live_members
from offsetmgr.errors import error_info
from offsetmgr.types import MAX_METADATA_CHARS, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.errors import ErrorInfo

_UNKNOWN_TOPIC = error_info(3)
_METADATA_TOO_LARGE = error_info(12)
_UNKNOWN_MEMBER_ID = error_info(25)


class BrokerState:
    """Committed offsets, members and topics.  Every method may be called from any thread.

    A topic nobody created or deleted takes commits for any partition, so that a test of commits
    needs no set-up; a created one takes those of its own partitions, a deleted one none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._members: dict[str, list[Member]] = {}
        self._logs: dict[str, dict[int, PartitionLog]] = {}
        self._times_ms: dict[TopicPartition, dict[int, int]] = {}
        self._deleted: set[str] = set()
        self._ids: dict[str, int] = {}
        """How often each topic was created."""

    def join(self, group: str, client_id: str, host: str = "/127.0.0.1") -> None:
        """Make ``client_id`` a live member: commits of others are refused until it leaves."""
        with self._lock:
            self._members.setdefault(group, []).append(Member(client_id, host))

    def leave(self, group: str, client_id: str) -> None:
        """Let the member ``client_id`` leave its group."""
        with self._lock:
            left = [m for m in self._members.get(group, ()) if m.client_id != client_id]
            self._members[group] = left

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create ``topic`` with empty logs."""
        with self._lock:
            self._deleted.discard(topic)
            self._ids[topic] = self._ids.get(topic, 0) + 1
            self._logs[topic] = {
                number: PartitionLog(0, 0, last_stable_offset=0) for number in range(partitions)
            }

    def set_log(
        self,
        partition: TopicPartition,
        log_start_offset: int,
        high_watermark: int,
        times_ms: Mapping[int, int] | None = None,
        last_stable_offset: int | None = None,
    ) -> None:
        """Give a partition of a created topic the ends of its log.

        ``times_ms`` is the time of records: offset to milliseconds since 1970.  Without a
        ``last_stable_offset`` no transaction is open.  Raises KeyError where the topic was not
        created.
        """
        with self._lock:
            stable = high_watermark if last_stable_offset is None else last_stable_offset
            ends = PartitionLog(log_start_offset, high_watermark, last_stable_offset=stable)
            self._logs[partition.topic][partition.partition] = ends
            self._times_ms[partition] = dict(times_ms or {})

    def delete_topic(self, topic: str) -> None:
        """Delete ``topic``, and with it what groups committed for it, as Kafka does."""
        with self._lock:
            self._deleted.add(topic)
            self._logs.pop(topic, None)
            for offsets in self._committed.values():
                for partition in [p for p in offsets if p.topic == topic]:
                    del offsets[partition]

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All that ``group`` has committed."""
        with self._lock:
            return dict(self._committed.get(group, {}))

    def commit_externally(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit as somebody else would: a member of the group, or a tool."""
        with self._lock:
            self._committed.setdefault(group, {}).update(offsets)

    def forget(self, group: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """Lose what ``group`` has committed (for ``partitions``, or all), as when it expires."""
        with self._lock:
            offsets = self._committed.get(group, {})
            for partition in list(offsets) if partitions is None else partitions:
                offsets.pop(partition, None)

    def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Answer a fetch: what is committed for ``partitions``, or for all of the group's."""
        with self._lock:
            offsets = self._committed.get(group, {})
            if partitions is None:
                return dict(offsets)
            return {partition: offsets.get(partition) for partition in partitions}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Failure]:
        """Answer a commit by somebody who is no member: which partitions were refused, and why."""
        with self._lock:
            members = self._members.get(group)
            if members:
                held = Failure(_UNKNOWN_MEMBER_ID, live_members(group, members))
                return dict.fromkeys(offsets, held)
            failures = {}
            for partition, value in offsets.items():
                refusal = self._refusal(partition, value)
                if refusal is None:
                    self._committed.setdefault(group, {})[partition] = value
                else:
                    failures[partition] = Failure(refusal)
            return failures

    def topic_logs(
        self, topics: Collection[str], at_ms: int | None = None, *, stable: bool = False
    ) -> dict[str, TopicLog]:
        """Answer a request for the ends of the logs of ``topics``."""
        with self._lock:
            return {topic: self._topic_log(topic, at_ms, stable=stable) for topic in topics}

    def topic_names(self) -> list[str]:
        """Answer a request for the topics of the cluster."""
        with self._lock:
            return sorted(self._logs)

    def _topic_log(self, topic: str, at_ms: int | None, *, stable: bool) -> TopicLog:
        if topic not in self._logs:
            return TopicLog({}, Failure(_UNKNOWN_TOPIC))
        logs = dict(self._logs[topic])
        if not stable:
            logs = {number: log._replace(last_stable_offset=None) for number, log in logs.items()}
        if at_ms is not None:
            for number, log in logs.items():
                times_ms = self._times_ms.get(TopicPartition(topic, number), {})
                later = [offset for offset, each_ms in times_ms.items() if each_ms >= at_ms]
                logs[number] = log._replace(offset_at=min(later, default=None))
        return TopicLog(logs, topic_id=str(self._ids[topic]))

    def _refusal(self, partition: TopicPartition, value: OffsetAndMetadata) -> ErrorInfo | None:
        log = self._logs.get(partition.topic)
        gone = partition.topic in self._deleted if log is None else partition.partition not in log
        if gone:
            return _UNKNOWN_TOPIC
        units = len(value.metadata.encode("utf-16-le")) // 2
        return _METADATA_TOO_LARGE if units > MAX_METADATA_CHARS else None
