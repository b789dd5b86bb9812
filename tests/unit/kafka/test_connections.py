"""The requests of one client: which is sent when, and how each is answered by its deadline."""

from __future__ import annotations

from threading import Semaphore
from typing import TYPE_CHECKING, Any

import pytest

from actors.testing import SimSystem
from offsetmgr.codes import CLOSED, NOT_SENT
from offsetmgr.coordinator.base import Failure
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import Verdict, error_info
from offsetmgr.kafka.connections import (
    LEAST_SEND_S,
    LIMIT,
    MOVED_WAIT_S,
    QUEUE_LIMIT,
    STUCK_S,
    WINDOW,
    ConnectionQueue,
    QueuedRequest,
)
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = str
Queued = QueuedRequest[Answer]


class Client:
    """Stands in for a client of librdkafka."""


def failed(failure: Failure) -> Answer:
    return f"{failure.info.name} {failure.detail}".strip()


class Queue:
    """A connection queue whose requests go nowhere until the test finishes them."""

    def __init__(self, limit: int = LIMIT) -> None:
        system = SimSystem(0)
        self.clock, self.advance = system.clock, system.advance
        self.ended = Semaphore(0)
        self.while_opened: Callable[[], object] = lambda: None
        self.queue: ConnectionQueue[Client] = ConnectionQueue(
            self._open,
            lambda _: self.ended.release(),
            system.timers,
            system.clock,
            lambda: Failure(error_info(-185)),
            limit,
        )
        self.sent: list[Queued] = []

    def _open(self) -> Client:
        self.while_opened()
        return Client()

    def submit(self, group: str = "g", timeout_s: float = 5.0) -> Queued:
        def send(_client: Any, request: Queued) -> None:
            self.sent.append(request)

        request = QueuedRequest(group, Deadline(timeout_s, now=self.clock.now), send, failed)
        self.queue.submit(request)
        return request


def answers(requests: list[Queued]) -> list[Answer]:
    return [request.future.get(timeout=0) for request in requests]


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_requests_in_flight_are_limited_and_in_order(queue: Queue) -> None:
    """Writes of one connection stay in order."""
    requests = [queue.submit() for _ in range(WINDOW + 3)]
    assert queue.sent == requests[:WINDOW]
    for done in requests[:3]:
        queue.queue.finish(done, "done")
    assert queue.sent == requests
    assert answers(requests[:3]) == ["done"] * 3


def test_a_full_queue_refuses(queue: Queue) -> None:
    """Beyond the limit a request is refused at once, retriable and without effect."""
    for _ in range(WINDOW + QUEUE_LIMIT):
        queue.submit()
    assert answers([queue.submit()]) == [f"{NOT_SENT.name} too many requests are waiting for Kafka"]
    assert NOT_SENT.retriable
    queue.queue.finish(queue.sent[0], "done")
    assert not queue.submit().future.done()


class TestDeadline:
    """Each request is answered by then, and is told whether it was sent."""

    def test_an_unsent_request_is_refused(self, queue: Queue) -> None:
        """It is never sent, nor is one that would be given up as soon as it is sent."""
        under_way = [queue.submit(timeout_s=60) for _ in range(WINDOW)]
        late, waiting = queue.submit(timeout_s=1), queue.submit(timeout_s=1 + LEAST_SEND_S / 2)
        queue.advance(1)
        queue.queue.finish(under_way[0], "done")
        queue.advance(LEAST_SEND_S)
        assert answers([late, waiting]) == [NOT_SENT.name] * 2
        assert NOT_SENT.verdict is Verdict.REFUSED
        assert queue.sent == under_way

    def test_a_sent_request_is_unknown(self, queue: Queue) -> None:
        """It is unknown; an answer that comes later changes nothing."""
        request = queue.submit(timeout_s=5)
        queue.advance(5)
        assert answers([request]) == ["_TIMED_OUT"]
        queue.queue.finish(request, "done")
        assert answers([request]) == ["_TIMED_OUT"]

    @pytest.mark.parametrize("answer", ["_TIMED_OUT", "_DESTROY"])
    def test_a_request_can_be_answered_while_its_client_opens(
        self, queue: Queue, answer: str
    ) -> None:
        """It is not sent after its deadline or the end of its queue, and takes no place."""
        is_late = answer == "_TIMED_OUT"
        queue.while_opened = lambda: queue.advance(5) if is_late else queue.queue.drain(0)
        request = queue.submit(timeout_s=5)
        assert answers([request]) == [answer]
        assert queue.sent == []
        queue.queue.drain(0)


