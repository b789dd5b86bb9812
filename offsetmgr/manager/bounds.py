"""Whether offsets lie in their partition's log: between its start and its high watermark.

As ``on_out_of_range`` says:

- ``warn``: all is committed as it is submitted; with each round of looks at what stands, the ends
  of the logs are read too, and what lies outside is told.  No commit waits for it, or costs more.
- ``refuse``: what lies outside is not committed; it stays dirty and visible, as any refusal.
- ``clamp``: the nearest end of the log is committed in its place, and that is told.

Whichever it is: each such look also finds a topic that was deleted and made anew, and tells.

For the last two the ends are read before a commit, but only where the offset is not between the
ends that are known already; meanwhile that partition waits and the others go on.  Where the ends
cannot be read, the offset is committed: the look must not be why nothing is committed.  Only where
``clamp`` knows of a start that it lies below it is moved there, lest what was moved before falls;
not with a rewind, whose topic may have been made anew.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, TOPIC_RECREATED, error_info
from offsetmgr.coordinator.base import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.config import CommitSettings
    from offsetmgr.coordinator.base import PartitionLog, TopicLog
    from offsetmgr.manager.slot import Version
    from offsetmgr.types import TopicPartition

_OUT_OF_RANGE: Final = 1

_GRACE_S: Final = 2.0
"""An answer that is this long past its deadline does not come any more."""


class Outside(NamedTuple):
    """A version that lies outside its log."""

    version: Version
    start: int
    end: int

    @property
    def nearest(self) -> Version:
        """The same, moved to the nearest end; its leader epoch, of another place, is left out."""
        value = self.version.value
        offset = min(max(value.offset, self.start), self.end)
        moved = value._replace(offset=offset, leader_epoch=None)
        return self.version._replace(value=moved)

    def failure(self, policy: str) -> Failure:
        """What to tell of it."""
        lies = f"it lies outside the log, which holds {self.start} to {self.end}"
        if policy == "refuse":
            return Failure(error_info(_OUT_OF_RANGE), f"{lies}; submit an offset within")
        done = f"{self.nearest.value.offset} is committed instead" if policy == "clamp" else ""
        why = "was the topic recreated or cut, or the offset made up?"
        return Failure(error_info(OFFSET_OUTSIDE_LOG), f"{lies}; {done or why}")


class LogsRequest(NamedTuple):
    """Read the ends of these topics' logs."""

    topics: tuple[str, ...]


class Found(NamedTuple):
    """What was found of one version that waited for the ends of its log."""

    partition: TopicPartition
    version: Version
    outside: Outside | None
    recreated: Failure | None
    """Set where the topic is another one than at the last look."""


