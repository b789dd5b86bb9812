"""Lag in seconds: by measured ends of a log, else by the time of the record itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.lag.ages import POINTS, LogTimeline, RecordAges, measure
from offsetmgr.types import TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster

NOW_S = 1_000_000.0
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def timeline(*points: tuple[int, float]) -> LogTimeline:
    made = LogTimeline()
    for end, at_s in points:
        made = made.with_end(end, at_s)
    return made


@pytest.mark.parametrize(
    ("committed", "seconds"),
    [
        (300, 0.0),  # at the end
        (400, 0.0),  # beyond it
        (200, 20.0),  # at a measured end
        (150, 25.0),  # between two
        (100, 30.0),  # at the oldest
        (50, None),  # before it
    ],
)
def test_ages_are_interpolated_between_measured_ends(committed: int, seconds: float | None) -> None:
    """Time passes evenly between two; of what was written before the first, nothing is made up."""
    known = timeline((100, 0.0), (200, 10.0), (300, 20.0))
    assert known.seconds_behind(committed, 30.0) == seconds


def test_a_quiet_topic_makes_no_record_older() -> None:
    """A record is as old as it is, however long the log stood still before it."""
    known = timeline((100, 0.0), (100, 3600.0), (101, 3610.0))
    assert known.seconds_behind(100, 3620.0) == 20.0
    assert known.seconds_behind(101, 3620.0) == 0.0


def test_distant_ends_give_no_age() -> None:
    """A burst after an hour without a round may be an hour old, or a second."""
    known = timeline((100, 0.0), (200, 3600.0))
    assert known.seconds_behind(150, 3610.0) is None
    assert known.seconds_behind(150, 40_000.0) == 38_200  # in which half an hour makes no odds


def test_a_shorter_log_begins_a_new_timeline() -> None:
    """The topic was recreated: ends of the former log do not count."""
    known = timeline((1000, 0.0), (2000, 10.0), (5, 20.0), (15, 30.0))
    assert known.seconds_behind(10, 30.0) == 5.0


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


def cluster() -> FakeCluster:
    """A log of a record each second until now, with one group at its record of 30 s ago."""
    made = FakeCluster()
    made.ends = {P0: 100}
    made.times = {P0: [(NOW_S - 100 + number, number) for number in range(100)]}
    made.commit("etl", P0, 70)
    return made


def test_the_time_of_the_first_uncommitted_record_is_read() -> None:
    """In one question for all groups, also of a group that is far behind."""
    kafka = cluster()
    kafka.commit("late", P0, 0)
    kafka.ends[P1] = 50
    kafka.commit("done", P1, 50)
    etl, late, done = measure(kafka, ["etl", "late", "done"], NOW_S)
    assert (etl.seconds, late.seconds, done.seconds) == (30, 100, 0)
    assert kafka.asked.count("next_records") == 1


def test_an_unreadable_record_has_no_age_and_a_reason() -> None:
    """Without READ on the topic the lag in records is all there is."""
    kafka = cluster()
    del kafka.times[P0]
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (30, None)
    assert "lacks READ on orders" in etl.partitions[0].seconds_unknown


def test_a_record_with_a_time_in_the_future_is_not_fresh_for_years() -> None:
    """Its producer's clock is wrong: measured ends tell the age, or it is unknown and says why."""
    kafka = cluster()
    kafka.times[P0] = [(NOW_S + 1e9, number) for number in range(100)]
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (30, None)
    assert etl.partitions[0].seconds_unknown == "the record at offset 70 has a time in the future"
    ages = RecordAges(kafka)
    ages.timelines = {P0: timeline((60, NOW_S - 40), (80, NOW_S - 20))}
    for number in range(3):  # it is read once the offset rests
        (etl,) = ages.fill([etl], NOW_S + number, is_round=True)
        assert etl.seconds == 30 + number


def test_markers_of_transactions_do_not_count_as_lag() -> None:
    """Aborted records neither; where a transaction is open, the age is unknown and says why."""
    kafka = cluster()
    kafka.times[P0] = kafka.times[P0][:70]
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (0, 0)

    kafka.held_at = 80
    (etl,) = measure(kafka, ["etl"], NOW_S)
    assert (etl.total, etl.seconds) == (30, None)
    assert "open transaction holds back the records from offset 80" in (
        etl.partitions[0].seconds_unknown
    )


def test_measured_ends_save_the_question() -> None:
    """A watcher has measured them; records are read only where no two are close."""
    kafka, ages = cluster(), RecordAges(cluster())
    ages.timelines = {P0: timeline((60, NOW_S - 40), (80, NOW_S - 20))}
    (etl,) = measure(kafka, ["etl"], NOW_S, ages)
    assert etl.seconds == 30
    kafka.commit("etl", P0, 59)
    (etl,) = measure(kafka, ["etl"], NOW_S, ages)
    assert etl.seconds == 41


def test_the_record_at_a_resting_offset_is_read_once() -> None:
    """The round in which it first rests reads it; later rounds, and others who ask, remember it."""
    kafka = cluster()
    ages = RecordAges(kafka)
    ages.timelines = {P0: timeline((60, NOW_S - 40), (80, NOW_S - 20))}
    found = measure(kafka, ["etl"], NOW_S)
    kafka.asked.clear()
    for number in range(4):
        (etl,) = ages.fill(found, NOW_S + number, is_round=True)
        assert etl.seconds == 30 + number
        assert kafka.asked.count("next_records") == min(number, 1)