class TestUnresponsiveBroker:
    """Its groups hold up no others, however many there are."""

    def test_requests_of_other_groups_are_sent(self, queue: Queue) -> None:
        """At once, and after each next try of the groups of the broker that hangs."""
        for _ in range(3):
            hung = [queue.submit(f"group-{number}") for number in range(WINDOW - 1)]
            healthy = queue.submit("healthy")
            assert healthy in queue.sent
            queue.queue.finish(healthy, "done")
            queue.advance(5)
            assert answers(hung) == ["_TIMED_OUT"] * (WINDOW - 1)
            queue.advance(STUCK_S)

    def test_an_unresponsive_client_is_replaced(self, queue: Queue) -> None:
        """It ends once librdkafka can have nothing to do with its requests any more."""
        stuck = queue.submit(timeout_s=5)
        first = stuck.client
        queue.advance(STUCK_S - 0.1)
        healthy = queue.submit(timeout_s=5)
        assert healthy.client is first
        queue.advance(0.2)
        assert queue.submit().client is not first
        queue.queue.finish(healthy, "done")
        queue.advance(STUCK_S - 0.2)
        assert not queue.ended.acquire(blocking=False)
        queue.advance(0.2)
        assert queue.ended.acquire(timeout=WAIT_S)

    @pytest.mark.parametrize("limit", [32, LIMIT])
    def test_overdue_requests_are_limited(self, limit: int) -> None:
        """At the limit others wait until the first has been held for STUCK_S."""
        queue = Queue(limit)
        while len(queue.sent) < limit:
            for _ in range(min(limit, WINDOW)):
                queue.submit(timeout_s=1)
            queue.advance(1)
        passed_s = queue.clock.now()
        waiting = queue.submit(timeout_s=60)
        queue.advance(STUCK_S - passed_s - 0.01)
        assert waiting not in queue.sent
        queue.advance(0.02)
        assert waiting in queue.sent


def test_a_refused_request_is_answered_as_unsent(queue: Queue) -> None:
    """A request that librdkafka does not take is answered as not sent; the next one is sent."""

    def refuse(client: Any, _request: object) -> None:
        raise ValueError(client)

    deadline = Deadline(5.0, now=queue.clock.now)
    refused = queue.queue.submit(QueuedRequest("g", deadline, refuse, failed))
    expected = "NOT_SENT the Kafka client did not take the request"
    assert refused.get(timeout=0).startswith(expected)
    assert queue.submit() in queue.sent


def test_a_group_with_a_moved_coordinator_pauses(queue: Queue) -> None:
    """After NOT_COORDINATOR a group is left alone for the look-up to expire; others are not."""
    queue.queue.pause("g")
    paused, free = queue.submit("g"), queue.submit("other")
    assert queue.sent == [free]
    queue.advance(MOVED_WAIT_S)
    assert queue.sent == [free, paused]
    assert queue.submit("g") in queue.sent


class TestClose:
    def test_accepted_requests_go_on(self, queue: Queue) -> None:
        request = queue.submit()
        queue.queue.close()
        assert answers([queue.submit()]) == [CLOSED.name]
        assert not request.future.done()
        queue.queue.finish(request, "done")
        queue.queue.drain(0)
        assert answers([request]) == ["done"]

    def test_remaining_requests_are_answered(self, queue: Queue) -> None:
        """Refused if it was not sent, else unknown; a place that comes free is for nobody."""
        requests = [queue.submit() for _ in range(WINDOW + 3)]
        queue.queue.pause("moved")
        paused = queue.submit("moved")
        done = requests[0]
        requests[WINDOW].future.add_done_callback(lambda _: queue.queue.finish(done, "done"))
        queue.queue.drain(0)
        assert answers([*requests[WINDOW:], paused]) == [CLOSED.name] * 4
        assert answers(requests[:2]) == ["done", "_DESTROY"]
        assert queue.sent == requests[:WINDOW]