class Bounds:
    """The ends of one group's logs, as far as they are known."""

    def __init__(self, settings: CommitSettings) -> None:
        self.policy = settings.on_out_of_range
        self._patience_s = settings.request_timeout_s + _GRACE_S
        self._ends: dict[TopicPartition, PartitionLog] = {}
        # What waits for a look at its log, and what a look is under way for.
        self._waiting: dict[TopicPartition, Version] = {}
        self._reading: dict[TopicPartition, Version] = {}
        # What may be committed as it was found, at its next turn.
        self._cleared: dict[TopicPartition, Version] = {}
        # Which topic of that name it was.
        self._ids: dict[TopicPartition, str] = {}
        # What was told of already.
        self._told: dict[TopicPartition, int] = {}
        self._request = LogsRequest(())
        self._read_at = -inf

    @property
    def before_commits(self) -> bool:
        """Whether the ends are to be known before a commit."""
        return self.policy != "warn"

    def forget(self, partition: TopicPartition) -> None:
        """Its manager is gone."""
        books = (self._ends, self._waiting, self._reading, self._cleared, self._ids, self._told)
        for held in books:
            held.pop(partition, None)

    def withdraw(self, partition: TopicPartition) -> None:
        """What was to be committed before somebody else did is looked at anew."""
        for held in (self._waiting, self._reading, self._cleared):
            held.pop(partition, None)

    def admit(self, partition: TopicPartition, version: Version, settled: int) -> Version | None:
        """What to commit where ``version`` is due; None until the ends of its log are known.

        It may be an older one, but none as old as what is ``settled``: who submits more quickly
        than logs can be looked at has always something newer.
        """
        cleared = self._cleared.pop(partition, None)
        if cleared is not None and cleared.number > settled:
            return cleared
        ends = self._ends.get(partition)
        if ends is not None and _outside(version, ends) is None:
            # What was submitted before it must not be cleared, and go out, behind it.
            self.withdraw(partition)
            return version
        if partition not in self._reading:
            self._waiting[partition] = version
        return None

    def hold(self, partition: TopicPartition) -> bool:
        """Whether what is to be committed there waits for the ends of its log."""
        waits = partition in self._waiting or partition in self._reading
        return waits and self.before_commits

    def clear(self, partition: TopicPartition, version: Version) -> None:
        """Let ``version`` be committed as it is."""
        self._cleared[partition] = version

    def look_at(self, versions: Mapping[TopicPartition, Version]) -> None:
        """Compare these with the ends of their logs as they are from now on."""
        self._waiting.update(versions)

    def is_news(self, found: Found) -> bool:
        """Whether that it lies outside was not told yet."""
        offset = found.version.value.offset
        known, self._told[found.partition] = self._told.get(found.partition), offset
        return known != offset

    def to_read(self, now: float) -> LogsRequest | None:
        """What to read now, if anything; one request is under way at a time."""
        # What was never answered is asked for again, though nothing new waits.
        due = now >= self.wake_at() if self._reading else bool(self._waiting)
        if not due:
            return None
        self._reading, self._waiting = {**self._reading, **self._waiting}, {}
        self._read_at = now
        topics = tuple(sorted({partition.topic for partition in self._reading}))
        self._request = LogsRequest(topics)
        return self._request

    def met_by(self, logs: Mapping[str, TopicLog]) -> bool:
        """Whether all that is being looked at lies between the ends in ``logs``."""
        for partition, version in self._reading.items():
            log = logs.get(partition.topic)
            ends = None if log is None else log.partitions.get(partition.partition)
            if ends is None or ends.failure is not None or _outside(version, ends) is not None:
                return False
        return True

    def wake_at(self) -> float:
        """When an answer is overdue; ``inf`` where none is waited for."""
        return self._read_at + self._patience_s if self._reading else inf

    def read(
        self,
        request: LogsRequest,
        logs: Mapping[str, TopicLog],
        rewinds: Callable[[TopicPartition], bool],
    ) -> list[Found]:
        """Compare what waited for this answer; a later request makes an earlier one void.

        ``rewinds`` says where what is to be committed goes back on purpose.
        """
        # Not one that merely is the same: the committer before this one may have asked for it.
        if request is not self._request:
            return []
        reading, self._reading = self._reading, {}
        found: list[Found] = []
        for partition, version in reading.items():
            log = logs.get(partition.topic)
            ends = None if log is None else log.partitions.get(partition.partition)
            recreated = None if log is None else self._recreated(partition, log.topic_id)
            if recreated is not None:
                self._ends.pop(partition, None)  # they were another log's
            outside, known = None, self._ends.get(partition)
            if ends is not None and ends.failure is None:
                self._ends[partition] = ends
                outside = _outside(version, ends)
            elif known and _below(version, known) and not rewinds(partition):
                # Of a log that cannot be read the start still holds: it only rises.
                outside = _outside(version, known) if self.policy == "clamp" else None
            found.append(Found(partition, version, outside, recreated))
        return found

    def _recreated(self, partition: TopicPartition, topic_id: str) -> Failure | None:
        if not topic_id:
            return None
        known, self._ids[partition] = self._ids.get(partition, topic_id), topic_id
        if known == topic_id:
            return None
        info = error_info(TOPIC_RECREATED)
        return Failure(info, f"the topic was made anew, as {topic_id}, not {known}; {info.hint}")


def _below(version: Version, ends: PartitionLog) -> bool:
    return version.value.offset < ends.log_start_offset


def _outside(version: Version, ends: PartitionLog) -> Outside | None:
    start, end = ends.log_start_offset, ends.high_watermark
    return None if start <= version.value.offset <= end else Outside(version, start, end)
