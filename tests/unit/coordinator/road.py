"""A lane for tests, on a clock moved by hand: nothing is sent, and the test answers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from actors import Timers
from actors.testing import ManualClock
from offsetmgr.coordinator.kafka_client import ClientSlot, LibrdkafkaLog, Troubles, admin_slot
from offsetmgr.coordinator.kafka_lane import ASIDE_LIMIT, Job, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka.admin import AdminClient

    from offsetmgr.coordinator.base import Failure
    from offsetmgr.coordinator.kafka_client import PooledClient

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}

Answer = str


def spoil(failure: Failure) -> Answer:
    """Answer with the failure's name."""
    return failure.info.name


class Road:
    """A lane whose requests go nowhere until the test finishes them."""

    def __init__(self, aside_limit: int = ASIDE_LIMIT) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        troubles = Troubles()
        self.slot = admin_slot(NOWHERE, troubles, LibrdkafkaLog(self.clock))
        self.lane = Lane(self.slot, self.timers, self.clock, troubles, aside_limit)
        self.sent: list[Job[Answer]] = []

    def job(self, group: str = "g", timeout_s: float = 5.0) -> Job[Answer]:
        """Make a request and let it take the lane."""
        job = Job(self.lane, group, self.clock.now() + timeout_s, self.send, spoil)
        self.lane.submit(job)
        return job

    def send(self, client: AdminClient, job: Job[Answer]) -> None:
        """Stand in for the hand-over to librdkafka."""
        del client
        self.sent.append(job)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        self.timers.fire_due()

    def close(self) -> None:
        """Leave nothing behind."""
        self.lane.abandon()
        self.slot.close(timeout_s=5)

    @contextmanager
    def while_a_client_is_had(self, happen: Callable[[], None]) -> Iterator[None]:
        """Have something happen between a request's turn and the client that it gets."""

        def acquire(times: int = 1) -> PooledClient[AdminClient]:
            pooled = ClientSlot.acquire(self.slot, times)
            happen()
            return pooled

        with patch.object(self.slot, "acquire", acquire):
            yield


def answers(jobs: list[Job[Answer]]) -> list[Answer]:
    """What the jobs were answered with."""
    return [job.future.get(timeout=0) for job in jobs]
