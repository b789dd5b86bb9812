"""Groups that are watched from round to round, on a clock of the test's."""

from __future__ import annotations

from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.lag.burrow import INTERVALS, Status
from offsetmgr.lag.report import group_summary
from offsetmgr.lag.watcher import Watcher
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import ORDERS, ROUND_S, FakeCluster, Watched

KEY = ManagerKey("etl", *ORDERS)


def test_the_summary_of_a_group_has_the_lag_of_its_last_rounds() -> None:
    """A round in which it could not be read has none; rates and time to catch up are of sums."""
    watched = Watched()
    watched.round(100, 40)
    assert (watched.partition().rate_in, watched.partition().catch_up_s) == (None, None)
    watched.round(160, 130)
    found = group_summary(watched.watcher.view["etl"])
    assert (found["lag"], found["lag_points"], found["partitions"]) == (30, [60, 30], 1)
    assert (found["rate_in"], found["rate_out"], found["catch_up_seconds"]) == (2.0, 3.0, 30.0)
    watched.kafka.down = True
    watched.round(170, 140)
    watched.kafka.down = False
    watched.round(170, 170)
    assert watched.watcher.view["etl"].lag_points == (60, 30, None, 0)


def test_an_hour_of_a_job_is_judged_as_an_operator_would() -> None:
    """Through an hour of a job's life the status is what an operator would say."""
    watched = Watched()
    end = 0
    for _ in range(20):  # it keeps up
        end += 300
        watched.round(end, end)
        assert watched.status() is Status.OK
    committed = end
    seen = set()
    for _ in range(20):  # twice the records arrive
        end += 600
        committed += 300
        watched.round(end, committed)
        seen.add(watched.status())
    assert seen == {Status.OK, Status.WARN}
    assert watched.status() is Status.WARN
    assert watched.partition().catch_up_s is None
    for _ in range(20):  # more executors
        end += 300
        committed = min(committed + 600, end)
        watched.round(end, committed)
    assert watched.status() is Status.OK
    assert watched.partition().lag == 0
    for _ in range(20):  # the driver hangs
        end += 300
        watched.round(end)
    assert watched.status() is Status.ERR
    assert watched.partition().status is Status.STOP
    watched.round(end, committed - 3000)  # and is started again, from too far back
    assert watched.partition().status is Status.REWIND
    watched.round(end, end)
    assert watched.status() is Status.OK
    assert watched.now_s == 1_000_000 + 82 * ROUND_S


def test_a_new_group_raises_no_alarm() -> None:
    """The age of an offset from before the watch is unknown: no alarm for ten rounds."""
    watched = Watched()
    for _ in range(10):
        watched.round(1_000, 10)
        assert watched.status() is Status.OK
    watched.round(1_000, 10)
    assert watched.status() is Status.ERR


def test_frequent_commits_are_merged() -> None:
    """A commit too close to the one before takes its place, at its time: not forever."""
    watched = Watched(min_distance_s=30)
    watched.round(100, 0, logged=[])
    begun_s = watched.now_s
    commits = [CommitRecord(KEY, at_s, at_s=begun_s + at_s) for at_s in range(10, 100, 10)]
    watched.round(100, 90, logged=commits)
    found = watched.partition().commits
    seen = [(each.offset, each.timestamp_ms / 1_000 - begun_s) for each in found]
    assert seen == [(20, 0), (50, 30), (80, 60), (90, 90)]


def test_a_commit_counts_once() -> None:
    """Read as the committed offset it is not another one, nor is an older one a step back."""
    watched = Watched()
    watched.round(100, 50, logged=[])
    at_s = watched.now_s + 5
    late = CommitRecord(KEY, 40, at_s=watched.now_s - 60)
    watched.round(100, 60, logged=[late, CommitRecord(KEY, 60, at_s=at_s)])
    assert [(each.offset, each.lag) for each in watched.partition().commits] == [(50, 50), (60, 40)]
    assert watched.partition().commits[-1].timestamp_ms == at_s * 1000


def test_hidden_commits_do_not_make_a_stopped_group() -> None:
    """An open transaction, of whatever group, hides the records behind it as long as it lasts."""
    watched = Watched()
    for committed in range(0, 300, 10):
        watched.round(1_000, committed, logged=[])
        assert watched.status() is Status.OK
    late = [CommitRecord(KEY, at_s, at_s=watched.now_s - 300 + at_s) for at_s in range(290)]
    watched.round(1_000, 290, logged=late)  # the transaction has ended
    assert [each.offset for each in watched.partition().commits] == [*range(280, 290)]


