"""The plan of a reset; pure.

The modes and their edge cases are those of ``kafka-consumer-groups --reset-offsets``.
"""

from __future__ import annotations

import csv
import io
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.admin.times import parse_duration, parse_time
from offsetmgr.errors import InvalidValueError, listed
from offsetmgr.text import csv_cell, visible
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    add_once,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.types import PartitionRange

_COLUMNS: Final = 3, 4
_ONE_OFFSET: Final = re.compile(r"(.+):([0-9]{1,9})=([0-9]{1,19})")
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
"""Python would take 1_000 and digits of other scripts as well."""


class Target(NamedTuple):
    """The offset that a reset asks for."""

    offset: OffsetAndMetadata | None
    """None where the partition is left as it is; the note says why."""
    note: str = ""


_NOT_NAMED: Final = Target(None, "no offset is given for it; left as it is")


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
    deleted: bool = False
    """True where the committed offset is to be deleted."""

    @property
    def is_changed(self) -> bool:
        """False where the partition is left as it is."""
        return self.deleted or self.new is not None


NOT_KNOWN: Final = "not known: "
"""Begins the reason of a partition that may have been changed all the same."""

PLAN_FIELDS: Final = ["group", "topic", "partition", "current", "new", "metadata", "lag", "note"]


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
        for row in planned:
            failure = failed.get(row.partition)
            note = row.note if failure is None else outcome(failure)
            new, metadata = (None, "") if row.new is None else row.new[:2]
            rows.append((group, *row.partition, row.current, new, metadata, row.lag, note))
    return rows


def outcome(failure: str) -> str:
    """Return why a partition was not changed, or may not be, as the note of its row."""
    return failure if failure.startswith(NOT_KNOWN) else f"not done: {failure}"


def targets(
    mode: str,
    number: int,
    option: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionRange],
) -> dict[TopicPartition, Target]:
    """Return the targets of a mode that needs nothing but the logs and the committed offsets.

    ``number`` is the offset or the shift.  A time is one before 1970, the start of each log.
    Raises InvalidValueError, of ``option``.
    """
    match mode:
        case "to-earliest" | "to-datetime" | "by-duration":
            offsets = {where: log.log_start_offset for where, log in logs.items()}
        case "to-latest":
            offsets = {where: log.high_watermark for where, log in logs.items()}
        case "to-offset":
            offsets = dict.fromkeys(logs, number)
        case "to-current":  # with its metadata, such as the acks of messages behind it
            note = "nothing committed: end of the log"
            ends = {where: Target(OffsetAndMetadata(log[1]), note) for where, log in logs.items()}
            return ends | {where: Target(each) for where, each in committed.items()}
        case _:
            bare = [where for where in logs if where not in committed]
            if bare:
                problem = f"needs committed offsets, and there are none of {listed(sorted(bare))}"
                fix = "leave these partitions out, or use another mode"
                raise InvalidValueError(option, number, problem, fix)
            offsets = {where: committed[where].offset + number for where in logs}
    return {where: Target(OffsetAndMetadata(offset)) for where, offset in offsets.items()}


def plan(
    partitions: Iterable[TopicPartition],
    wanted: Mapping[TopicPartition, Target],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionRange],
    unread: Mapping[TopicPartition, str] = MappingProxyType({}),
    *,
    within_logs: bool = True,
) -> list[PlannedOffset]:
    """Return a row for each of ``partitions``, sorted.

    Those that do not exist have no log; ``unread`` are notes on logs that could not be read.
    Offsets outside their log are set to its nearer end, if ``within_logs``.
    """
    rows = []
    for where in sorted(set(partitions)):
        current = committed[where].offset if where in committed else None
        log, (new, note) = logs.get(where), wanted.get(where, _NOT_NAMED)
        lag: int | None = None
        if log is None:
            new, note = None, unread.get(where, "does not exist; left as it is")
        elif new is not None:
            if within_logs:
                new, changed = _within(new, log)
                note = changed or note
            lag = max(log.high_watermark - new.offset, 0)
        rows.append(PlannedOffset(where, current, new, note, lag))
    return rows


def _within(new: OffsetAndMetadata, log: PartitionRange) -> tuple[OffsetAndMetadata, str]:
    """Return the offset held within its log, with a note where that changed it."""
    start, end = log
    note = ""
    if new.offset > end:
        note = f"{new.offset} is beyond the end of the log: its end"
    elif new.offset < start:
        note = f"{new.offset} is before the log: its start"
    return OffsetAndMetadata(min(max(new.offset, start), end), new.metadata), note


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
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for text in texts:
        found = _ONE_OFFSET.fullmatch(text)
        if found is None:
            fix = "write TOPIC:PARTITION=OFFSET, such as orders:0=42"
            raise InvalidValueError("offset", text, "is not in that form", fix)
        topic, partition, offset = found.groups()
        where = TopicPartition(check_topic(topic), check_partition(int(partition)))
        add_once(offsets, where, OffsetAndMetadata(check_offset(int(offset))), "offset")
    return offsets


def parse_csv(data: bytes, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of ``group`` from lines of ``[group,]topic,partition,offset`` in UTF-8.

    Raises InvalidValueError, with the line, where one is neither, or where a partition stands
    twice; also where none is of the group.
    """
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    lines = [_cells(line) for line in data.decode("utf-8-sig", "replace").splitlines()]
    # Other tools and people write the name as it is.
    name = _group_cell(group)
    name = name if any(cells[:1] == [name] for cells in lines) else group
    for number, cells in enumerate(lines, 1):
        field = f"line {number}"
        if not cells:
            continue
        if len(cells) not in _COLUMNS:
            fix = "write topic,partition,offset or group,topic,partition,offset"
            raise InvalidValueError(field, ",".join(cells), f"has {len(cells)} columns", fix)
        *owner, topic, partition, offset = cells
        if owner and owner[0] != name:  # a space makes it another group
            continue
        topic = check_topic(topic.strip(), f"{field}, topic")
        where = TopicPartition(topic, check_partition(whole(partition, f"{field}, partition")))
        at = f"{field}, offset"
        add_once(offsets, where, OffsetAndMetadata(check_offset(whole(offset, at), at)), field)
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
                writer.writerow((_group_cell(group), *cells) if len(plans) > 1 else cells)
    return lines.getvalue()


def _group_cell(group: str) -> str:
    """Return a group's name for CSV, escaped so that no other name looks the same."""
    text = visible(group.replace("\\", r"\\"))
    return f"'{text}" if text.startswith("'") else str(csv_cell(text))


def whole(text: str, field: str, shown: str | None = None) -> int:
    """Return a number from text.  Raises InvalidValueError."""
    if not _WHOLE.fullmatch(text):
        problem, fix = f"has '{visible(text, 40)}' where a number stands", "give a whole number"
        raise InvalidValueError(field, shown or text, problem, fix)
    return int(text)
