"""A partition of a view: its numbers, its back-off, and when its stored rows are of no use."""

from __future__ import annotations

import pytest

from offsetmgr.answers import PartitionLog
from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.partition_table import (
    PendingRows,
    Progress,
    TableState,
    beyond_log,
    missed_rows,
)

DAY_S = 86_400.0


def test_rates_are_of_the_last_ten_seconds() -> None:
    part = Progress(0, 0.0)
    for second in range(20):
        part.sample(float(second))
        part.wrote(100, second, None, float(second))
    assert part.stats(20.0).rows_per_s == pytest.approx(100)


def test_a_partition_that_is_behind_and_silent_for_two_minutes_is_stalled() -> None:
    """One without new messages is not."""
    part = Progress(0, 0.0)
    part.connect(start=0, target=1, now_s=0.0)
    part.high_watermark = 1
    part.wrote(1, 0, 1, 1.0)
    assert not part.stats(500.0).stalled
    part.high_watermark = 2
    part.wrote(0, None, None, 400.0)
    assert (part.stats(100.0).stalled, part.stats(121.0).stalled) == (False, True)


def test_connections_wait_longer_after_each_failure() -> None:
    """0, 10, 20 … 120 s; it starts over once a connection has lasted a minute."""
    part = Progress(0, 0.0)
    waits = [part.disconnect("away", 0.0) for _ in range(15)]
    assert waits == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 120, 120]
    assert (part.state, part.error) == (TableState.CONNECTING, "away")
    assert (part.is_due(119.0), part.is_due(120.0)) == (False, True)
    part.start_over(50.0)
    assert part.is_due(50.0)
    part.connect(start=0, target=0, now_s=100.0)
    assert part.disconnect("away", 159.0) == 120
    part.connect(start=0, target=0, now_s=200.0)
    assert part.disconnect("away", 260.0) == 0


@pytest.mark.parametrize(
    ("stored", "log", "away_s", "reason"),
    [
        (None, (0, 0), DAY_S * 9, ""),
        (9, (0, 10), 0.0, ""),
        (9, (10, 10), DAY_S, ""),
        (9, (0, 9), 0.0, "the log ends at offset 9, but the message at 9 is stored"),
        (3, (0, 0), 0.0, "the log ends at offset 0, but the message at 3 is stored"),
        (9, (15, 20), 0.0, "5 messages are gone that were not read"),
        (9, (0, 10), -2 * DAY_S, "read to its end -172800 s ago"),  # the clock was set back
        (9, (0, 10), DAY_S + 1, "read to its end 86401 s ago, and tombstones stay in it for 86400"),
    ],
)
def test_stored_rows_are_not_used_once_deletions_can_be_missed(
    stored: int | None, log: tuple[int, int], away_s: float, reason: str
) -> None:
    """A log that ends before the stored message is another one."""
    found = PartitionLog(*log)
    text = beyond_log(stored, found, is_outside=False)
    text = text or missed_rows(stored, found, away_s, DAY_S)
    assert reason in text
    assert bool(text) == bool(reason)
    is_cut = stored is not None and "that were not read" not in text
    assert bool(beyond_log(stored, found, is_outside=True)) is is_cut


def test_pending_rows_are_read_before_they_are_stored() -> None:
    """An update callback sees its own changes."""
    storage = MemoryStorage()
    storage.apply({b"a": b"1", b"b": b"2"}, {0: 1})
    rows = PendingRows(storage)
    rows.put(b"a", b"3")
    rows.delete(b"b")
    assert [rows.get(key) for key in (b"a", b"b", b"c")] == [b"3", None, None]
    assert storage.get(b"a") == b"1"
    for wrong in (("a", b"1"), (b"a", "1"), (b"a", None)):
        with pytest.raises(InvalidValueError, match="is not a key and a value in bytes"):
            rows.put(*wrong)
