"""Start offsets with which a query resumes from its group, and batches of what is new for one.

Spark does not report how far a batch has read, so its range is fixed before it begins: Spark is
given both ends, and the end is what is committed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from offsetmgr.client.offsets import Deadline, Offsets
from offsetmgr.errors import (
    ERRORS,
    Fault,
    InvalidValueError,
    OffsetConflictError,
    OffsetManagerError,
    OffsetTimeoutError,
    OverloadedError,
    ServiceError,
    ServiceUnavailableError,
    listed,
)
from offsetmgr.spark.checkpoint import OffsetRange, open_checkpoint
from offsetmgr.types import (
    TopicPartition,
    check_flag,
    check_group,
    check_offset,
    check_topic,
    check_topic_partition,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession

    from offsetmgr.types import OffsetAndMetadata, PartitionRange

_log = logging.getLogger("offsetmgr.spark")

Missing: TypeAlias = "Literal['earliest', 'latest', 'error'] | datetime"
"""The start of a partition without a committed offset: an end of its log, the first record at or
after a time, or an error."""

Unavailable: TypeAlias = Literal["error", "earliest", "latest"]
"""The start of all partitions when the committed offsets cannot be read."""

Until: TypeAlias = "datetime | Mapping[tuple[str, int], int]"
"""The end of a batch: the first record at or after a time, or offsets (exclusive)."""

_SPARK_NAMES: Final[dict[object, int]] = {"earliest": -2, "latest": -1}
"""Their numbers in Spark's JSON."""

_IGNORED: Final = "earliest"
"""Valid for any topics; Spark reads its checkpoint instead."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SERVER_ERROR: Final = 500
_FAULTS: Final = {info.name: info.fault for info in ERRORS.values()}


_BATCH_TIMEOUT_S: Final = 30.0


class StartPosition(NamedTuple):
    """The offset from which a group resumes a partition."""

    offset: int
    """The next offset to read: within the log, or its end."""
    committed: OffsetAndMetadata | None
    """The group's committed offset; None if nothing is committed."""


def starting_offsets(
    client: Offsets,
    group: str,
    topics: Collection[str] | None = None,
    missing: Missing = "earliest",
    *,
    pattern: str | None = None,
    checkpoint: str | None = None,
    spark: SparkSession | None = None,
    unavailable: Unavailable = "error",
    timeout: float = 10.0,
) -> str:
    """Return the committed offsets of ``group`` for the option ``startingOffsets`` of Spark.

    It has every partition of ``topics``, or of all topics whose whole name matches ``pattern``
    (then use the source's option ``subscribePattern``).  A partition without a committed offset
    starts at ``missing``: ``earliest``, ``latest`` (streaming queries only), the first record at a
    datetime with a time zone, or ``error``; the log has their number at level INFO.  A committed
    offset outside the log is replaced by the nearest end of the log, with a warning.

    Spark ignores the option if the query has a checkpoint.  With ``checkpoint``, the query's
    checkpointLocation, such a job starts even if the service or Kafka is down, because neither is
    asked.  The checkpoint is read by the session ``spark``; without one, or with Spark Connect, it
    must be on this machine.

    A job without a checkpoint needs an answer of the service and of Kafka within ``timeout``
    seconds.  If there is none, ``unavailable`` decides: ``error`` raises; with ``earliest`` or
    ``latest`` every partition starts there, with a warning.  The job then reads records again, or
    skips some.

    Raises InvalidValueError, ServiceError if a topic does not exist, and what ``client.topics``
    and ``client.committed`` raise.
    """
    check_group(group)
    check_missing(missing)
    if unavailable not in ("error", *_SPARK_NAMES):
        fix = "give 'error', 'earliest' or 'latest'; a time needs Kafka to find its offsets"
        raise InvalidValueError("unavailable", unavailable, "is unknown", fix)
    if pattern is None:
        names = check_topics(topics)
    elif topics is not None:
        raise InvalidValueError("pattern", pattern, "was given beside topics", "give one of them")
    else:
        names, expression = [], _compiled(pattern)
    if checkpoint is not None:
        files = open_checkpoint(checkpoint, spark)
        if files.has_offsets():
            _log.info("checkpoint %s has offsets; group %s is not asked", files.location, group)
            return _IGNORED
    deadline = Deadline(timeout)
    try:
        if pattern is not None:
            names = _matching(client, expression, deadline)
        logs = client.topics(names, timeout=deadline.left_s)
        found = start_positions(client, group, logs, missing, deadline)
    except OffsetManagerError as error:
        if unavailable == "error" or not _is_unavailable(error):
            raise
        text = f"the offsets of group {group} could not be read ({error})"
        _log.warning("%s; every partition starts at %s, as unavailable= says", text, unavailable)
        return unavailable
    start: dict[str, dict[str, int]] = {}
    for (topic, number), position in found.items():
        # By name where it has one: the end of a log moves until Spark comes to read it.
        named = None if position.committed is not None else _SPARK_NAMES.get(missing)
        start.setdefault(topic, {})[str(number)] = position.offset if named is None else named
    return json.dumps(start)


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
    timeout: float = _BATCH_TIMEOUT_S,
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
    _check_end(until, max_records)
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


