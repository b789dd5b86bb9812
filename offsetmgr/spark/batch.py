"""A batch job that reads what is new for its group, and commits it when its work is done.

Spark tells nobody how far a batch has read, so the range is pinned before it begins: Spark is
given both ends, and the end is what is committed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.client import OffsetClient
from offsetmgr.errors import (
    InvalidValueError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetConflictError,
)
from offsetmgr.spark.checkpoint import OffsetRange
from offsetmgr.spark.places import (
    check_missing,
    check_topics,
    listed,
    milliseconds,
    places,
)
from offsetmgr.types import TopicPartition, check_group, check_offset

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.client import PartitionRange
    from offsetmgr.spark.places import Missing
    from offsetmgr.types import OffsetAndMetadata

Until: TypeAlias = "datetime | Mapping[tuple[str, int], int]"
"""Where a batch ends: at the first record of a time, or at offsets (exclusive)."""

TIMEOUT_S: Final = 30.0

_active: set[tuple[str, str]] = set()
"""Groups of which a batch of this process is under way, each with its service."""
_active_lock: Final = threading.Lock()


def kafka_batch(
    client: OffsetClient,
    group: str,
    topics: Collection[str],
    *,
    until: Until | None = None,
    max_records: int | None = None,
    missing: Missing = "earliest",
    read_committed: bool = False,
    timeout: float = TIMEOUT_S,
) -> KafkaBatch:
    """What is new in ``topics`` for ``group``, as a context manager around the work on it.

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
    return KafkaBatch(
        _checked_client(client),
        check_group(group),
        check_topics(topics),
        until=_checked_until(until),
        max_records=_checked_limit(max_records),
        missing=check_missing(missing),
        read_committed=_checked_flag(read_committed),
        timeout=timeout,
    )