def test_a_clock_that_is_set_back_hides_no_stopped_group() -> None:
    """The group is judged as one that was first seen then; its lag is not 0 s old for an hour."""
    watched = Watched()
    for _ in range(12):
        watched.round(100, 100)
    watched.now_s -= 3_600
    for end in range(110, 230, 10):
        watched.round(end)
        assert watched.partition().seconds != 0
    assert watched.status() is not Status.OK
    assert watched.partition().rate_in is not None


def test_an_offset_outside_its_log_is_trouble_at_once() -> None:
    """No window is needed; with the group's other troubles it is the worst; back in the log, none.

    The committed offset of a group may be beyond the end (a recreated topic) or before the start
    (records expired unread): lag is 0, or too high, and says nothing.
    """
    watched = Watched()
    watched.round(2_500, 999_999)
    assert (watched.status(), watched.partition().lag) == (Status.OUT_OF_RANGE, 0)
    assert group_summary(watched.watcher.view["etl"])["status"] == "OUT OF RANGE"
    watched.kafka.starts[ORDERS] = 2_000
    watched.round(2_500, 1_999)
    assert watched.partition().status is Status.OUT_OF_RANGE
    watched.round(2_500, 2_500)
    assert watched.status() is Status.OK


def test_deleted_groups_and_topics_vanish() -> None:
    """A deleted group is forgotten; a deleted topic has no lag."""
    watched = Watched()
    watched.round(100, 50)
    del watched.kafka.ends[ORDERS]
    watched.watcher.poll(["etl"])
    assert watched.partition().lag is None
    assert watched.partition().status is Status.OK
    del watched.kafka.offsets["etl"]
    watched.watcher.poll(["etl"])
    assert watched.watcher.view == {}
    watched.round(100, 60)
    assert [each.offset for each in watched.partition().commits] == [60]


def test_an_outage_is_not_trouble_of_the_group() -> None:
    """While Kafka is away the last view stays, marked; windows and times survive it."""
    watched = Watched()
    for number in range(12):
        watched.round(100 * number, 100 * number)
    watched.watcher.fail(OffsetManagerError("no list of groups"))
    (group,) = watched.watcher.view.values()
    assert (str(group.error), group.lag_points[-2:]) == ("no list of groups", (0, None))
    watched.kafka.down = True
    watched.now_s += ROUND_S
    watched.watcher.poll(["etl"])
    assert isinstance(watched.watcher.view["etl"].error, KafkaRequestError)
    assert watched.status() is Status.OK
    watched.kafka.down = False
    watched.round(1_200, 1_100)
    assert [each.error for each in watched.watcher.view.values()] == [None]
    assert watched.partition().seconds == 2 * ROUND_S
    assert len(watched.partition().commits) == INTERVALS


def test_a_lag_up_to_the_allowed_one_is_ok() -> None:
    """Lag that is allowed makes no alarm."""
    watched = Watched(allowed_lag=500)
    for _ in range(12):
        watched.round(1_000, 600)
    assert watched.status() is Status.OK
    watched.round(1_200)
    assert watched.partition().status is Status.STOP


def test_a_thousand_partitions_take_three_questions_a_round() -> None:
    """They are read in three questions a round, however many there are, and all are judged."""
    kafka, rounds = FakeCluster(), 12
    wide = [TopicPartition("wide", number) for number in range(1_000)]
    now_s = 0.0
    watcher = Watcher(kafka, lambda: now_s)
    for number in range(rounds):
        now_s += ROUND_S
        kafka.ends = dict.fromkeys(wide, number * 200 + 1_000)
        kafka.offsets = {"etl": dict.fromkeys(wide, OffsetAndMetadata(number * 100))}
        watcher.poll(["etl"])
    asked = [each for each in kafka.asked if each != "next_records"]
    assert asked == ["describe", "committed", "log_ranges"] * rounds
    assert kafka.asked.count("next_records") == 10  # until they are within what was watched
    assert watcher.view["etl"].status is Status.WARN
    assert len(watcher.view["etl"].partitions) == 1_000
