"""A batch job that reads what is new for its group, and commits it when its work is done.

Spark does not report how far a batch has read, so the range is fixed before it begins: Spark is
given both ends, and the end is what is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.client.offsets import Deadline
from offsetmgr.errors import InvalidValueError, OffsetConflictError, listed
from offsetmgr.spark.checkpoint import OffsetRange
from offsetmgr.spark.starting import (
    check_client,
    check_missing,
    check_topics,
    milliseconds,
    start_positions,
)
from offsetmgr.types import (
    TopicPartition,
    check_flag,
    check_group,
    check_offset,
    check_topic_partition,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.starting import Missing
    from offsetmgr.types import OffsetAndMetadata

Until: TypeAlias = "datetime | Mapping[tuple[str, int], int]"
"""The end of a batch: the first record at or after a time, or offsets (exclusive)."""

TIMEOUT_S: Final = 30.0


class KafkaBatch(NamedTuple):
    """A batch with a fixed range; made by ``kafka_batch``."""

    ranges: Mapping[TopicPartition, OffsetRange]
    """The offsets that are read of each partition."""
    read_committed: bool = False

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
        if self.read_committed:
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


@contextmanager
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
) -> Iterator[KafkaBatch]:
    """Fix the range of new records in ``topics`` for ``group``, and commit its end after the block.

    ::

        with kafka_batch(client, group="orders-daily", topics=["orders"]) as batch:
            df = spark.read.format("kafka").options(**batch.options)
            df.option("kafka.bootstrap.servers", "...").load().write.save(out)

    The range of each partition begins at the committed offset of the group, and ends at the end of
    the log or at ``until``; all ranges together have at most ``max_records`` offsets.  If the block
    raises an exception, nothing is committed, and the next batch reads the same records again.

    A partition without a committed offset starts at ``missing``.  With ``read_committed`` the
    records of open and aborted transactions are not read: the range ends before the first open
    transaction.  The entry and the commit each have ``timeout`` seconds.

    Raises:
        InvalidValueError: an argument is wrong, ``until`` names an offset that its partition does
            not have, or ``missing`` is ``error`` and an offset is missing.
        ManagerExistsError: another batch, query or client commits for the group.
        OffsetTimeoutError, ServiceError, ServiceUnavailableError: the range could not be read in
            time; nothing was changed.
        OffsetConflictError: after the block, somebody else has changed the group's offsets
            meanwhile.  They stay as they are.
        OffsetTimeoutError, OffsetCommitError, ClientFencedError: after the block, as a submit with
            ``sync``.  The next batch reads the same records again.

    """
    check_client(client)
    check_group(group)
    names = check_topics(topics)
    _check(until, max_records)
    check_missing(missing)
    check_flag(read_committed, "read_committed")
    deadline = Deadline(timeout)
    logs = client.topics(names, timeout=deadline.left_s)
    latest = {
        TopicPartition(topic, number): log.high_watermark
        for topic, partitions in logs.items()
        for number, log in partitions.items()
    }
    # Nobody else commits for these partitions from here on.
    client.claim(group, latest, timeout=deadline.left_s)
    try:
        starts = start_positions(client, group, logs, missing, deadline)
        if read_committed:
            stable = client.stable_ends(names, timeout=deadline.left_s)
            # Asked for after the ends, it may lie beyond them.
            latest = {partition: min(end, stable[partition]) for partition, end in latest.items()}
        ends = _ends(client, latest, until, deadline)
        ranges: dict[TopicPartition, OffsetRange] = {}
        for partition, position in starts.items():
            at_end = position.committed is None and missing == "latest"
            start = latest[partition] if at_end else position.offset
            # If it would end before it starts, there is nothing to read.
            ranges[partition] = OffsetRange(start, max(start, ends[partition]))
        batch = KafkaBatch(
            ranges if max_records is None else bounded(ranges, max_records), read_committed
        )
        yield batch
        before = {partition: position.committed for partition, position in starts.items()}
        _commit(client, group, batch, before, Deadline(timeout))
    finally:
        client.stop_managers(timeout=timeout, group=group, partitions=latest)


def _ends(
    client: Offsets, latest: Mapping[TopicPartition, int], until: Until | None, deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return where the batch ends in each partition, whose log ends at ``latest``."""
    ends = dict(latest)
    if isinstance(until, datetime):
        names = list(dict.fromkeys(partition.topic for partition in latest))
        at = client.offsets_at(names, milliseconds(until, "until"), timeout=deadline.left_s)
        # Asked for after the ends, it may lie beyond them.
        return {each: min(end, at.get(each, end)) for each, end in ends.items()}
    for (topic, number), offset in (until or {}).items():
        partition = TopicPartition(topic, number)
        if partition not in ends:
            fix = f"name partitions such as {listed(ends)}"
            raise InvalidValueError("until", str(partition), "is not read by this batch", fix)
        if offset > ends[partition]:
            fix = f"give at most {ends[partition]}, where the partition ends"
            raise InvalidValueError(f"until of {partition}", offset, "is beyond the end", fix)
        ends[partition] = offset
    return ends


def _commit(
    client: Offsets,
    group: str,
    batch: KafkaBatch,
    before: Mapping[TopicPartition, OffsetAndMetadata | None],
    deadline: Deadline,
) -> None:
    now = client.committed(group, timeout=deadline.left_s)
    changed = [each for each, was in before.items() if now.get(each) != was]
    if changed:
        text = (
            f"the offsets of group {group} were changed while the batch ran, and stay as "
            f"they are: {listed(changed)}; the next batch starts from them"
        )
        raise OffsetConflictError(text)
    ends: dict[tuple[str, int], int | OffsetAndMetadata] = {
        partition: each.end for partition, each in batch.ranges.items()
    }
    # The partition may end before what is committed: its topic was made anew.
    client.submit(group, ends, rewind=True, sync=True, timeout=deadline.left_s)


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


def _check(until: object, max_records: object) -> None:
    if isinstance(until, datetime):
        milliseconds(until, "until")
    elif isinstance(until, Mapping):
        for partition, offset in until.items():
            check_offset(offset, f"until of {check_topic_partition(partition, 'until')}")
    elif until is not None:
        fix = 'give a datetime with its time zone, or offsets such as {("orders", 0): 1042}'
        raise InvalidValueError("until", until, "is no time and no mapping of offsets", fix)
    if max_records is not None and (type(max_records) is not int or max_records < 1):
        fix = "give a whole number from 1 up, or leave it out for all there is"
        raise InvalidValueError("max_records", max_records, "is no number of records", fix)