class KafkaBatch:
    """A pinned range of a group's topics; see ``kafka_batch``, which makes it."""

    def __init__(
        self,
        client: OffsetClient,
        group: str,
        topics: list[str],
        *,
        until: Until | None,
        max_records: int | None,
        missing: Missing,
        read_committed: bool,
        timeout: float,
    ) -> None:
        """Pins nothing yet; the block's beginning does."""
        self._client = client
        self._group = group
        self._topics = topics
        self._until = until
        self._max_records = max_records
        self._missing = missing
        self._read_committed = read_committed
        self._timeout = timeout
        self._ranges: Mapping[TopicPartition, OffsetRange] | None = None
        self._committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """What is read of each partition.  Raises ManagerStoppedError before the block."""
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
        """How many offsets are read; of a compacted topic not all of them have a record."""
        return sum(each.size for each in self.ranges.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read; Spark may be asked all the same."""
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
        self._begin()
        try:
            ranges = self._client.topics(self._topics, timeout=_left_s(deadline))
            wheres = [TopicPartition(topic, n) for topic, held in ranges.items() for n in held]
            # Only what is its own is pinned: nobody else commits for it from here on.
            self._client.claim(self._group, wheres, timeout=_left_s(deadline))
            try:
                self._pin(ranges, deadline)
            except BaseException:
                self._release(wheres)
                raise
        except BaseException:
            self._end()
            raise
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
        try:
            if exc_type is None:
                self._commit(time.monotonic() + self._timeout)
        finally:
            try:
                self._release(self.ranges)
            finally:
                self._end()

    def _begin(self) -> None:
        key = (self._client.url, self._group)
        with _active_lock:
            if key in _active:
                owner = "another batch of this process"
                raise ManagerExistsError(f"group {self._group}", owner)
            _active.add(key)

    def _end(self) -> None:
        with _active_lock:
            _active.discard((self._client.url, self._group))

    def _pin(self, held: Mapping[str, Mapping[int, PartitionRange]], deadline: float) -> None:
        starts = places(self._client, self._group, held, self._missing, _left_s(deadline))
        latest = self._latest(held, deadline)
        ends = self._ends(latest, deadline)
        ranges: dict[TopicPartition, OffsetRange] = {}
        for where, place in starts.items():
            at_end = place.committed is None and self._missing == "latest"
            start = latest[where] if at_end else place.offset
            # Where it is to end before it starts, there is nothing to read.
            ranges[where] = OffsetRange(start, max(start, ends[where]))
        self._committed = {where: place.committed for where, place in starts.items()}
        self._ranges = ranges if self._max_records is None else bounded(ranges, self._max_records)

    def _latest(
        self, held: Mapping[str, Mapping[int, PartitionRange]], deadline: float
    ) -> dict[TopicPartition, int]:
        """Where the logs end for this batch."""
        ends = {
            TopicPartition(topic, number): each.high_watermark
            for topic, partitions in held.items()
            for number, each in partitions.items()
        }
        if not self._read_committed:
            return ends
        stable = self._client.stable_ends(self._topics, timeout=_left_s(deadline))
        # Asked for after the ends, it may lie beyond them, and in a partition that is new.
        return {where: min(end, stable[where]) for where, end in ends.items()}

    def _ends(
        self, latest: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, int]:
        ends = dict(latest)
        if isinstance(self._until, datetime):
            at_ms = milliseconds(self._until, "until")
            at = self._client.offsets_at(self._topics, at_ms, timeout=_left_s(deadline))
            # Asked for after the ends, it may lie beyond them.
            return {where: min(end, at.get(where, end)) for where, end in ends.items()}
        for (topic, number), offset in (self._until or {}).items():
            where = TopicPartition(topic, number)
            if where not in ends:
                fix = f"name partitions of {', '.join(self._topics)}"
                raise InvalidValueError("until", str(where), "is not read by this batch", fix)
            if offset > ends[where]:
                fix = f"give at most {ends[where]}, where the partition ends"
                raise InvalidValueError(f"until of {where}", offset, "is beyond the end", fix)
            ends[where] = offset
        return ends

    def _commit(self, deadline: float) -> None:
        now = self._client.committed(self._group, timeout=_left_s(deadline))
        changed = [where for where, was in self._committed.items() if now.get(where) != was]
        if changed:
            text = (
                f"the offsets of group {self._group} were changed while the batch ran, and stay as "
                f"they are: {listed(changed)}; the next batch starts from them"
            )
            raise OffsetConflictError(text)
        ends: dict[tuple[str, int], int | OffsetAndMetadata] = {
            where: each.end for where, each in self.ranges.items()
        }
        # The partition may end before what is committed: its topic was made anew.
        self._client.submit(self._group, ends, rewind=True, sync=True, timeout=_left_s(deadline))

    def _release(self, wheres: Collection[TopicPartition]) -> None:
        self._client.stop_managers(self._timeout, group=self._group, partitions=wheres)


def bounded(
    ranges: Mapping[TopicPartition, OffsetRange], most: int
) -> dict[TopicPartition, OffsetRange]:
    """The same ranges, cut so that they hold at most ``most`` offsets together.

    Each partition gets its share, by its size; none is left out for good: where there are enough
    for all, each gets one first.
    """
    total = sum(each.size for each in ranges.values())
    if total <= most:
        return dict(ranges)
    sizes = {where: each.size for where, each in ranges.items() if each.size}
    first = 1 if most >= len(sizes) else 0
    left, rest = most - first * len(sizes), total - first * len(sizes)
    shares = {where: divmod((size - first) * left, rest) for where, size in sizes.items()}
    taken = {where: first + share for where, (share, _) in shares.items()}
    spare = most - sum(taken.values())
    for where in sorted(shares, key=lambda where: shares[where][1], reverse=True)[:spare]:
        taken[where] += 1
    return {
        where: OffsetRange(each.start, each.start + taken.get(where, 0))
        for where, each in ranges.items()
    }


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _checked_client(client: object) -> OffsetClient:
    if not isinstance(client, OffsetClient):
        fix = 'give OffsetClient("http://127.0.0.1:8741", name="...")'
        raise InvalidValueError("client", client, "is no OffsetClient", fix)
    return client


def _checked_until(until: object) -> Until | None:
    if until is None:
        return None
    if isinstance(until, datetime):
        milliseconds(until, "until")
        return until
    if not isinstance(until, Mapping):
        fix = 'give a datetime with its time zone, or offsets such as {("orders", 0): 1042}'
        raise InvalidValueError("until", until, "is no time and no mapping of offsets", fix)
    for where, offset in until.items():
        if not isinstance(where, tuple) or len(where) != len(TopicPartition._fields):
            fix = 'give a topic and a number, such as ("orders", 0)'
            raise InvalidValueError("until", where, "is not a topic and a number", fix)
        check_offset(offset, f"until of {TopicPartition(*where)}")
    return dict(until)


def _checked_flag(read_committed: object) -> bool:
    if not isinstance(read_committed, bool):
        fix = "give True where open and aborted transactions are not to be read, else False"
        raise InvalidValueError("read_committed", read_committed, "is no flag", fix)
    return read_committed


def _checked_limit(max_records: object) -> int | None:
    if max_records is None:
        return None
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        fix = "give a whole number from 1 up, or leave it out for all there is"
        raise InvalidValueError("max_records", max_records, "is no number of records", fix)
    return max_records
