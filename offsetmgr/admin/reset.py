"""The plan of a reset; pure.

The modes and their edge cases are those of ``kafka-consumer-groups --reset-offsets``.  Requested
offsets are clamped to the log.  A time after the last record means the end of the log.  A shift
needs a committed offset.  "current" means the end of the log if nothing is committed.
"""

from __future__ import annotations

import csv
import io
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.admin.times import parse_duration, parse_time
from offsetmgr.errors import InvalidValueError, listed
from offsetmgr.text import csv_cell
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.admin.history import Cause, CommitStep, GroupAt
    from offsetmgr.types import PartitionRange

_WITHOUT_GROUP: Final = 3
_WITH_GROUP: Final = 4
_ONE_OFFSET: Final = re.compile(r"(.+):(\d{1,9})=(\d{1,19})")


class Wanted(NamedTuple):
    """The offsets that a reset asks for."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    notes: Mapping[TopicPartition, str] = MappingProxyType({})
    """Why other partitions are left as they are."""
    at_end: str = ""
    """Why other partitions are set to the end of their log instead; empty where they are not."""
    within_log: bool = True
    """Offsets outside their log are set to its nearer end."""


class PlannedOffset(NamedTuple):
    """A partition in a plan."""

    partition: TopicPartition
    current: int | None
    """None where nothing is committed."""
    new: OffsetAndMetadata | None
    """None where the partition is left as it is; the note says why."""
    note: str = ""
    lag: int | None = None
    """Records behind the end of the log after the reset; None where it is left as it is."""


NOT_KNOWN: Final = "not known: "
"""Begins the reason of a partition that may have been changed all the same."""

PLAN_FIELDS: Final = (
    *("group", "topic", "partition", "current"),
    *("new", "metadata", "lag", "note"),
)


def plan_rows(
    plans: Mapping[str, Iterable[PlannedOffset]],
    failures: Mapping[str, Mapping[TopicPartition, str]] = MappingProxyType({}),
) -> list[tuple[object, ...]]:
    """Return the values of PLAN_FIELDS for each partition of each group.

    ``failures`` are why partitions were not changed.
    """
    rows: list[tuple[object, ...]] = []
    for group, planned in plans.items():
        failed = failures.get(group, {})
        for where, current, new, note, lag in planned:
            failure = failed.get(where)
            shown = note if failure is None else outcome(failure)
            offset, metadata = (None, "") if new is None else (new.offset, new.metadata)
            rows.append((group, *where, current, offset, metadata, lag, shown))
    return rows


def outcome(failure: str) -> str:
    """Return why a partition was not changed, or may not be, as the note of its row."""
    return failure if failure.startswith(NOT_KNOWN) else f"not done: {failure}"


def asked(
    mode: str,
    number: int,
    option: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionRange],
) -> Wanted:
    """Return the offsets of a mode that takes no time and no other offsets.

    ``number`` is the offset or the shift.  Raises InvalidValueError, of ``option``.
    """
    match mode:
        case "to-earliest":
            return start_of(logs)
        case "to-latest":
            offsets = {where: log.high_watermark for where, log in logs.items()}
        case "to-offset":
            offsets = dict.fromkeys(logs, number)
        case "to-current":  # with its metadata, such as the acks of messages behind it
            at_end = "nothing committed: end of the log"
            return Wanted(committed, at_end=at_end, within_log=False)
        case _:
            bare = [where for where in logs if where not in committed]
            if bare:
                problem = f"needs committed offsets, and there are none of {listed(sorted(bare))}"
                fix = "leave these partitions out, or use another mode"
                raise InvalidValueError(option, number, problem, fix)
            offsets = {where: committed[where].offset + number for where in logs}
    found = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
    return Wanted(found)


def start_of(logs: Mapping[TopicPartition, PartitionRange]) -> Wanted:
    """Return the offsets of the first records."""
    return Wanted({where: OffsetAndMetadata(log[0]) for where, log in logs.items()})


def plan(
    partitions: Iterable[TopicPartition],
    wanted: Wanted,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionRange],
    unread: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> list[PlannedOffset]:
    """Return a row for each of ``partitions``, sorted.

    Those that do not exist have no log; ``unread`` are notes on logs that could not be read.
    """
    rows = []
    for where in sorted(set(partitions)):
        current = committed[where].offset if where in committed else None
        log, new, note = logs.get(where), wanted.offsets.get(where), ""
        if log is None:
            note = unread.get(where, "does not exist; left as it is")
            rows.append(PlannedOffset(where, current, None, note))
            continue
        if new is None and not wanted.at_end:
            note = wanted.notes.get(where, "left as it is")
            rows.append(PlannedOffset(where, current, None, note))
            continue
        if new is None:
            new, note = OffsetAndMetadata(log.high_watermark), wanted.at_end
        elif wanted.within_log:
            new, note = _within(new, log)
        lag = max(log.high_watermark - new.offset, 0)
        rows.append(PlannedOffset(where, current, new, note, lag))
    return rows


def _within(new: OffsetAndMetadata, log: PartitionRange) -> tuple[OffsetAndMetadata, str]:
    """Return the offset held within its log, with a note where that changed it."""
    offset, metadata, _ = new
    if offset > log.high_watermark:
        note = f"{offset} is beyond the end of the log: its end"
        return OffsetAndMetadata(log.high_watermark, metadata), note
    if offset < log.log_start_offset:
        note = f"{offset} is before the log: its start"
        return OffsetAndMetadata(log.log_start_offset, metadata), note
    return OffsetAndMetadata(offset, metadata), ""


def to_group_at(
    group: GroupAt, time: str, causes: Mapping[CommitStep, Cause] = MappingProxyType({})
) -> Wanted:
    """Return what takes a group back to where it stood at ``time``.

    ``causes`` are those of all deletions since then: an offset of a former log is not restored.
    """
    notes = dict.fromkeys(group.nothing, f"nothing was committed at {time}; left as it is")
    lost = f"its commits of before {time} are compacted away; left as it is"
    notes |= dict.fromkeys(group.unknown, lost)
    ended = {step.partition: cause for step, cause in causes.items() if cause.ends_log}
    notes |= {where: f"{cause.value} since then; left as it is" for where, cause in ended.items()}
    offsets = {where: each for where, each in group.offsets.items() if where not in ended}
    return Wanted(offsets, notes)


def parse_value(mode: str, value: str, option: str, now_s: float) -> float:
    """Return the number that a mode takes: an offset, a shift, or seconds since 1970; else 0.

    A time before 1970 becomes 0: to Kafka, negative times mean the end of a log.  Raises
    InvalidValueError, of ``option``.
    """
    match mode:
        case "to-offset" | "shift-by":
            return whole(value, option)
        case "to-datetime":
            return max(parse_time(value, option), 0.0)
        case "by-duration":
            return max(now_s - parse_duration(value, option), 0.0)
    return 0


def parse_scope(texts: Iterable[str], field: str = "--topic") -> dict[str, list[int] | None]:
    """Return partitions by topic from ``orders`` (all: None) or ``orders:0,3``.

    Raises InvalidValueError, of ``field``.
    """
    scope: dict[str, list[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        check_topic(topic, field)
        if not colon:
            scope[topic] = None
            continue
        before = scope.get(topic, [])
        if before is not None:
            named = [whole(each, field, text) for each in numbers.split(",")]
            scope[topic] = [*before, *(check_partition(each, field) for each in named)]
    return scope


def in_scope(partition: TopicPartition, scope: Mapping[str, list[int] | None] | None) -> bool:
    """Return True if ``scope`` names the partition; None names all."""
    if scope is None:
        return True
    numbers = scope.get(partition.topic, [])
    return numbers is None or partition.partition in numbers


def parse_offsets(texts: Iterable[str]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets from ``orders:0=42``.  Raises InvalidValueError."""
    offsets = {}
    for text in texts:
        found = _ONE_OFFSET.fullmatch(text)
        if found is None:
            fix = "write TOPIC:PARTITION=OFFSET, such as orders:0=42"
            raise InvalidValueError("offset", text, "is not in that form", fix)
        topic, partition, offset = found.groups()
        where = TopicPartition(check_topic(topic), check_partition(int(partition)))
        offsets[where] = OffsetAndMetadata(check_offset(int(offset)))
    return offsets


