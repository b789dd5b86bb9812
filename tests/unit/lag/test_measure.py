"""The lag of groups at one moment."""

from __future__ import annotations

from offsetmgr.errors import KafkaRequestError
from offsetmgr.lag.measure import LogTimeline, measure, worst_seconds
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster

NOW_S = 1_000_000.0
ORDERS = [TopicPartition("orders", number) for number in range(4)]


def cluster() -> FakeCluster:
    made = FakeCluster()
    made.ends = {ORDERS[0]: 100, ORDERS[1]: 50, ORDERS[2]: 10}
    return made


def test_lag_of_each_kind_of_partition() -> None:
    """Never negative; absent where nothing is committed or the log is gone."""
    kafka = cluster()
    for number, offset in ((0, 70), (1, 60), (3, 5)):
        kafka.commit("etl", ORDERS[number], offset)
    member = kafka.member("etl", ORDERS[0], ORDERS[2])
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert [each.lag for each in found.partitions] == [30, 0, None, None]
    behind, beyond, uncommitted, gone = found.partitions
    assert behind.member == uncommitted.member == member
    assert beyond.beyond_end
    assert not behind.beyond_end
    assert (uncommitted.committed, uncommitted.end) == (None, 10)
    assert gone.committed == OffsetAndMetadata(5)
    assert isinstance(gone.error, KafkaRequestError)
    assert found.total == 30
    assert found.exists


def test_committed_offsets_are_read_before_the_ends() -> None:
    """Else what arrives in between would make a lag below zero; and each is asked once."""
    kafka = cluster()
    for group in ("a", "b", "c"):
        kafka.commit(group, ORDERS[0], 70)
    measure(kafka, ["a", "b", "c"], NOW_S)
    assert kafka.asked[:3] == ["describe", "committed", "log_ends"]
    assert set(kafka.asked[3:]) == {"offsets_at"}


def test_a_group_without_commits() -> None:
    """Its lag is unknown, not 0; one that does not exist is known as such."""
    kafka = cluster()
    kafka.member("new", ORDERS[0])
    new, absent = measure(kafka, ["new", "absent"], NOW_S)
    assert (new.total, new.seconds, new.exists) == (None, None, True)
    assert not absent.exists


def test_no_answer() -> None:
    """A group that could not be read has an error in the place of numbers."""
    kafka = cluster()
    kafka.down = True
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert isinstance(found.error, KafkaRequestError)
    assert found.partitions == ()


def test_seconds() -> None:
    """The age of the first unread record is found in the log's own times, in a few questions."""
    kafka = cluster()
    now_s = NOW_S
    # A record each second: that at 70 was written 30 s ago.
    kafka.times = {ORDERS[0]: [(now_s - 100 + n, n) for n in range(100)]}
    kafka.commit("etl", ORDERS[0], 70)
    kafka.commit("done", ORDERS[1], 50)
    etl, done = measure(kafka, ["etl", "done"], now_s)
    assert etl.seconds is not None
    assert abs(etl.seconds - 30) < 1
    assert done.seconds == 0
    assert kafka.asked.count("offsets_at") < 5


def test_known_ends_of_a_log_are_not_asked_for() -> None:
    """A watcher has measured them; Kafka is asked only about offsets of before its watch."""
    kafka = cluster()
    kafka.commit("etl", ORDERS[0], 70)
    known = {ORDERS[0]: LogTimeline().with_end(60, NOW_S - 40).with_end(80, NOW_S - 20)}
    (found,) = measure(kafka, ["etl"], NOW_S, known)
    assert found.seconds == 30
    assert "offsets_at" not in kafka.asked
    kafka.commit("etl", ORDERS[0], 59)
    measure(kafka, ["etl"], NOW_S, known)
    assert "offsets_at" in kafka.asked
    kafka.asked.clear()
    kafka.ends[ORDERS[0]] = 62  # made anew
    measure(kafka, ["etl"], NOW_S, known)
    assert "offsets_at" in kafka.asked


def test_seconds_of_a_group() -> None:
    """The worst of those that are behind; partitions that are not say nothing about the others."""
    assert worst_seconds([(0, 0.0), (0, 0.0)]) == 0
    assert worst_seconds([(0, 0.0), (5, 3.0), (9, None)]) == 3
    assert worst_seconds([(0, 0.0), (5, None)]) is None
    assert worst_seconds([(None, None)]) is None


def test_seconds_beyond_a_week() -> None:
    """Older than all that was asked for is told by the rate, never left out."""
    kafka = cluster()
    day = 86_400.0
    now_s = 100 * day
    kafka.times = {ORDERS[0]: [(n * day, n) for n in range(100)]}
    kafka.commit("etl", ORDERS[0], 10)
    (found,) = measure(kafka, ["etl"], now_s)
    assert found.seconds is not None
    assert 80 * day < found.seconds < 100 * day
