"""Finds committed offsets that lie outside their partition's log.

With each verification of a group the ends of its logs are read too.  A committed offset below the
log's start or above its high watermark is reported once; so is a topic that was deleted and made
anew, known by its id.  No commit waits for this, or costs more.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED, error_info
from offsetmgr.coordinator.base import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.manager.submits import Version
    from offsetmgr.types import TopicPartition

_RECENT_S: Final = 60.0
_RECENT_PART: Final = 5
"""Ends of logs serve other groups for a minute, or a fifth of the verification interval."""


class LogsRequest(NamedTuple):
    """Read the ends of these topics' logs."""

    topics: tuple[str, ...]


class Found(NamedTuple):
    """A problem with a committed offset."""

    partition: TopicPartition
    version: Version
    failure: Failure


class LogEnds:
    """The committed offsets of one group that are compared with the ends of their logs."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, Version] = {}
        self._reading: dict[TopicPartition, Version] = {}
        self._topic_ids: dict[TopicPartition, str] = {}
        self._reported: dict[TopicPartition, int] = {}
        self._request = LogsRequest(())

    def forget(self, partition: TopicPartition) -> None:
        """Its manager is gone."""
        for held in (self._waiting, self._reading, self._topic_ids, self._reported):
            held.pop(partition, None)

    def check(self, versions: Mapping[TopicPartition, Version]) -> None:
        """Compare these with the ends of their logs as they are from now on."""
        self._waiting.update(versions)

    def to_read(self) -> LogsRequest | None:
        """Return what to read now, if anything; it makes an earlier request void."""
        if not self._waiting:
            return None
        self._reading, self._waiting = {**self._reading, **self._waiting}, {}
        self._request = LogsRequest(tuple(sorted({each.topic for each in self._reading})))
        return self._request

    def met_by(self, logs: Mapping[str, TopicLog]) -> bool:
        """True if all that is being compared lies between the ends in ``logs``."""
        for partition, version in self._reading.items():
            log = logs.get(partition.topic)
            ends = None if log is None else log.partitions.get(partition.partition)
            if ends is None or ends.failure is not None:
                return False
            if not ends.log_start_offset <= version.value.offset <= ends.high_watermark:
                return False
        return True

    def read(self, request: LogsRequest, logs: Mapping[str, TopicLog]) -> list[Found]:
        """Compare what waited for this answer; return the problems."""
        if request is not self._request:
            return []
        reading, self._reading = self._reading, {}
        found: list[Found] = []
        for partition, version in reading.items():
            log = logs.get(partition.topic)
            if log is None:
                continue
            failures = (
                self._recreated(partition, log.topic_id),
                self._outside(partition, version, log),
            )
            found += [Found(partition, version, failure) for failure in failures if failure]
        return found

    def _recreated(self, partition: TopicPartition, topic_id: str) -> Failure | None:
        if not topic_id:
            return None
        known, self._topic_ids[partition] = self._topic_ids.get(partition, topic_id), topic_id
        if known == topic_id:
            return None
        info = error_info(TOPIC_RECREATED)
        return Failure(info, f"the topic was made anew, as {topic_id}, not {known}; {info.hint}")

    def _outside(
        self, partition: TopicPartition, version: Version, log: TopicLog
    ) -> Failure | None:
        ends = log.partitions.get(partition.partition)
        if ends is None or ends.failure is not None:
            return None
        offset, start, end = version.value.offset, ends.log_start_offset, ends.high_watermark
        if start <= offset <= end or self._reported.get(partition) == offset:
            return None
        self._reported[partition] = offset
        why = "was the topic recreated or cut, or the offset made up?"
        text = f"it lies outside the log, which holds {start} to {end}; {why}"
        return Failure(error_info(OFFSET_OUTSIDE_LOG), text)


class RecentLogEnds:
    """Ends of logs that some group of the process has read lately, shared by all its groups.

    Reading those of a topic of 1,000 partitions takes a tenth of a second of processor time, and a
    thousand groups may share the topic.  Only an offset between recent ends is spared a read of
    its own.  Thread-safe.
    """

    def __init__(self, settings: CommitSettings) -> None:
        self._lock = Lock()
        self._max_age_s = min(_RECENT_S, settings.verify_interval_s / _RECENT_PART)
        self._logs: dict[str, tuple[float, TopicLog]] = {}

    def put(self, logs: Mapping[str, TopicLog], now: float) -> None:
        """Enter logs that were read just now."""
        with self._lock:
            recent = {
                topic: held
                for topic, held in self._logs.items()
                if now - held[0] < self._max_age_s and topic not in logs
            }
            read = {topic: (now, log) for topic, log in logs.items() if log.failure is None}
            self._logs = {**recent, **read}

    def get(self, topics: Iterable[str], now: float) -> dict[str, TopicLog]:
        """Return what was read lately of ``topics``."""
        logs = self._logs
        found = {topic: logs[topic] for topic in topics if topic in logs}
        return {topic: log for topic, (at, log) in found.items() if now - at < self._max_age_s}
