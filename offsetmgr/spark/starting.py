"""Start offsets with which a query resumes from its group, and batches of what is new for one.

Spark does not report how far a batch has read, so its range is fixed before it begins: Spark is
given both ends, and the end is what is committed.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from offsetmgr.client.offsets import Offsets
from offsetmgr.deadlines import Deadline
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
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.checkpoint import Checkpoint, OffsetRange
from offsetmgr.spark.files import check_session, is_stopped, java_text
from offsetmgr.spark.logs import foreign
from offsetmgr.types import (
    TopicPartition,
    check_count,
    check_flag,
    check_group,
    check_list,
    check_mapping,
    check_moment,
    check_offset,
    check_topic,
    check_topic_partition,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

    from offsetmgr.client.offsets import Logs
    from offsetmgr.spark.progress import Positions
    from offsetmgr.types import OffsetAndMetadata

_log = SafeLogger("offsetmgr.spark")

Missing: TypeAlias = "Literal['earliest', 'latest', 'error'] | datetime"
"""The start of a partition without a committed offset: an end of its log, the first record at or
after a time, or an error."""

_SPARK_NAMES: Final[dict[object, int]] = {"earliest": -2, "latest": -1}
"""Their numbers in Spark's JSON."""

_WHOLE_NAMES: Final = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"

_SERVER_ERROR: Final = 500
_FAULTS: Final = {info.name: info.fault for info in ERRORS.values()}


def starting_offsets(
    client: Offsets,
    group: str,
    topics: Collection[str] | None = None,
    missing: Missing = "earliest",
    *,
    pattern: str | None = None,
    checkpoint: str | None = None,
    spark: SparkSession | None = None,
    unavailable: Literal["error", "earliest", "latest"] = "error",
    timeout: float = 10.0,
) -> str:
    """Return the committed offsets of ``group`` for the option ``startingOffsets`` of Spark.

    It has every partition of ``topics``, or of the topics that ``subscribePattern`` takes for the
    same ``pattern``, by the settings and regular expressions of the session ``spark``, by default
    the active one of the thread or the driver.

    A partition without a committed offset, or with one beyond the end of its log, starts at
    ``missing``: ``earliest``, ``latest`` (streaming queries only), the first record at a datetime
    with a time zone, or ``error``.  One whose committed offset has expired starts at the first
    record.  The log says where and why.

    If ``checkpoint``, the query's checkpointLocation, has offsets, Spark ignores the option: the
    job starts even if the service or Kafka is down.  It is read by the session ``spark``; without
    one, or with Spark Connect, it must be on this machine.

    Without an answer within ``timeout`` seconds, ``unavailable`` decides: ``error`` raises;
    with ``earliest`` or ``latest`` every partition starts there, with a warning.

    Raises InvalidValueError, ServiceError if a topic does not exist, and what ``client.topics``
    and ``client.committed`` raise.
    """
    check_client(client)
    check_group(group)
    check_missing(missing)
    check_session(spark)
    if unavailable not in ("error", *_SPARK_NAMES):
        fix = "give 'error', 'earliest' or 'latest'; a time needs Kafka to find its offsets"
        raise InvalidValueError("unavailable", unavailable, "is unknown", fix)
    if pattern is None:
        names = _check_topics(topics)
    elif topics is not None:
        raise InvalidValueError("pattern", pattern, "is given with topics", "give one of them")
    if checkpoint is not None:
        files = Checkpoint(checkpoint, spark)
        if files.has_offsets(names if pattern is None else ()):
            _log.info("checkpoint %s has offsets; group %s is not asked", files.location, group)
            return "earliest"  # valid for any topics; Spark reads its checkpoint instead
    deadline = Deadline(timeout)
    try:
        if pattern is not None:
            names = _matching(client, pattern, spark or _active_session(), deadline)
        # In this order, as an offset that is committed between the two is beyond the earlier end.
        committed = client.committed(group, timeout=deadline.left_s)
        logs = dict(sorted(client.logs(names, timeout=deadline.left_s).items()))
        starts, absent = _read_starts(client, group, logs, committed, missing, deadline)
    except OffsetManagerError as error:
        if unavailable == "error" or not _is_unavailable(error):
            raise
        text = f"the offsets of group {group} could not be read ({error})"
        _log.warning("%s; every partition starts at %s, as unavailable= says", text, unavailable)
        return unavailable
    if missing in _SPARK_NAMES:
        # By name: the end of a log moves until Spark comes to read it.
        starts.update(dict.fromkeys(absent, _SPARK_NAMES[missing]))
    return spark_json(starts)


