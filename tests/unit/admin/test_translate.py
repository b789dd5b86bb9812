"""Offsets of a mirror: never beyond the next record to read, and as near as can be known."""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.admin.migration import (
    OffsetMigration,
    OffsetSync,
    Record,
    Translation,
    best_sync,
    parse_sync,
    translate,
    unknown,
)
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import PartitionRange, TopicPartition
from tests.unit.spark.checkpoints import WrittenCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

LOGS = PartitionRange(0, 300), PartitionRange(0, 300)
EMPTY = PartitionRange(0, 0)


def record(offset: int, at_ms: int | None = None, value: bytes | None = None) -> Record:
    """Return a record of a time and a value of its own, unless they are given."""
    at_ms = offset if at_ms is None else at_ms
    return Record(offset, at_ms, b"key", str(offset).encode() if value is None else value)


def test_a_sync_is_read_as_mirrormaker_writes_it() -> None:
    """The bytes are those of OffsetSync.java's schemas: STRING, INT32; INT64, INT64."""
    key = b"\x00\x06orders" + b"\x00\x00\x00\x03"
    value = bytes.fromhex("00000000000003e8 00000000000003e5")
    assert parse_sync(key, value) == (TopicPartition("orders", 3), OffsetSync(1000, 997))
    for wrong in (b"", b"\x00\x06ord", b"\xff\xfforders", key[:-1], key.replace(b"o", b"\xff")):
        assert parse_sync(wrong, value) is None
    assert parse_sync(key, value[:-1]) is None
    assert parse_sync(key, b"") is None
    name = "a.b_c-9" * 30
    key = struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", 0)
    assert parse_sync(key, value) == ((name, 0), (1000, 997))


ASCENDING = [(0, 0), (100, 90), (200, 180)]
MADE_ANEW = [(10, 10), (100, 90), (50, 400)]
RECREATED = [(500, 500), (600, 0), (700, 100)]


@pytest.mark.parametrize(
    ("syncs", "offset", "best"),
    [
        pytest.param(ASCENDING, 150, (100, 90), id="the nearest before the offset"),
        pytest.param(ASCENDING, 200, (200, 180), id="one at the offset itself"),
        pytest.param(ASCENDING[1:], 99, None, id="none before the offset"),
        pytest.param([], 5, None, id="no sync"),
        pytest.param([(100, 90), (5, 400)], 150, (5, 400), id="of a former source"),
        pytest.param(MADE_ANEW, 20, None, id="of two former sources"),
        # The mirror begins with record 600: those from 550 on would be skipped.
        pytest.param(RECREATED, 550, None, id="of a former mirror"),
        pytest.param(RECREATED, 650, (600, 0), id="of the present mirror"),
    ],
)
def test_the_nearest_sync_of_the_present_logs_counts(
    syncs: list[tuple[int, int]], offset: int, best: tuple[int, int] | None
) -> None:
    assert best_sync([OffsetSync(*each) for each in syncs], offset) == best


def test_behind_a_sync_one_step_is_safe_and_no_more() -> None:
    """MirrorMaker's rule: how many of the records after it were mirrored is not known."""
    sync = OffsetSync(100, 90)
    assert translate(150, *LOGS, sync=sync)[:3] == (91, 49, "offset sync")
    assert translate(100, *LOGS, sync=sync)[:3] == (90, 0, "offset sync")
    ahead_of_mirror = translate(150, LOGS[0], PartitionRange(0, 80), sync=sync)
    assert ahead_of_mirror.offset is None
    start_of_mirror = translate(150, LOGS[0], PartitionRange(170, 300), sync=sync)
    assert start_of_mirror[:2] == (170, 49)


def test_the_record_itself_is_found_in_the_mirror() -> None:
    """Among others of its time; of the ones that look the same it may be any."""
    records = [record(148), record(149, 150), record(150)]
    mirror = [record(140, 150, b"149"), record(141, 150, b"150")]
    assert translate(150, *LOGS, records=records, mirror=mirror)[:3] == (141, 0, "time")
    nearer = OffsetSync(149, 145)
    assert translate(150, *LOGS, records=records, mirror=mirror, sync=nearer)[:3] == (
        146, 0, "offset sync",
    )  # fmt: skip
    beats = [record(number, 7, b"beat") for number in range(145, 151)]
    assert translate(150, *LOGS, records=beats, mirror=beats[1:])[:3] == (146, 5, "time")


