"""The lag of groups at one moment: in records, and in seconds.

Seconds are known by measured ends of a log, else by the time of the record itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError, KafkaRequestError
from offsetmgr.lag.measure import POINTS, LogTimeline, RecordAges, measure, worst_seconds
from offsetmgr.lag.store_reader import open_cluster
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NOW_S = 1_000_000.0
ORDERS = [TopicPartition("orders", number) for number in range(4)]


def cluster() -> FakeCluster:
    made = FakeCluster()
    made.ends = {ORDERS[0]: 100, ORDERS[1]: 50, ORDERS[2]: 10}
    return made


def test_the_lag_of_each_kind_of_partition() -> None:
    """Never negative; absent where nothing is committed, or the log or the group is gone.

    An offset at the start of its log is within it.
    """
    kafka = cluster()
    kafka.starts = {ORDERS[0]: 70}
    for number, offset in ((0, 70), (1, 60), (3, 5)):
        kafka.commit("etl", ORDERS[number], offset)
    kafka.commit("before", ORDERS[0], 69)
    member = kafka.member("etl", ORDERS[0], ORDERS[2])
    kafka.member("new", ORDERS[0])
    found, before, new, absent = measure(kafka, ["etl", "before", "new", "absent"], NOW_S)
    assert [each.lag for each in found.partitions] == [30, 0, None, None]
    behind, _, uncommitted, gone = found.partitions
    assert behind.member == uncommitted.member == member
    assert [each.out_of_range for each in found.partitions] == [False, True, False, False]
    assert before.partitions[0].out_of_range
    assert (uncommitted.committed, uncommitted.end) == (None, 10)
    assert gone.committed == OffsetAndMetadata(5)
    assert isinstance(gone.error, KafkaRequestError)
    assert (found.total, found.exists) == (30, True)
    assert (new.total, new.seconds, new.exists) == (None, None, True)
    assert not absent.exists


def test_a_group_is_as_late_as_its_latest_partition() -> None:
    """The worst of those that are behind; partitions that are not say nothing about the others."""
    assert worst_seconds([(0, 0.0), (0, 0.0)]) == 0
    assert worst_seconds([(0, 0.0), (5, 3.0), (9, None)]) == 3
    assert worst_seconds([(0, 0.0), (5, None)]) is None
    assert worst_seconds([(None, None)]) is None


def test_a_log_cut_while_it_is_read_is_in_range() -> None:
    """Kafka Streams deletes records as soon as it has committed them: the offset is read again."""

    class Cut(FakeCluster):
        def log_ranges(self, partitions: Iterable[TopicPartition]) -> Any:
            self.commit("etl", ORDERS[0], 30)
            self.starts[ORDERS[0]] = 30
            return super().log_ranges(partitions)

    kafka = Cut()
    kafka.ends = {ORDERS[0]: 100}
    kafka.commit("etl", ORDERS[0], 20)
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert (found.partitions[0].out_of_range, found.total) == (False, 70)


def test_any_name_of_a_group_or_topic_is_read_from_a_database(tmp_path: Path) -> None:
    """As from Kafka: another program may have committed it there.

    The kind: one row with a name that is none, which hides the other partitions of its group.
    """
    url, names = f"sqlite:///{tmp_path}/offsets.db", ["", "two\nlines", "x" * 300]
    odd = TopicPartition("a b", -1)
    offsets = dict.fromkeys((ORDERS[0], odd), OffsetAndMetadata(5))
    with SqlOffsetStore(url) as store:
        store.create_tables()
        for name in names:
            store.commit(name, offsets)
    with open_cluster({"bootstrap.servers": "127.0.0.1:1"}, url, 20.0) as reader:
        assert reader.committed(names) == dict.fromkeys(names, offsets)
        assert isinstance(reader.log_ranges([odd])[odd], InvalidValueError)


def test_a_share_group_is_not_reported_as_missing() -> None:
    """Kafka describes it as dead, and lists it with its type.

    Without that list a group without offsets is not called missing: it may be such a group.
    """
    kafka = FakeCluster()
    kafka.commit("etl", ORDERS[0], 20)
    shared, missing = measure(kafka, ["shared", "missing"], NOW_S)
    assert shared.description is not None
    assert (shared.description.state, shared.description.type) == ("Stable", "share")
    assert (shared.exists, missing.exists) == (True, False)
    kafka.unlisted = True
    unknown, known = measure(kafka, ["shared", "etl"], NOW_S)
    assert (unknown.description, str(unknown.error)[:14]) == (None, "list of groups")
    assert known.error is None


def timeline(*points: tuple[int, float]) -> LogTimeline:
    made = LogTimeline()
    for end, at_s in points:
        made = made.with_end(end, at_s)
    return made


EVEN = timeline((100, 0.0), (200, 10.0), (300, 20.0))
QUIET = timeline((100, 0.0), (100, 3600.0), (101, 3610.0))
BURST = timeline((100, 0.0), (200, 3600.0))
RECREATED = timeline((1000, 0.0), (2000, 10.0), (5, 20.0), (15, 30.0))


@pytest.mark.parametrize(
    ("known", "committed", "now_s", "seconds"),
    [
        pytest.param(EVEN, 300, 30.0, 0.0, id="at the end"),
        pytest.param(EVEN, 400, 30.0, 0.0, id="beyond the end"),
        pytest.param(EVEN, 200, 30.0, 20.0, id="at a measured end"),
        pytest.param(EVEN, 150, 30.0, 25.0, id="between two ends"),
        pytest.param(EVEN, 100, 30.0, 30.0, id="at the oldest end"),
        pytest.param(EVEN, 50, 30.0, None, id="before the oldest end"),
        pytest.param(QUIET, 100, 3620.0, 20.0, id="written after an hour of quiet"),
        pytest.param(QUIET, 101, 3620.0, 0.0, id="all is read of a quiet topic"),
        # It may be an hour old, or a second; in half a day that makes no odds.
        pytest.param(BURST, 150, 3610.0, None, id="between distant ends"),
        pytest.param(BURST, 150, 40_000.0, 38_200, id="long after distant ends"),
        pytest.param(RECREATED, 10, 30.0, 5.0, id="ends of the former log do not count"),
    ],
)
def test_ages_are_interpolated_between_measured_ends(
    known: LogTimeline, committed: int, now_s: float, seconds: float | None
) -> None:
    """Time passes evenly between two; of what was written before the first, nothing is made up."""
    assert known.seconds_behind(committed, now_s) == seconds


def test_a_timeline_is_bounded() -> None:
    """However long a log is watched: few ends are kept, the oldest and the newest among them."""
    made = LogTimeline()
    for number in range(1_000):
        made = made.with_end(number, float(number))
        assert len(made.points) <= POINTS
    assert (made.points[0].offset, made.points[-1].offset) == (0, 999)
    assert made.seconds_behind(998, 999.0) == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, 50)), min_size=1, max_size=30),
    st.integers(0, 2000),
    st.floats(0, 50),
)
def test_an_age_is_never_negative(
    steps: list[tuple[int, float]], committed: int, later_s: float
) -> None:
    """It is 0 or more, 0 at the end of the log, and no younger for less that is committed."""
    made, end, now_s = LogTimeline(), 0, 0.0
    for written, passed_s in steps:
        end, now_s = end + written, now_s + passed_s
        made = made.with_end(end, now_s)
    now_s += later_s
    behind = made.seconds_behind(committed, now_s)
    assert behind is None or behind >= 0
    assert made.seconds_behind(end, now_s) == 0
    further = made.seconds_behind(max(committed - 1, 0), now_s)
    if behind is not None and further is not None and committed <= end:
        assert further >= behind - 1e-6


def timed_cluster() -> FakeCluster:
    """A log of a record each second until now, with one group at its record of 30 s ago."""
    made = FakeCluster()
    made.ends = {ORDERS[0]: 100}
    made.times = {ORDERS[0]: [(NOW_S - 100 + number, number) for number in range(100)]}
    made.commit("etl", ORDERS[0], 70)
    return made


def test_a_record_with_a_time_in_the_future_is_not_fresh_for_years() -> None:
    """Its producer's clock is wrong: measured ends tell the age, or it is unknown and says why."""
    kafka = timed_cluster()
    kafka.times[ORDERS[0]] = [(NOW_S + 1e9, number) for number in range(100)]
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (30, None)
    assert etl.partitions[0].seconds_unknown == "the record at offset 70 has a time in the future"
    ages = RecordAges(kafka)
    ages.timelines = {ORDERS[0]: timeline((60, NOW_S - 40), (80, NOW_S - 20))}
    for number in range(3):  # it is read once the offset rests
        (etl,) = ages.fill([etl], NOW_S + number, is_round=True)
        assert etl.seconds == 30 + number


def test_markers_of_transactions_do_not_count_as_lag() -> None:
    """Aborted records neither; where a transaction is open, the age is unknown and says why."""
    kafka = timed_cluster()
    kafka.times[ORDERS[0]] = kafka.times[ORDERS[0]][:70]
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (0, 0)

    kafka.held_at = 80
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (30, None)
    why = "an open transaction holds back the records from offset 80 on"
    assert etl.partitions[0].seconds_unknown == why


def test_the_record_at_a_resting_offset_is_read_once() -> None:
    """The round in which it first rests reads it; later rounds, and others who ask, remember it."""
    kafka = timed_cluster()
    ages = RecordAges(kafka)
    ages.timelines = {ORDERS[0]: timeline((60, NOW_S - 40), (80, NOW_S - 20))}
    found = measure(kafka, ["etl"], NOW_S)
    kafka.asked.clear()
    for number in range(4):
        (etl,) = ages.fill(found, NOW_S + number, is_round=True)
        assert etl.seconds == 30 + number
        assert kafka.asked.count("next_records") == min(number, 1)
