"""What is to be sent is in a queue or under way, however requests and their answers cross."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client.outbox import PARK_S, Outbox
from offsetmgr.errors import ManagerExistsError, OverloadedError
from offsetmgr.types import ManagerKey, OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client.outbox import Batch

KEYS = [ManagerKey("g", "t", number) for number in range(3)]
FULL = OverloadedError("full")
STEPS = 40


class Schedule:
    """A sender and two threads that submit in sync, each with a request under way at most."""

    def __init__(self, seed: int) -> None:
        self.outbox = Outbox()
        self._rng = random.Random(seed)  # noqa: S311 -- a schedule is no secret
        self._now = 0.0
        self._offset = 0
        self._sent: Batch | None = None
        self._synced: list[Batch] = []
        self._steps = [
            self.submit, self.submit, self.spawn, self.take, self.take, self.take_these,
            self.answer, self.answer, self.answer, self.stop, self.release, self.renew,
        ]  # fmt: skip

    def step(self) -> str:
        """One of them does something, or the service; what."""
        step = self._rng.choice(self._steps)
        step()
        return step.__name__

    def submit(self) -> None:
        """A newer offset."""
        self._offset += 1
        self.outbox.submit(self._rng.choice(KEYS), OffsetAndMetadata(self._offset))

    def spawn(self) -> None:
        """A manager without one."""
        self.outbox.add(self._rng.choice(KEYS))

    def take(self) -> None:
        """A turn of the sender; sometimes a pause is over by then."""
        if self._sent is None:
            self._now += self._rng.choice((0.0, 0.0, PARK_S))
            self._sent = self.outbox.take(self._now, crowded=self._rng.random() < 0.7)

    def take_these(self) -> None:
        """A sync submit."""
        held = {key: self.outbox.get(key) for key in KEYS if self._rng.random() < 0.5}
        keys = [key for key, each in held.items() if each and each.version and not each.stopping]
        if keys and len(self._synced) < 2:
            self._synced.append(self.outbox.take_these(keys))

    def answer(self) -> None:
        """To one of the requests under way: taken, refused in part, refused whole, or none."""
        flying = self._flying()
        if not flying:
            return
        batch = self._rng.choice(flying)
        what = self._rng.choice(("taken", "taken", "rival", "full", "lost"))
        if what == "full":
            self.outbox.crowd(batch, FULL)
        elif what == "lost":
            self.outbox.withdraw(batch)
        else:
            rival = [
                item.key for item in batch.items if what == "rival" and self._rng.random() < 0.5
            ]
            refused = {key.topic_partition: ManagerExistsError(str(key), "x") for key in rival}
            self.outbox.accept(batch, refused, self._now)
        if batch is not self._sent or what == "full":
            self.outbox.give_back(batch)
        if batch is self._sent:
            self._sent = None
        else:
            self._synced.remove(batch)

    def stop(self) -> None:
        """Of one manager: the service stops it, or it does not."""
        stopped = self.outbox.stop([self._rng.choice(KEYS)])
        if self._rng.random() < 0.5:
            self.outbox.unstop(stopped)
        else:
            self.outbox.leave(stopped)
            self.outbox.remove(stopped)

    def release(self) -> None:
        """The service has stopped one by itself."""
        self.outbox.released(self._rng.choice(KEYS))

    def renew(self) -> None:
        """The service has forgotten all, which is rare."""
        if self._rng.random() < 0.2:
            self.outbox.renew()

    def _flying(self) -> list[Batch]:
        return [*self._synced, *([] if self._sent is None else [self._sent])]

    def forgotten(self) -> Iterator[ManagerKey]:
        """What has to be sent, and never would be."""
        outbox = self.outbox
        waiting = {*outbox._to_submit, *outbox._to_register, *outbox._crowded, *outbox._parked}
        waiting.update(item.key for batch in self._flying() for item in batch.items)
        for key in KEYS:
            held = outbox.get(key)
            if held is None or key in waiting:
                continue
            if held.version > held.settled_version or not (held.registered or held.stopping):
                yield key


@pytest.mark.fault(17)
def test_what_has_to_be_sent_is_in_a_queue_or_under_way() -> None:
    """Whichever answer comes first: no offset waits for something that never comes."""
    for seed in range(1500):
        schedule = Schedule(seed)
        steps: list[str] = []
        for _ in range(STEPS):
            steps.append(schedule.step())
            assert not list(schedule.forgotten()), f"seed {seed}: {steps}"
