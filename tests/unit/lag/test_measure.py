"""The lag of groups at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetmgr.errors import KafkaRequestError
from offsetmgr.lag.ages import measure
from offsetmgr.lag.measure import worst_seconds
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterable

NOW_S = 1_000_000.0
ORDERS = [TopicPartition("orders", number) for number in range(4)]


def cluster() -> FakeCluster:
    made = FakeCluster()
    made.ends = {ORDERS[0]: 100, ORDERS[1]: 50, ORDERS[2]: 10}
    return made


def test_the_lag_of_each_kind_of_partition() -> None:
    """Never negative; absent where nothing is committed or the log is gone."""
    kafka = cluster()
    for number, offset in ((0, 70), (1, 60), (3, 5)):
        kafka.commit("etl", ORDERS[number], offset)
    member = kafka.member("etl", ORDERS[0], ORDERS[2])
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert [each.lag for each in found.partitions] == [30, 0, None, None]
    behind, beyond, uncommitted, gone = found.partitions
    assert behind.member == uncommitted.member == member
    assert beyond.out_of_range
    assert not behind.out_of_range
    assert (uncommitted.committed, uncommitted.end) == (None, 10)
    assert gone.committed == OffsetAndMetadata(5)
    assert isinstance(gone.error, KafkaRequestError)
    assert found.total == 30
    assert found.exists


def test_committed_offsets_are_read_before_the_ends() -> None:
    """Records that arrive in between would make a lag below zero; and each is asked once."""
    kafka = cluster()
    for group in ("a", "b", "c"):
        kafka.commit(group, ORDERS[0], 70)
    measure(kafka, ["a", "b", "c"], NOW_S)
    assert kafka.asked[:3] == ["describe", "committed", "log_ranges"]
    assert kafka.asked[3:] == ["next_records"]


def test_the_lag_of_a_group_without_commits_is_unknown() -> None:
    """Its lag is unknown, not 0; one that does not exist is known as such."""
    kafka = cluster()
    kafka.member("new", ORDERS[0])
    new, absent = measure(kafka, ["new", "absent"], NOW_S)
    assert (new.total, new.seconds, new.exists) == (None, None, True)
    assert not absent.exists


def test_an_unreadable_group_has_an_error() -> None:
    """A group that could not be read has an error in the place of numbers."""
    kafka = cluster()
    kafka.down = True
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert isinstance(found.error, KafkaRequestError)
    assert found.partitions == ()


def test_a_group_is_as_late_as_its_latest_partition() -> None:
    """The worst of those that are behind; partitions that are not say nothing about the others."""
    assert worst_seconds([(0, 0.0), (0, 0.0)]) == 0
    assert worst_seconds([(0, 0.0), (5, 3.0), (9, None)]) == 3
    assert worst_seconds([(0, 0.0), (5, None)]) is None
    assert worst_seconds([(None, None)]) is None


def test_offsets_outside_their_log_are_out_of_range() -> None:
    """Beyond its end or before its start; an empty log, and both its ends, are within."""
    kafka = cluster()
    kafka.starts = {ORDERS[0]: 20, ORDERS[1]: 50}
    for number, offset in ((0, 19), (1, 50), (2, 11)):
        kafka.commit("etl", ORDERS[number], offset)
    (found,) = measure(kafka, ["etl"], NOW_S)
    assert [each.out_of_range for each in found.partitions] == [True, False, True]


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
