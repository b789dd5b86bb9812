"""A connection queue on a clock moved by hand: nothing is sent, and the test answers."""

from __future__ import annotations

from threading import Semaphore
from typing import TYPE_CHECKING, Any

from actors import Timers
from actors.testing import ManualClock
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.clients import ReplaceableClient
from offsetmgr.coordinator.connection_queue import LIMIT, ConnectionQueue, QueuedRequest
from offsetmgr.errors import error_info

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
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.ended = Semaphore(0)
        self.while_opened: Callable[[], None] = lambda: None
        self.client: ReplaceableClient[Client] = ReplaceableClient(
            self._open, lambda _: self.ended.release(), self.timers
        )
        self.queue: ConnectionQueue[Client] = ConnectionQueue(
            self.client, self.timers, self.clock, lambda: Failure(error_info(-185)), limit
        )
        self.sent: list[Queued] = []

    def _open(self) -> Client:
        self.while_opened()
        return Client()

    def submit(self, group: str = "g", timeout_s: float = 5.0) -> Queued:
        def send(_client: Any, request: Queued) -> None:
            self.sent.append(request)

        request = QueuedRequest(group, self.clock.now() + timeout_s, send, failed)
        self.queue.submit(request)
        return request

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.clock.now() + seconds
        while (due_s := self.timers.next_due_s()) is not None and due_s <= until_s:
            self.clock.advance(due_s - self.clock.now())
            self.timers.fire_due()
        self.clock.advance(until_s - self.clock.now())


def answers(requests: list[Queued]) -> list[Answer]:
    return [request.future.get(timeout=0) for request in requests]