def start_positions(
    client: Offsets,
    group: str,
    logs: Mapping[str, Mapping[int, PartitionRange]],
    missing: Missing,
    deadline: Deadline,
) -> dict[TopicPartition, StartPosition]:
    """Return the start of ``group`` in every partition of ``logs``; see ``starting_offsets``.

    Raises InvalidValueError if ``missing`` is ``error`` and a partition has no committed offset.
    """
    committed = client.committed(group, timeout=deadline.left_s)
    found: dict[TopicPartition, StartPosition] = {}
    absent: list[TopicPartition] = []
    for topic, partitions in logs.items():
        for number, log in sorted(partitions.items()):
            partition = TopicPartition(topic, number)
            entry = committed.get(partition)
            if entry is None:
                absent.append(partition)
                offset = log.log_start_offset if missing == "earliest" else log.high_watermark
            else:
                offset = _clamped(group, partition, entry.offset, log)
            found[partition] = StartPosition(offset, entry)
    if absent and missing == "error":
        fix = "commit them first, or say where to start with missing='earliest'"
        raise InvalidValueError("group", group, f"has nothing committed for {listed(absent)}", fix)
    if absent:
        some = f" for {len(absent)} of {len(found)} partitions" if committed else ""
        start = missing.isoformat() if isinstance(missing, datetime) else missing
        _log.info("group %s has no offsets%s; starting at %s", group, some, start)
    if absent and isinstance(missing, datetime):
        topics = list(dict.fromkeys(partition.topic for partition in absent))
        at_ms = milliseconds(missing, "missing")
        at = client.offsets_at(topics, at_ms, timeout=deadline.left_s)
        for partition in absent:
            # One that appeared between the two requests is not among those asked for.
            found[partition] = StartPosition(at.get(partition, found[partition].offset), None)
    return found


def check_client(client: object) -> Offsets:
    if not isinstance(client, Offsets):
        fix = 'give OffsetClient("http://127.0.0.1:8741") or LocalOffsets("localhost:9092")'
        raise InvalidValueError("client", client, "is no client", fix)
    return client


def check_topics(topics: object) -> list[str]:
    if isinstance(topics, str) or not isinstance(topics, (list, tuple, set, frozenset)):
        raise InvalidValueError("topics", topics, "is no list of topics", 'give ["orders"]')
    if not topics:
        raise InvalidValueError("topics", topics, "is empty", 'give at least one, as ["orders"]')
    names = [check_topic(topic, f"topics[{index}]") for index, topic in enumerate(topics)]
    return list(dict.fromkeys(names))


def check_missing(missing: object) -> None:
    if isinstance(missing, datetime):
        milliseconds(missing, "missing")
    elif not isinstance(missing, str) or missing not in {"earliest", "latest", "error"}:
        fix = "give 'earliest', 'latest', 'error' or a datetime with its time zone"
        raise InvalidValueError("missing", missing, "is unknown", fix)


def _check_end(until: object, max_records: object) -> None:
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


def milliseconds(moment: datetime, field: str) -> int:
    """Return a point in time as Kafka counts it.  Raises InvalidValueError."""
    if moment.tzinfo is None:
        fix = "give it one, such as datetime.now(timezone.utc)"
        raise InvalidValueError(field, moment.isoformat(), "has no time zone", fix)
    since = moment - _EPOCH
    if since.days < 0:
        fix = "Kafka's records begin there; give a later time, or 'earliest'"
        raise InvalidValueError(field, moment.isoformat(), "lies before 1970", fix)
    # Not by way of a float, which would lose the last millisecond.
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def _clamped(group: str, partition: TopicPartition, offset: int, log: PartitionRange) -> int:
    nearest = min(max(offset, log.log_start_offset), log.high_watermark)
    if nearest != offset:
        what = (
            "below the first one it holds: what lay between is deleted"
            if offset < nearest
            else "beyond its end: the topic was truncated or made anew"
        )
        where = f"topic {partition.topic} partition {partition.partition}"
        text = f"group {group} has offset {offset} committed for {where}, {what}"
        holds = f"the partition holds {log.log_start_offset} to {log.high_watermark}"
        _log.warning("%s; starting at %d (%s)", text, nearest, holds)
    return nearest


def _is_unavailable(error: OffsetManagerError) -> bool:
    """Return True if the service or Kafka is away, False if one of them refuses."""
    if isinstance(error, ServiceError):
        fault = _FAULTS.get(error.code)
        if fault is not None:
            return fault in {Fault.BROKER, Fault.NETWORK}
        return error.status >= _SERVER_ERROR
    return isinstance(error, (ServiceUnavailableError, OffsetTimeoutError, OverloadedError))


def _compiled(pattern: object) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        fix = 'give a regular expression, such as "orders-.*"'
        raise InvalidValueError("pattern", pattern, "is not text", fix)
    try:
        return re.compile(pattern)
    except re.error as error:
        fix = "use what Java's and Python's regular expressions have in common"
        raise InvalidValueError("pattern", pattern, f"cannot be read ({error})", fix) from None


def _matching(client: Offsets, pattern: re.Pattern[str], deadline: Deadline) -> list[str]:
    every = client.topic_names(timeout=deadline.left_s)
    names = [name for name in every if pattern.fullmatch(name)]
    if not names:
        fix = "create a topic first, or widen it; it has to match the whole name"
        raise InvalidValueError("pattern", pattern.pattern, "matches no topic", fix)
    return names