def resuming(group: str, logs: Logs, offsets: Positions) -> str:
    """Return ``startingOffsets`` for committed offsets that are known, as ``starting_offsets``."""
    starts, absent = _starts(group, logs, offsets, "earliest")
    return spark_json(starts | dict.fromkeys(absent, _SPARK_NAMES["earliest"]))


def spark_json(offsets: Positions) -> str:
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, {})[number] = offset
    return json.dumps(topics)


class KafkaBatch(NamedTuple):
    """A batch with a fixed range; made by ``kafka_batch``."""

    ranges: Mapping[TopicPartition, OffsetRange]
    read_committed: bool = False

    @property
    def options(self) -> dict[str, str]:
        """Options of Spark's Kafka source: these partitions, from their start to their end."""
        assigned: dict[str, list[int]] = {}
        for topic, number in self.ranges:
            assigned.setdefault(topic, []).append(number)
        options = {
            "assign": json.dumps(assigned),
            "startingOffsets": spark_json({p: each.start for p, each in self.ranges.items()}),
            "endingOffsets": spark_json({p: each.end for p, each in self.ranges.items()}),
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
        """True if there is nothing to read; Spark can still read the empty range."""
        return self.records == 0


@contextmanager
def kafka_batch(
    client: Offsets,
    group: str,
    topics: Collection[str],
    *,
    until: datetime | Mapping[tuple[str, int], int] | None = None,
    max_records: int | None = None,
    missing: Missing = "earliest",
    read_committed: bool = False,
    timeout: float = 30.0,
) -> Iterator[KafkaBatch]:
    """Fix the range of new records in ``topics`` for ``group``, and commit its end after the block.

    ::

        with kafka_batch(client, group="orders-daily", topics=["orders"]) as batch:
            df = spark.read.format("kafka").options(**batch.options)
            df.option("kafka.bootstrap.servers", "...").load().write.save(out)

    The range of each partition begins at the committed offset of the group, or at ``missing``
    without one, and ends at the end of the log or at ``until``: the first record at or after a
    time, or offsets (exclusive).  All ranges together have at most ``max_records`` offsets.  With
    ``read_committed`` each ends before the first open transaction, and records of aborted ones are
    not read.  If the block raises an exception, nothing is committed.

    The entry and the commit each have ``timeout`` seconds.  The entry raises InvalidValueError,
    ManagerExistsError if somebody else commits for the group, and what ``client.logs`` and
    ``client.committed`` raise.  The end of the block raises OffsetConflictError if the group's
    offsets were changed meanwhile or a topic was recreated, and what a submit with ``sync`` raises.
    """
    check_client(client)
    check_group(group)
    names = _check_topics(topics)
    _check_until(until)
    if max_records is not None:
        check_count(max_records, "max_records")
    check_missing(missing)
    check_flag(read_committed, "read_committed")
    deadline = Deadline(timeout)
    claimed = sorted(client.logs(names, timeout=deadline.left_s))
    # Nobody else commits for these partitions from here on.
    client.claim(group, claimed, timeout=deadline.left_s)
    try:
        committed = client.committed(group, timeout=deadline.left_s)
        # Read again, as an offset that was committed meanwhile is beyond the former end.
        found = client.logs(names, timeout=deadline.left_s)
        logs = {partition: found[partition] for partition in claimed if partition in found}
        latest = {partition: log.high_watermark for partition, log in logs.items()}
        starts, absent = _read_starts(client, group, logs, committed, missing, deadline)
        if read_committed:
            stable = client.stable_ends(names, timeout=deadline.left_s)
            # Asked for after the ends, it may lie beyond them; a topic may have been recreated.
            latest = {each: min(end, stable.get(each, end)) for each, end in latest.items()}
        ends = _ends(client, latest, until, deadline)
        ranges: dict[TopicPartition, OffsetRange] = {}
        for partition, offset in starts.items():
            at_end = partition in absent and missing == "latest"
            start = latest[partition] if at_end else offset
            # If it would end before it starts, there is nothing to read.
            ranges[partition] = OffsetRange(start, max(start, ends[partition]))
        if max_records is not None:
            ranges = bounded(ranges, max_records)
        yield KafkaBatch(ranges, read_committed)
        _commit(client, group, ranges, logs, committed, Deadline(timeout))
    finally:
        client.stop_managers(timeout=timeout, group=group, partitions=claimed)


def _ends(
    client: Offsets,
    latest: Positions,
    until: datetime | Mapping[tuple[str, int], int] | None,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """Return where the batch ends in each partition, whose log ends at ``latest``."""
    ends = dict(latest)
    if isinstance(until, datetime):
        topics = {each.topic for each in latest}
        at = client.offsets_at(topics, check_moment(until, "until"), timeout=deadline.left_s)
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
    ranges: Mapping[TopicPartition, OffsetRange],
    logs: Logs,
    before: Mapping[TopicPartition, OffsetAndMetadata],
    deadline: Deadline,
) -> None:
    """Commit the ends of ``ranges``, if neither ``logs`` nor the group have changed meanwhile."""
    topics = {partition.topic for partition in logs}
    read_from = {partition: log.topic_id for partition, log in logs.items()}
    # Where nothing is read, a log may be cut, but not be another one.
    read = {partition: each.end if each.size else 0 for partition, each in ranges.items()}
    logs_now = client.logs(topics, timeout=deadline.left_s)
    for partition, reason in foreign(read, logs_now, read_from).items():
        text = f"nothing is committed to group {group}: {partition} was read, but {reason}"
        raise OffsetConflictError(f"{text}; the next batch reads what the log holds now")
    now = client.committed(group, timeout=deadline.left_s)
    changed = [each for each in ranges if now.get(each) != before.get(each)]
    if changed:
        text = (
            f"the offsets of group {group} were changed while the batch ran, and stay as "
            f"they are: {listed(changed)}; the next batch starts from them"
        )
        raise OffsetConflictError(text)
    ends = {(topic, number): each.end for (topic, number), each in ranges.items()}
    # The partition may end before what is committed: its topic was recreated.
    client.submit(group, ends, rewind=True, sync=True, timeout=deadline.left_s)


def bounded(
    ranges: Mapping[TopicPartition, OffsetRange], most: int
) -> dict[TopicPartition, OffsetRange]:
    """Cut ranges to ``most`` offsets together; the larger share what the smaller ones leave."""
    found = dict(ranges)
    by_size = sorted(ranges, key=lambda partition: ranges[partition].size)
    for index, partition in enumerate(by_size):
        size = min(ranges[partition].size, most // (len(by_size) - index))
        start = ranges[partition].start
        found[partition] = OffsetRange(start, start + size)
        most -= size
    return found


def _read_starts(
    client: Offsets,
    group: str,
    logs: Logs,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    missing: Missing,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return what ``_starts`` returns, with the offsets at a time read from Kafka."""
    offsets = {place: value.offset for place, value in committed.items()}
    starts, absent = _starts(group, logs, offsets, missing)
    if isinstance(missing, datetime) and absent:
        at_ms = check_moment(missing, "missing")
        topics = {place.topic for place in absent}
        at = client.offsets_at(topics, at_ms, timeout=deadline.left_s)
        # One that appeared between the two requests is not among those asked for.
        starts.update({place: at[place] for place in absent if place in at})
    return starts, absent


def _starts(
    group: str, logs: Logs, offsets: Positions, missing: Missing
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return the start in every partition of ``logs``, and which of them start at ``missing``."""
    starts: dict[TopicPartition, int] = {}
    absent: list[TopicPartition] = []
    beyond: list[str] = []
    for place, log in logs.items():
        start, end, *_ = log
        count = f"the log holds {end - start} records, {start} to {end}"
        offset = offsets.get(place)
        if offset is None or offset > end:
            absent.append(place)
            starts[place] = start if missing == "earliest" else end
            if offset is not None:
                beyond.append(f"{place} (committed {offset}; {count})")
            continue
        starts[place] = max(start, offset)
        if start > offset:
            _log.warning(
                "group %s has offset %d committed for %s; %d records have expired unread (%s)",
                *(group, offset, place, start - offset, count),
            )
    if absent and missing == "error":
        others = listed([place for place in logs if place not in offsets])
        parts = [f"nothing committed for {others}"] if others else []
        parts += [f"offsets beyond the end of the log: {listed(beyond)}"] if beyond else []
        hint = "commit them first, or say where to start with missing='earliest'"
        raise InvalidValueError("group", group, f"has {' and '.join(parts)}", hint)
    if beyond:
        _log.warning(
            "group %s has offsets beyond the end of the log, as after a topic was deleted and "
            "recreated, or its log cut: %s; starting at %s, as if nothing was committed",
            *(group, listed(beyond), missing),
        )
    if len(absent) > len(beyond):
        _log.info(
            "group %s has no offsets for %d of %d partitions; starting at %s",
            *(group, len(absent) - len(beyond), len(logs), missing),
        )
    return starts, absent


def check_client(client: object) -> Offsets:
    if not isinstance(client, Offsets):
        fix = 'give OffsetClient("http://127.0.0.1:8741") or LocalOffsets("localhost:9092")'
        raise InvalidValueError("client", client, "is not a client", fix)
    return client


def _check_topics(topics: object) -> list[str]:
    names = check_list(topics, "topics", '["orders"]')
    if not names:
        raise InvalidValueError("topics", topics, "is empty", 'give at least one, as ["orders"]')
    return [check_topic(topic, f"topics[{index}]") for index, topic in enumerate(names)]


def check_missing(missing: object) -> None:
    if isinstance(missing, datetime):
        check_moment(missing, "missing")
    elif missing not in ("earliest", "latest", "error"):
        fix = "give 'earliest', 'latest', 'error' or a datetime with its time zone"
        raise InvalidValueError("missing", missing, "is unknown", fix)


def _check_until(until: object) -> None:
    if isinstance(until, datetime):
        check_moment(until, "until")
    elif until is not None:
        for partition, offset in check_mapping(until, "until").items():
            check_offset(offset, f"until of {check_topic_partition(partition, 'until')}")


def _is_unavailable(error: OffsetManagerError) -> bool:
    """Return True if the service or Kafka is away, False if one of them refuses."""
    if isinstance(error, ServiceError):
        fault = _FAULTS.get(error.code)
        if fault is not None:
            return fault in {Fault.BROKER, Fault.NETWORK}
        return error.status >= _SERVER_ERROR
    return isinstance(error, (ServiceUnavailableError, OffsetTimeoutError, OverloadedError))


def _matching(
    client: Offsets, pattern: str, spark: SparkSession | None, deadline: Deadline
) -> list[str]:
    topics = client.topic_names(timeout=deadline.left_s)
    is_whole = spark is not None and str(spark.conf.get(_WHOLE_NAMES, "false")).lower() == "true"
    jvm = getattr(spark, "_jvm", None)
    try:
        if jvm is not None:
            names = _matching_in_java(jvm, pattern, topics, is_whole=is_whole)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of what means something else in Java
                expression = re.compile(pattern, re.ASCII)
            match = expression.fullmatch if is_whole else expression.search
            names = [name for name in topics if match(name)]
    except (re.error, TypeError, Warning, OverflowError, RecursionError) as error:
        hint = "use what Java's and Python's regular expressions have in common"
        raise InvalidValueError("pattern", pattern, f"cannot be read ({error})", hint) from None
    if not names:
        how = "it has to match the whole name" if is_whole else "a topic's name has to contain it"
        hint = f"create a topic first, or widen it; {how}"
        raise InvalidValueError("pattern", pattern, "matches no topic", hint)
    return names


def _matching_in_java(jvm: Any, pattern: str, topics: list[str], *, is_whole: bool) -> list[str]:
    try:
        expression = jvm.java.util.regex.Pattern.compile(pattern)
        matchers = ((name, expression.matcher(name)) for name in topics)
        return [name for name, each in matchers if (each.matches() if is_whole else each.find())]
    except Exception as error:  # noqa: BLE001 -- of py4j, or PySpark's for some of Java's
        raise TypeError(java_text(error)) from None


def _active_session() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- only where it is there anyway

    drivers = getattr(SparkSession, "_instantiatedSession", None)
    if is_stopped(drivers):
        return None
    # A thread that has none of its own still reads by the settings of the driver's.
    return SparkSession.getActiveSession() or drivers
