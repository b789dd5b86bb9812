"""The plan of a reset; pure.

The modes and their edge cases are those of ``kafka-consumer-groups --reset-offsets``.  Requested
offsets are clamped to the log.  A time after the last record means the end of the log.  A shift
needs a committed offset.  "current" means the end of the log if nothing is committed.
"""

from __future__ import annotations

import csv
import re
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import InvalidValueError, listed
from offsetmgr.types import (
    OffsetAndMetadata,
    TopicPartition,
    check_group,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.admin.history import GroupAt
    from offsetmgr.types import PartitionRange

_WITHOUT_GROUP: Final = 3
_WITH_GROUP: Final = 4


class Mode(str, Enum):
    """The modes of a reset."""

    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_OFFSET = "to-offset"
    SHIFT_BY = "shift-by"
    TO_CURRENT = "to-current"
    TO_TIME = "to-datetime"
    TO_OFFSETS = "from"
    """To given offsets: of a file, of another group, or of the group's history."""


_ONE_OFFSET: Final = re.compile(r"(.+):(\d{1,9})=(\d{1,19})")

_AT_END: Final = {
    Mode.TO_CURRENT: "nothing committed: end of the log",
    Mode.TO_TIME: "no record is so young: end of the log",
}


class Target(NamedTuple):
    """The target of a reset."""

    mode: Mode
    number: int = 0
    """The offset, the shift, or the time in milliseconds since 1970."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})
    """By ``TO_OFFSETS``: what the partitions are set to; others are left as they are."""
    notes: Mapping[TopicPartition, str] = MappingProxyType({})
    """By ``TO_OFFSETS``: why a partition is left as it is."""


class LogFacts(NamedTuple):
    """Facts of the cluster that a plan needs."""

    committed: Mapping[TopicPartition, int]
    logs: Mapping[TopicPartition, PartitionRange]
    """Partitions that do not exist are absent."""
    at_time: Mapping[TopicPartition, int] = MappingProxyType({})
    """The first offset at the time of the target or later; absent where there is none."""


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
            shown = note if failure is None else f"not done: {failure}"
            offset, metadata = (None, "") if new is None else (new.offset, new.metadata)
            rows.append((group, *where, current, offset, metadata, lag, shown))
    return rows


def plan(
    target: Target, partitions: Iterable[TopicPartition], facts: LogFacts
) -> list[PlannedOffset]:
    """Return a row for each of ``partitions``, sorted.

    Raises InvalidValueError where the target cannot be applied to one of them.
    """
    wanted = sorted(set(partitions))
    if target.mode is Mode.SHIFT_BY:
        bare = [each for each in wanted if each not in facts.committed]
        if bare:
            problem = f"needs committed offsets, and there are none of {listed(bare)}"
            fix = "leave these partitions out, or use another mode"
            raise InvalidValueError("shift-by", target.number, problem, fix)
    return [_row(target, each, facts) for each in wanted]


def _row(target: Target, partition: TopicPartition, facts: LogFacts) -> PlannedOffset:
    current, log = facts.committed.get(partition), facts.logs.get(partition)
    if log is None:
        return PlannedOffset(partition, current, None, "does not exist; left as it is")
    metadata, note = "", ""
    if target.mode is Mode.TO_OFFSETS:
        given = target.offsets.get(partition)
        if given is None:
            note = target.notes.get(partition, "left as it is")
            return PlannedOffset(partition, current, None, note)
        offset, metadata = given.offset, given.metadata
    else:
        asked = _asked(target, partition, log, facts)
        offset, note = (log.high_watermark, _AT_END[target.mode]) if asked is None else (asked, "")
    if target.mode in {Mode.TO_OFFSETS, Mode.TO_OFFSET, Mode.SHIFT_BY}:
        offset, note = _within(offset, log)
    new = OffsetAndMetadata(offset, metadata)
    return PlannedOffset(partition, current, new, note, max(log.high_watermark - offset, 0))


def _asked(
    target: Target, partition: TopicPartition, log: PartitionRange, facts: LogFacts
) -> int | None:
    """Return the offset that the target names; None where it finds none."""
    if target.mode is Mode.TO_EARLIEST:
        return log.log_start_offset
    if target.mode is Mode.TO_LATEST:
        return log.high_watermark
    if target.mode is Mode.TO_OFFSET:
        return target.number
    if target.mode is Mode.SHIFT_BY:
        return facts.committed[partition] + target.number
    found = facts.at_time if target.mode is Mode.TO_TIME else facts.committed
    return found.get(partition)


def _within(offset: int, log: PartitionRange) -> tuple[int, str]:
    """Return the offset held within its log, with a note where that changed it."""
    if offset > log.high_watermark:
        return log.high_watermark, f"{offset} is beyond the end of the log: its end"
    if offset < log.log_start_offset:
        return log.log_start_offset, f"{offset} is before the log: its start"
    return offset, ""


def to_group_at(group: GroupAt, time: str) -> Target:
    """Return the target that takes a group back to where it stood at ``time``."""
    notes = dict.fromkeys(group.nothing, f"nothing was committed at {time}; left as it is")
    lost = f"its commits of before {time} are compacted away; left as it is"
    notes |= dict.fromkeys(group.unknown, lost)
    return Target(Mode.TO_OFFSETS, offsets=group.offsets, notes=notes)


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


def parse_csv(text: str, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of ``group`` from lines of ``[group,]topic,partition,offset``.

    Raises InvalidValueError, with the line, where one is neither; also where none is of the group.
    """
    offsets = {}
    for number, cells in enumerate(csv.reader(text.splitlines()), 1):
        field = f"line {number}"
        if not cells:
            continue
        if len(cells) not in {_WITHOUT_GROUP, _WITH_GROUP}:
            fix = "write topic,partition,offset or group,topic,partition,offset"
            raise InvalidValueError(field, ",".join(cells), f"has {len(cells)} columns", fix)
        *owner, topic, partition, offset = (cell.strip() for cell in cells)
        if owner and check_group(owner[0], f"{field}, group") != group:
            continue
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


def to_csv(plans: Mapping[str, Iterable[PlannedOffset]]) -> str:
    """Return lines that ``parse_csv`` takes; with the group where there are several."""
    lines = []
    for group, rows in plans.items():
        for row in rows:
            if row.new is not None:
                cells = (row.partition.topic, str(row.partition.partition), str(row.new.offset))
                lines.append(",".join((group, *cells) if len(plans) > 1 else cells))
    return "".join(f"{line}\n" for line in lines)


def whole(text: str, field: str, shown: str | None = None) -> int:
    """Return a number from text.  Raises InvalidValueError."""
    try:
        return int(text)
    except ValueError:
        problem, fix = f"has {text!r} where a number stands", "give a whole number"
        raise InvalidValueError(field, shown or text, problem, fix) from None