def test_a_mirror_without_the_record_is_joined_at_its_start_or_end() -> None:
    """Retention has deleted it there, or the mirror was begun after it."""
    records = [record(150)]
    emptied = PartitionRange(200, 200)
    assert translate(150, LOGS[0], emptied, records=records)[:3] == (200, 150, "end")
    begun_later = PartitionRange(30, 120)
    found = translate(150, LOGS[0], begun_later, records=records, mirror_starts_at=160)
    assert found[:3] == (30, 0, "time")


def test_a_mirror_that_begins_behind_the_record_skips_none_up_to_its_double() -> None:
    """The next record expired in the mirror; a later one of its time looks the same."""
    records = [record(10, 7, b"a"), record(11, 7, b"b")]
    mirror = [record(0, 7, b"c"), record(1, 7, b"b"), record(2, 8, b"d")]
    found = translate(11, LOGS[0], PartitionRange(0, 3), records=records, mirror=mirror)
    assert found[:3] == (0, 1, "time")
    earlier = translate(11, LOGS[0], PartitionRange(-5, 3), records=records, mirror=mirror)
    assert earlier[:3] == (1, 0, "time")


def test_the_reason_tells_if_waiting_helps() -> None:
    records = [record(150)]
    assert "wait until" in translate(150, *LOGS, records=records).note
    assert "wait until" in translate(150, LOGS[0], EMPTY, records=records).note
    for found in (
        translate(301, *LOGS, records=records),
        translate(150, *LOGS, records=records, mirror=[record(140, 151)]),
        translate(20, PartitionRange(150, 300), LOGS[1], records=records, mirror=records),
        translate(150, *LOGS, records=[record(150, -1)]),
    ):
        assert found.offset is None
        assert found.note
        assert "wait" not in found.note


RECORDS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"b"]), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(RECORDS, st.data())
def test_no_record_is_skipped_and_no_more_read_again_than_counted(
    drawn: list[tuple[int, bytes, bool]], data: st.DataObject
) -> None:
    """Some are not mirrored, or expire in the mirror.

    They come in any order, or some that follow each other look alike; not both, as then a later
    record could be taken for one that was not mirrored.
    """
    if data.draw(st.booleans()):
        log = [record(number, at_ms) for number, (at_ms, *_) in enumerate(drawn)]
    else:
        drawn = sorted(drawn, key=lambda each: each[:2])
        log = [record(number, at_ms, value) for number, (at_ms, value, _) in enumerate(drawn)]
    mirrored = [number for number, (*_, kept) in enumerate(drawn) if kept]
    offset = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, len(mirrored)))
    synced = data.draw(st.lists(st.sampled_from(mirrored), max_size=4)) if mirrored else []
    mirror = [Record(place, *log[number][1:]) for place, number in enumerate(mirrored)][start:]
    records = log[: offset + 1]
    anchor = records[-1]
    first = next((n for n, each in enumerate(mirror) if each.at_ms >= anchor.at_ms), len(mirror))
    found = translate(
        offset,
        PartitionRange(0, len(log)),
        PartitionRange(start, len(mirrored)),
        sync=best_sync((OffsetSync(n, mirrored.index(n)) for n in sorted(synced)), offset),
        records=records,
        mirror=mirror[first:],
        mirror_starts_at=mirror[0].place_in(log) if mirror else None,
    )
    next_in_mirror = max(start, bisect_left(mirrored, offset))
    if found.offset is not None:
        assert found.offset <= next_in_mirror
        assert found.again is not None
        assert next_in_mirror - found.offset <= found.again


def test_a_checkpoint_without_a_finished_batch_has_no_offsets(tmp_path: Path) -> None:
    """The plan was empty, its startingOffsets ``{}``, and all was well."""
    WrittenCheckpoint(tmp_path)
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    with (
        OffsetMigration(("west", nowhere), ("east", nowhere)) as migration,
        pytest.raises(InvalidValueError, match="has no finished batch; start the query"),
    ):
        migration.plan_checkpoint(str(tmp_path))


def test_records_that_a_group_reads_again_in_the_target_are_counted() -> None:
    """A copy may take a group back that has gone on in the target already."""
    new = Translation(10, 2, "time")
    assert new.over(None) == new.over(5) == new.over(12) == new
    assert new.over(30) == Translation(10, 20, "time", "the group goes back from 30")
    assert unknown("gone").over(30) == unknown("gone")
