"""Offsets of a mirror: never beyond the next record to read, and as near as can be known."""

from __future__ import annotations

import struct
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.admin.migration import (
    OffsetSync,
    Translation,
    best_sync,
    parse_sync,
    translate,
)
from offsetmgr.types import PartitionRange, TopicPartition


def translated(
    offset: int, source: tuple[int, int], target: tuple[int, int], **pairs: OffsetSync | None
) -> Translation:
    return translate(offset, PartitionRange(*source), PartitionRange(*target), **pairs)


LOGS = (0, 300), (0, 300)


def test_a_sync_is_read_as_mirrormaker_writes_it() -> None:
    """The bytes are those of OffsetSync.java's schemas: STRING, INT32; INT64, INT64."""
    key = b"\x00\x06orders" + b"\x00\x00\x00\x03"
    value = bytes.fromhex("00000000000003e8 00000000000003e5")
    assert parse_sync(key, value) == (TopicPartition("orders", 3), OffsetSync(1000, 997))
    for wrong in (b"", b"\x00\x06ord", key[:-1]):
        with pytest.raises(ValueError, match="no offset sync"):
            parse_sync(wrong, value)
    with pytest.raises(ValueError, match="no offset sync"):
        parse_sync(key, value[:-1])


def test_the_nearest_sync_before_the_offset_counts() -> None:
    syncs = [OffsetSync(0, 0), OffsetSync(100, 90), OffsetSync(200, 180)]
    assert best_sync(syncs, 150) == (100, 90)
    assert best_sync(syncs, 200) == (200, 180)
    assert best_sync(syncs[1:], 99) is None
    assert best_sync([], 5) is None


def test_syncs_of_a_source_that_was_made_anew_count_no_more() -> None:
    assert best_sync([OffsetSync(100, 90), OffsetSync(5, 400)], 150) == (5, 400)
    made_anew = [OffsetSync(10, 10), OffsetSync(100, 90), OffsetSync(50, 400)]
    assert best_sync(made_anew, 20) is None


def test_behind_a_sync_one_step_is_safe_and_no_more() -> None:
    """MirrorMaker's rule: how many of the records after it were mirrored is not known."""
    sync = OffsetSync(100, 90)
    assert translated(150, *LOGS, sync=sync)[:3] == (91, 49, "offset sync")
    assert translated(100, *LOGS, sync=sync)[:3] == (90, 0, "offset sync")


def test_the_nearer_of_sync_and_time_is_taken() -> None:
    for same_record, found in (
        (OffsetSync(150, 140), (140, 0, "time")),
        (OffsetSync(20, 18), (91, 49, "offset sync")),
    ):
        both = {"sync": OffsetSync(100, 90), "same_record": same_record}
        assert translated(150, *LOGS, **both)[:3] == found


def test_records_of_one_time_are_read_again_and_counted() -> None:
    assert translated(150, *LOGS, same_record=OffsetSync(140, 130))[:2] == (131, 9)


def test_what_cannot_be_known_is_left_alone_and_said() -> None:
    assert "does not have the record" in translated(150, *LOGS).note
    assert "beyond the end" in translated(301, *LOGS).note
    assert translated(150, (0, 300), (0, 80), sync=OffsetSync(100, 90)).offset is None


def test_a_mirror_that_has_deleted_the_record_is_joined_at_its_start() -> None:
    assert translated(150, (0, 300), (170, 300), sync=OffsetSync(150, 150))[:2] == (170, 0)


def test_an_empty_partition_is_copied() -> None:
    assert translated(0, (0, 0), (0, 0))[:2] == (0, 0)


RECORDS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30)


@given(RECORDS, st.data())
def test_no_record_is_skipped_and_no_more_read_again_than_counted(
    records: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Records come in any order of time, and some are not mirrored."""
    mirrored = [number for number, (_, kept) in enumerate(records) if kept]
    offset = data.draw(st.integers(0, len(records)))
    synced = data.draw(st.lists(st.sampled_from(mirrored), max_size=4)) if mirrored else []
    anchor = offset if offset < len(records) else offset - 1
    first = next(n for n, (at, _) in enumerate(records) if at >= records[anchor][0])
    there = next(
        (place for place, n in enumerate(mirrored) if records[n][0] >= records[anchor][0]), None
    )
    same = there is not None and mirrored[there] == first
    found = translated(
        offset,
        (0, len(records)),
        (0, len(mirrored)),
        sync=best_sync((OffsetSync(n, mirrored.index(n)) for n in sorted(synced)), offset),
        same_record=OffsetSync(first, there) if there is not None and same else None,
    )
    next_in_mirror = bisect_left(mirrored, offset)
    if found.offset is not None:
        assert found.offset <= next_in_mirror
        assert found.again is not None
        assert next_in_mirror - found.offset <= found.again


def test_the_key_of_a_sync_may_hold_any_topic() -> None:
    name = "a.b_c-9" * 30
    key = struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", 0)
    assert parse_sync(key, struct.pack(">qq", 1, 2))[0] == (name, 0)