def parse_csv(data: bytes, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of ``group`` from lines of ``[group,]topic,partition,offset`` in UTF-8.

    Raises InvalidValueError, with the line, where one is neither; also where none is of the group.
    """
    offsets = {}
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        field = f"line {number}"
        cells = _cells(line)
        if not cells:
            continue
        if len(cells) not in {_WITHOUT_GROUP, _WITH_GROUP}:
            fix = "write topic,partition,offset or group,topic,partition,offset"
            raise InvalidValueError(field, ",".join(cells), f"has {len(cells)} columns", fix)
        *owner, topic, partition, offset = cells
        if owner and csv_cell(owner[0]) != csv_cell(group):  # a space makes it another group
            continue
        topic = topic.strip()
        where = TopicPartition(
            check_topic(topic, f"{field}, topic"),
            check_partition(whole(partition, f"{field}, partition")),
        )
        offsets[where] = OffsetAndMetadata(
            check_offset(whole(offset, f"{field}, offset"), f"{field}, offset")
        )
    if not offsets:
        fix = "name the group in the first column, or leave that column out"
        raise InvalidValueError("file", group, "is a group that no line names", fix)
    return offsets


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # such as a field of a megabyte
        return [line]


def to_csv(plans: Mapping[str, Iterable[PlannedOffset]]) -> str:
    """Return lines that ``parse_csv`` takes; with the group where there are several."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for group, rows in plans.items():
        for row in rows:
            if row.new is not None:
                cells = (*row.partition, row.new.offset)
                writer.writerow((csv_cell(group), *cells) if len(plans) > 1 else cells)
    return lines.getvalue()


def whole(text: str, field: str, shown: str | None = None) -> int:
    """Return a number from text.  Raises InvalidValueError."""
    try:
        return int(text)
    except ValueError:
        problem, fix = f"has {text!r} where a number stands", "give a whole number"
        raise InvalidValueError(field, shown or text, problem, fix) from None
