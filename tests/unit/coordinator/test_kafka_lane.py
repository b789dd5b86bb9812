"""A lane: who is sent when, and what those are told who were not, on a clock moved by hand."""

from __future__ import annotations

import threading
from sys import getrefcount
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from offsetmgr.coordinator.explain import CLOSED, NOT_SENT, QUEUE_FULL
from offsetmgr.coordinator.kafka_client import (
    MOVED_WAIT_S,
    ClientSlot,
)
from offsetmgr.coordinator.kafka_lane import (
    LATE_LIMIT,
    LEAST_SEND_S,
    OVERDUE_S,
    QUEUE_LIMIT,
    STUCK_S,
    WINDOW,
    GivenUpError,
    Job,
)
from offsetmgr.errors import Verdict
from tests.unit.coordinator.road import Road, answers

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from offsetmgr.coordinator.kafka_client import PooledClient

GUARD_S = 60.0
"""Against what never comes, not a measure."""


def test_window(road: Road) -> None:
    """Only so many are under way at a time; the others follow in the order they came."""
    jobs = [road.job() for _ in range(WINDOW + 3)]
    assert road.sent == jobs[:WINDOW]
    jobs[3].finish("done")
    assert road.sent == jobs[: WINDOW + 1]
    for job in jobs[:3]:
        job.finish("done")
    assert road.sent == jobs


def test_full_queue(road: Road) -> None:
    """Beyond the limit a request is refused at once, retriable and without effect."""
    for _ in range(WINDOW + QUEUE_LIMIT):
        road.job()
    refused = road.job()
    assert answers([refused]) == [QUEUE_FULL.name]
    assert QUEUE_FULL.retriable
    road.sent[0].finish("done")
    assert not road.job().future.done()


def test_deadline_of_the_unsent(road: Road) -> None:
    """Whose deadline passes before its turn is told that it was never sent, and never is."""
    under_way = [road.job(timeout_s=60) for _ in range(WINDOW)]
    waiting = road.job(timeout_s=OVERDUE_S / 2)
    road.advance(OVERDUE_S / 4)
    assert not waiting.future.done()
    road.advance(OVERDUE_S / 4)
    assert answers([waiting]) == [NOT_SENT.name]
    assert NOT_SENT.verdict is Verdict.REFUSED
    under_way[0].finish("done")
    assert waiting not in road.sent


def test_deadline_of_the_sent(road: Road) -> None:
    """Whose deadline passes under way is told "unknown", and holds up nobody any more."""
    under_way = [road.job() for _ in range(WINDOW)]
    waiting = road.job(timeout_s=60)
    road.advance(5)
    assert answers(under_way) == ["_TIMED_OUT"] * WINDOW
    assert road.sent == [*under_way, waiting]
    under_way[0].finish("done")
    assert answers(under_way[:1]) == ["_TIMED_OUT"]


def test_an_answer_at_the_deadline(road: Road) -> None:
    """What is just being answered is left to the answer, never told that it was not sent."""
    first, second = road.job(), road.job()
    taken, over = threading.Event(), threading.Event()
    answering = threading.Thread(target=second.finish, args=("done",))

    def give_back(pooled: PooledClient[AdminClient]) -> None:
        if threading.current_thread() is answering:
            taken.set()
            assert over.wait(GUARD_S)
        ClientSlot.give_back(road.slot, pooled)

    def meanwhile(_: object) -> None:
        answering.start()
        assert taken.wait(GUARD_S)

    with patch.object(road.slot, "give_back", give_back):
        first.future.add_done_callback(meanwhile)
        road.advance(5)
        over.set()
        answering.join(GUARD_S)
    assert answers([first, second]) == ["_TIMED_OUT", "done"]


def test_neighbours_in_time(road: Road) -> None:
    """A place that comes free just before a deadline is not taken for a request of no use."""
    under_way = [road.job() for _ in range(WINDOW)]
    waiting = road.job(timeout_s=LEAST_SEND_S * 1.5)
    road.advance(LEAST_SEND_S)
    under_way[0].finish("done")
    assert waiting not in road.sent
    road.advance(LEAST_SEND_S)
    assert answers([waiting]) == [NOT_SENT.name]
    assert waiting not in road.sent


def test_stuck(road: Road) -> None:
    """A client that sits on a request is given up, unused by others, and its place is free."""
    stuck = road.job(timeout_s=5)
    road.advance(5)
    healthy = road.job(timeout_s=60)
    first = healthy.client
    assert stuck.client is first is not None
    road.advance(STUCK_S - 5)
    assert stuck.client is None
    assert healthy.client is first
    replaced = road.job(timeout_s=60)
    assert replaced.client is not first
    healthy.finish("done")
    assert first.holders == 0


def test_deadline_while_a_detail_is_looked_up(road: Road) -> None:
    """Where the answer is known but for a detail, the deadline tells it, not "unknown"."""
    job = road.job()
    job.known = "refused"
    road.advance(5)
    assert answers([job]) == ["refused"]


