"""A lane whose brokers are slow or say nothing: nobody else waits for that."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from unittest.mock import patch

from offsetmgr.coordinator.explain import NOT_SENT
from offsetmgr.coordinator.kafka_lane import (
    ASIDE_LIMIT,
    LATE_LIMIT,
    LEAST_SEND_S,
    OVERDUE_S,
    STUCK_S,
    WINDOW,
)
from tests.unit.coordinator.road import Road, answers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.coordinator.kafka_lane import Job
    from tests.unit.coordinator.road import Answer


def test_silent_groups_hold_up_nobody_else(road: Road) -> None:
    """However many of them there are: their requests take no place of the others."""
    silent = [road.job(f"silent-{number}") for number in range(3 * WINDOW)]
    healthy = road.job("healthy")
    for _ in range(3):
        assert healthy not in road.sent
        road.advance(OVERDUE_S)
    assert road.sent == [*silent, healthy]
    healthy.finish("done")
    road.advance(5)
    assert answers(silent) == ["_TIMED_OUT"] * len(silent)
    again = [road.job(job.group) for job in silent]
    assert road.sent[-1] is again[WINDOW - 1]
    assert road.job("healthy") is road.sent[-1]


def keep_silent(road: Road, groups: Iterable[str]) -> list[Job[Answer]]:
    """Send a request of each group, which is given up unanswered."""
    jobs = []
    for batch in zip(*[iter(groups)] * WINDOW, strict=True):
        jobs += [road.job(group, timeout_s=OVERDUE_S) for group in batch]
        road.advance(OVERDUE_S)
    assert answers(jobs) == ["_TIMED_OUT"] * len(jobs)
    assert road.sent[-len(jobs) :] == jobs
    return jobs


def test_a_group_that_answers_again_is_as_good_as_the_others(road: Road) -> None:
    """One answer in time is enough; one that comes later says nothing, nor does no answer."""
    groups = [f"silent-{number}" for number in range(WINDOW)]
    given_up = keep_silent(road, groups)
    given_up[0].finish("done, but late")
    apart = [road.job(group) for group in groups]
    waiting = road.job(groups[0], timeout_s=OVERDUE_S)
    road.advance(OVERDUE_S)
    assert answers([waiting]) == [NOT_SENT.name]
    apart[1].finish("done")
    road.job(groups[2])
    assert road.job(groups[0]) not in road.sent
    assert road.job(groups[1]) in road.sent


def test_who_had_no_time_left_stays_where_it_was(road: Road) -> None:
    """A request that is given up as soon as it is sent says nothing of its group."""
    silent = [f"silent-{number}" for number in range(2 * WINDOW)]
    keep_silent(road, silent)
    hasty = [road.job(group, LEAST_SEND_S * 2) for group in (silent[0], "healthy")]
    road.advance(LEAST_SEND_S * 2)
    assert answers(hasty) == ["_TIMED_OUT"] * 2
    apart = [road.job(group) for group in silent[WINDOW:]]
    assert road.sent[-1] is apart[-1]
    assert road.job(silent[0]) not in road.sent
    assert road.job("healthy") in road.sent


def test_of_silent_groups_only_so_many_are_known(road: Road) -> None:
    """The one that was silent longest ago is forgotten first."""
    with patch("offsetmgr.coordinator.kafka_lane.SILENT_GROUPS", WINDOW):
        groups = [f"silent-{number}" for number in range(2 * WINDOW)]
        keep_silent(road, groups)
        apart = [road.job(group) for group in groups[WINDOW:]]
        assert road.sent[-1] is apart[-1]
        assert road.job(groups[-1]) not in road.sent
        assert road.job(groups[0]) in road.sent


def test_only_so_many_are_set_aside(road: Road) -> None:
    """Else a broker that is merely slow would answer what nobody waits for any more."""
    jobs = [road.job(f"slow-{number}", timeout_s=60) for number in range(ASIDE_LIMIT + 2 * WINDOW)]
    for _ in range(ASIDE_LIMIT // WINDOW + 5):
        road.advance(OVERDUE_S)
    assert road.sent == jobs[: ASIDE_LIMIT + WINDOW]
    jobs[0].finish("done")
    assert road.sent == jobs[: ASIDE_LIMIT + WINDOW + 1]


def test_a_lane_may_set_nothing_aside() -> None:
    """Where each request takes a thread: no more than the window are under way."""
    with closing(Road(aside_limit=0)) as road:
        jobs = [road.job(timeout_s=60) for _ in range(WINDOW + 1)]
        road.advance(2 * OVERDUE_S)
        assert road.sent == jobs[:WINDOW]
        jobs[0].finish("done")
        assert road.sent == jobs


def test_late_limit(road: Road) -> None:
    """What is overdue in librdkafka is limited; half of it is room for groups that answer."""
    silent = [f"silent-{number}" for number in range(LATE_LIMIT // 2)]
    given_up = keep_silent(road, silent)
    unlucky = road.job(silent[0], timeout_s=60)
    assert unlucky not in road.sent
    given_up += keep_silent(road, [f"other-{number}" for number in range(LATE_LIMIT // 2)])
    last = road.job("healthy", timeout_s=60)
    assert last not in road.sent
    given_up[0].finish("done")
    assert last in road.sent
    for job in given_up:
        job.finish("done")
    assert unlucky in road.sent


def test_hung_requests_hold_the_lane_no_longer_than_that(road: Road) -> None:
    """However many there are: at the limit others wait until the first has been held STUCK_S."""
    hung = keep_silent(road, [f"hung-{number}" for number in range(LATE_LIMIT)])
    passed_s = road.clock.now()
    clients = {id(job.client): job.client for job in hung}.values()
    others = [road.job(f"other-{number}", timeout_s=60) for number in range(WINDOW)]
    road.advance(STUCK_S - passed_s - 0.01)
    assert road.sent == hung
    road.advance(0.01)
    assert [job.client for job in hung[:WINDOW]] == [None] * WINDOW
    assert road.sent == [*hung, *others]
    road.advance(passed_s)
    assert [job.client for job in hung] == [None] * LATE_LIMIT
    for job in others:
        job.finish("done")
    assert [client.holders for client in clients if client] == [0]
