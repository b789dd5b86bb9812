"""A batch job that reads what is new for its group, and commits it when its work is done.

Spark tells nobody how far a batch has read, so the range is pinned before it begins: Spark is
given both ends, and the end is what is committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetConflictError,
    listed,
)
from offsetmgr.spark.checkpoint import OffsetRange
from offsetmgr.spark.starting import (
    check_client,
    check_missing,
    check_topics,
    milliseconds,
    seconds_left,
    start_positions,
)
from offsetmgr.types import TopicPartition, check_group, check_offset

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.starting import Missing
    from offsetmgr.types import OffsetAndMetadata, PartitionRange

Until: TypeAlias = "datetime | Mapping[tuple[str, int], int]"
"""The end of a batch: the first record at or after a time, or offsets (exclusive)."""

TIMEOUT_S: Final = 30.0


def kafka_batch(
    client: Offsets,
    group: str,
    topics: Collection[str],
    *,
    until: Until | None = None,
    max_records: int | None = None,
    missing: Missing = "earliest",
    read_committed: bool = False,
    timeout: float = TIMEOUT_S,
) -> KafkaBatch:
    """Pin what is new in ``topics`` for ``group``: a context manager around the work on it.

    ::

        with kafka_batch(client, group="orders-daily", topics=["orders"]) as batch:
            df = spark.read.format("kafka").options(**batch.options)
            df.option("kafka.bootstrap.servers", "...").load().write.save(out)

    At entry it takes the group for itself and pins the range of each partition: from where the
    group stands, up to the end of the log or to ``until``, all of them together at most
    ``max_records``.  When the block ends without an exception the end of the range is committed;
    otherwise nothing is, and the next batch reads the same again.  ``missing`` says where a
    partition starts for which nothing is committed.  With ``read_committed`` the records of open
    and of aborted transactions are not read: the log ends where the first open one begins.
    ``timeout`` seconds are granted to the entry and to the commit, each.

    Raises InvalidValueError naming a wrong argument, here or (of a topic's offsets) at entry.
    """
    _check(until, max_records, read_committed)
    check_missing(missing)
    return KafkaBatch(
        check_client(client),
        check_group(group),
        check_topics(topics),
        dict(until) if isinstance(until, Mapping) else until,
        max_records,
        missing,
        read_committed,
        timeout,
    )


@dataclass(eq=False, repr=False)
class KafkaBatch:
    """A pinned range of a group's topics; see ``kafka_batch``, which makes it."""

    _client: Offsets
    _group: str
    _topics: list[str]
    _until: Until | None
    _max_records: int | None
    _missing: Missing
    _read_committed: bool
    _timeout: float

    def __post_init__(self) -> None:
        self._cleanup = ExitStack()
        self._ranges: Mapping[TopicPartition, OffsetRange] | None = None
        self._committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets read of each partition.  Raises ManagerStoppedError before the block."""
        if self._ranges is None:
            raise ManagerStoppedError("the batch is not begun: use it in a with statement")
        return self._ranges

    @property
    def options(self) -> dict[str, str]:
        """Options of Spark's Kafka source: these partitions, from their start to their end."""
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, number), each in self.ranges.items():
            assigned.setdefault(topic, []).append(number)
            starts.setdefault(topic, {})[str(number)] = each.start
            ends.setdefault(topic, {})[str(number)] = each.end
        options = {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        if self._read_committed:
            options["kafka.isolation.level"] = "read_committed"
        return options

    @property
    def records(self) -> int:
        """The number of offsets to read; of a compacted topic not all of them have a record."""
        return sum(each.size for each in self.ranges.values())

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read; Spark may be asked all the same."""
        return self.records == 0

    def __enter__(self) -> Self:
        """Take the group and pin the range.

        Raises:
            ManagerExistsError: another batch, query or client is at work for the group.
            InvalidValueError: ``until`` names an offset that its partition does not have, or
                ``missing`` is ``error`` and something is.
            OffsetTimeoutError, ServiceError, ServiceUnavailableError: what is to be pinned could
                not be learned in time; nothing was changed.

        """
        deadline = time.monotonic() + self._timeout
        with ExitStack() as cleanup:
            logs = self._client.topics(self._topics, timeout=seconds_left(deadline))
            partitions = [TopicPartition(topic, n) for topic, log in logs.items() for n in log]
            # Only what is its own is pinned: nobody else commits for it from here on.
            self._client.claim(self._group, partitions, timeout=seconds_left(deadline))
            cleanup.callback(self._release, partitions)
            self._pin(logs, deadline)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit the end of the range, unless the block failed, and give the group back.

        Raises:
            OffsetConflictError: somebody has changed the group's offsets since the entry, which
                stay as they are.
            OffsetTimeoutError, OffsetCommitError, ClientFencedError: as a submit with ``sync``.
                The work is done then and not committed: the next batch reads it again.

        """
        with self._cleanup:
            if exc_type is None:
                self._commit(time.monotonic() + self._timeout)

    def _pin(self, logs: Mapping[str, Mapping[int, PartitionRange]], deadline: float) -> None:
        left_s = seconds_left(deadline)
        starts = start_positions(self._client, self._group, logs, self._missing, left_s)
        latest = self._latest(logs, deadline)
        ends = self._ends(latest, deadline)
        ranges: dict[TopicPartition, OffsetRange] = {}
        for partition, position in starts.items():
            at_end = position.committed is None and self._missing == "latest"
            start = latest[partition] if at_end else position.offset
            # Where it is to end before it starts, there is nothing to read.
            ranges[partition] = OffsetRange(start, max(start, ends[partition]))
        self._committed = {partition: position.committed for partition, position in starts.items()}
        self._ranges = ranges if self._max_records is None else bounded(ranges, self._max_records)

    def _latest(
        self, logs: Mapping[str, Mapping[int, PartitionRange]], deadline: float
    ) -> dict[TopicPartition, int]:
        """Return where the logs end for this batch."""
        ends = {
            TopicPartition(topic, number): log.high_watermark
            for topic, partitions in logs.items()
            for number, log in partitions.items()
        }
        if not self._read_committed:
            return ends
        stable = self._client.stable_ends(self._topics, timeout=seconds_left(deadline))
        # Asked for after the ends, it may lie beyond them, and in a partition that is new.
        return {partition: min(end, stable[partition]) for partition, end in ends.items()}

    def _ends(
        self, latest: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, int]:
        ends = dict(latest)
        if isinstance(self._until, datetime):
            at_ms = milliseconds(self._until, "until")
            at = self._client.offsets_at(self._topics, at_ms, timeout=seconds_left(deadline))
            # Asked for after the ends, it may lie beyond them.
            return {each: min(end, at.get(each, end)) for each, end in ends.items()}
        for (topic, number), offset in (self._until or {}).items():
            partition = TopicPartition(topic, number)
            if partition not in ends:
                fix = f"name partitions of {', '.join(self._topics)}"
                raise InvalidValueError("until", str(partition), "is not read by this batch", fix)
            if offset > ends[partition]:
                fix = f"give at most {ends[partition]}, where the partition ends"
                raise InvalidValueError(f"until of {partition}", offset, "is beyond the end", fix)
            ends[partition] = offset
        return ends

    def _commit(self, deadline: float) -> None:
        now = self._client.committed(self._group, timeout=seconds_left(deadline))
        changed = [each for each, was in self._committed.items() if now.get(each) != was]
        if changed:
            text = (
                f"the offsets of group {self._group} were changed while the batch ran, and stay as "
                f"they are: {listed(changed)}; the next batch starts from them"
            )
            raise OffsetConflictError(text)
        ends: dict[tuple[str, int], int | OffsetAndMetadata] = {
            partition: each.end for partition, each in self.ranges.items()
        }
        # The partition may end before what is committed: its topic was made anew.
        left_s = seconds_left(deadline)
        self._client.submit(self._group, ends, rewind=True, sync=True, timeout=left_s)

    def _release(self, partitions: Collection[TopicPartition]) -> None:
        self._client.stop_managers(timeout=self._timeout, group=self._group, partitions=partitions)


def bounded(
    ranges: Mapping[TopicPartition, OffsetRange], most: int
) -> dict[TopicPartition, OffsetRange]:
    """The same ranges, cut so that they hold at most ``most`` offsets together.

    What is left when the smaller ones are served is shared evenly among the larger.
    """
    found = dict(ranges)
    by_size = sorted(ranges, key=lambda partition: ranges[partition].size)
    for index, partition in enumerate(by_size):
        size = min(ranges[partition].size, most // (len(by_size) - index))
        start = ranges[partition].start
        found[partition] = OffsetRange(start, start + size)
        most -= size
    return found


def _check(until: object, max_records: object, read_committed: object) -> None:
    if isinstance(until, datetime):
        milliseconds(until, "until")
    elif isinstance(until, Mapping):
        for partition, offset in until.items():
            if not isinstance(partition, tuple) or len(partition) != len(TopicPartition._fields):
                fix = 'give a topic and a number, such as ("orders", 0)'
                raise InvalidValueError("until", partition, "is not a topic and a number", fix)
            check_offset(offset, f"until of {TopicPartition(*partition)}")
    elif until is not None:
        fix = 'give a datetime with its time zone, or offsets such as {("orders", 0): 1042}'
        raise InvalidValueError("until", until, "is no time and no mapping of offsets", fix)
    if max_records is not None and (type(max_records) is not int or max_records < 1):
        fix = "give a whole number from 1 up, or leave it out for all there is"
        raise InvalidValueError("max_records", max_records, "is no number of records", fix)
    if not isinstance(read_committed, bool):
        fix = "give True where open and aborted transactions are not to be read, else False"
        raise InvalidValueError("read_committed", read_committed, "is no flag", fix)