def test_a_client_that_refuses(road: Road) -> None:
    """A request that librdkafka does not take is answered as not sent; the next one is sent."""

    def refuse(client: AdminClient, job: Job[str]) -> None:
        raise ValueError(client, job)

    bad = Job(road.lane, "g", 5.0, refuse, lambda failure: f"{failure.info.name} {failure.detail}")
    road.lane.submit(bad)
    assert answers([bad])[0].startswith("NOT_SENT the Kafka client did not take the request")
    good = road.job()
    assert road.sent == [good]


def test_moved_coordinator(road: Road) -> None:
    """After NOT_COORDINATOR a group is left alone for the look-up to expire; others are not."""
    road.lane.coordinator_moved("g")
    held, free = road.job("g"), road.job("other")
    assert road.sent == [free]
    road.advance(MOVED_WAIT_S)
    assert road.sent == [free, held]
    assert road.job("g") in road.sent


def test_deadline_of_the_held(road: Road) -> None:
    """A request held for its group's coordinator is answered by its deadline as not sent."""
    road.lane.coordinator_moved("g")
    held = road.job("g", timeout_s=1)
    road.advance(1)
    assert answers([held]) == [NOT_SENT.name]
    road.advance(MOVED_WAIT_S)
    assert road.sent == []


def test_close(road: Road) -> None:
    """A closed lane takes nothing more, and ends what it has."""
    job = road.job()
    road.lane.close()
    assert answers([road.job()]) == [CLOSED.name]
    assert not job.future.done()
    job.finish("done")
    road.lane.wait_idle(timeout_s=0)
    road.lane.abandon()
    assert answers([job]) == ["done"]


def test_abandon(road: Road) -> None:
    """What is left at the end is answered: refused where it was not sent, else unknown."""
    sent = [road.job() for _ in range(WINDOW)]
    sent[1].known = "refused"
    waiting = road.job()
    road.lane.coordinator_moved("moved")
    held = road.job("moved")
    road.lane.close()
    road.lane.wait_idle(timeout_s=0)
    road.lane.abandon()
    assert answers([waiting, held]) == [CLOSED.name] * 2
    assert answers(sent[:2]) == ["_DESTROY", "refused"]


def test_abandoned_while_answers_come(road: Road) -> None:
    """A free place is for nobody any more: who is told that it was not sent never is."""
    jobs = [road.job() for _ in range(WINDOW + 3)]
    jobs[WINDOW].future.add_done_callback(lambda _: jobs[0].finish("done"))
    road.lane.abandon()
    assert road.sent == jobs[:WINDOW]
    assert answers(jobs[WINDOW:]) == [CLOSED.name] * 3
    assert answers(jobs[:2]) == ["done", "_DESTROY"]


def test_abandoned_while_its_client_is_had(road: Road) -> None:
    """What was answered before it could be handed over is not sent, and holds no client."""
    pooled = road.slot.acquire()
    with road.while_a_client_is_had(road.lane.abandon):
        job = road.job()
    assert answers([job]) == ["_DESTROY"]
    assert road.sent == []
    assert (job.client, pooled.holders) == (None, 1)
    road.slot.give_back(pooled)


def test_deadline_while_its_client_is_had(road: Road) -> None:
    """It is not sent after its deadline, and takes no place among those that librdkafka holds."""
    pooled = road.slot.acquire()
    with road.while_a_client_is_had(lambda: road.advance(5)):
        jobs = [road.job(timeout_s=5) for _ in range(LATE_LIMIT)]
    assert answers(jobs) == ["_TIMED_OUT"] * LATE_LIMIT
    assert road.sent == []
    assert pooled.holders == 1
    assert road.job() in road.sent
    road.slot.give_back(pooled)


def test_what_was_given_up_gets_no_client_for_a_further_request(road: Road) -> None:
    """Its answer came too late, and it was answered: nobody has to hear of that again."""
    job = road.job(timeout_s=1)
    road.advance(1)
    road.advance(STUCK_S)
    assert answers([job]) == ["_TIMED_OUT"]
    with pytest.raises(GivenUpError):
        road.lane.with_client(job, lambda client: client)


def test_a_client_that_was_given_back_is_held_by_nobody(road: Road) -> None:
    """It is to end in the thread that ends it: librdkafka aborts where it does in one of its."""
    pooled = road.job().client
    assert pooled is not None
    held: list[int] = []

    def give_back(pooled: PooledClient[AdminClient]) -> None:
        held.append(getrefcount(pooled.client))
        ClientSlot.give_back(road.slot, pooled)

    def fail(client: AdminClient) -> None:
        raise ValueError(f"{client} does not take it")

    lane, job = road.lane, road.sent[0]
    alone = getrefcount(pooled.client)
    with patch.object(road.slot, "give_back", give_back):
        assert lane.with_client(job, type) is type(pooled.client)
        with pytest.raises(ValueError, match="does not take it") as failed:
            lane.with_client(job, fail)
    assert held == [alone, alone]
    assert failed.value.__traceback__ is not None
