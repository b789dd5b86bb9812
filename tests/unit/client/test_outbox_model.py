"""Outbox and service together under every schedule: what is lost, refused and restarted."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from offsetmgr.client import outbox as room
from offsetmgr.client.outbox import Batch, Outbox
from offsetmgr.errors import (
    ManagerExistsError,
    OffsetManagerError,
    OffsetRegressionError,
    OverloadedError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

KEYS = [ManagerKey("g", "t", 0), ManagerKey("h", "t", 0)]


class ClientAndService:
    """An outbox, a service that restarts and refuses, and a network that loses either way."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.now = 0.0
        self.instance = 1
        self.outbox.meet("1")
        self.taken: dict[ManagerKey, int] = {}
        """What the service as it lives now has taken."""
        self.kafka: dict[ManagerKey, int] = {}
        self.wanted: dict[ManagerKey, int] = {}
        """What the user submitted last."""
        self.rivals: set[ManagerKey] = set()
        self.managers: set[ManagerKey] = set()
        """Those of the service as it lives now."""
        self.full = False
        """Whether it makes no other ones."""
        self.sequences: list[int] = []
        self.flight: Batch | None = None
        """Sent, and its answer lost."""
        self.answer: tuple[Batch, dict[TopicPartition, OffsetManagerError], str] | None = None
        """On its way back, and from which instance."""

    def submit(self, key: ManagerKey, offset: int, *, rewind: bool) -> None:
        """Only a lower offset without a rewind is refused."""
        error = self.outbox.submit(key, OffsetAndMetadata(offset), rewind=rewind)
        if offset < self.wanted.get(key, 0) and not rewind:
            assert isinstance(error, OffsetRegressionError)
        else:
            assert error is None
            self.wanted[key] = offset

    def spawn(self, key: ManagerKey) -> None:
        """A manager without an offset."""
        self.outbox.add(key)

    def restart(self) -> None:
        """The service forgets all but what it has committed."""
        self.instance += 1
        self.taken.clear()
        self.managers.clear()

    def commit(self, key: ManagerKey) -> None:
        """Kafka takes what the service has."""
        if key in self.taken:
            self.kafka[key] = self.taken[key]

    def rival(self, key: ManagerKey, *, held: bool) -> None:
        """Another client takes a manager, or gives it back."""
        if held and key not in self.managers:
            self.rivals.add(key)
        else:
            self.rivals.discard(key)

    def limit(self, *, full: bool) -> None:
        """Whether the service has reached its limit of managers."""
        self.full = full

    def send(self, *, arrives: bool, crowded: bool = True) -> None:
        """One turn of the sender, unless it waits for an answer."""
        if self.answer is not None:
            return
        self.now += 1
        if self.flight is not None and self.flight.epoch != self.outbox.epoch:
            self.outbox.give_back(self.flight)
            self.flight = None
        batch = self.flight or self.outbox.take(self.now, crowded=crowded)
        self.flight = None
        if batch is None:
            assert not self.outbox.unsent, "what there is room for waits for what there is not"
            return
        assert 1 <= len(batch.items) <= room.BATCH_LIMIT
        assert {item.key.group for item in batch.items} == {batch.group}
        if not arrives:
            self.outbox.give_back(batch)
            return
        if batch.sequence not in self.sequences[-1:]:
            assert batch.sequence > max(self.sequences, default=-1)
            self.sequences.append(batch.sequence)
        new = {item.key for item in batch.items} - self.managers - self.rivals
        if self.full and new:
            is_crowded = self.outbox.crowd(batch, OverloadedError("full"))
            assert is_crowded or self.outbox.instance != str(self.instance)
            self.outbox.give_back(batch)
            return
        self.answer = (batch, self.serve(batch), str(self.instance))

    def receive(self, *, lost: bool) -> None:
        """The answer arrives, or it is lost."""
        if self.answer is None:
            return
        (batch, refused, instance), self.answer = self.answer, None
        if lost:
            self.flight = batch
            return
        self.outbox.meet(instance)
        self.outbox.accept(batch, refused, self.now)

    def serve(self, batch: Batch) -> dict[TopicPartition, OffsetManagerError]:
        """What the service does with it; taking the same twice changes nothing."""
        refused: dict[TopicPartition, OffsetManagerError] = {}
        for item in batch.items:
            floor = self.taken.get(item.key, self.kafka.get(item.key, 0))
            if item.key in self.rivals:
                refused[item.key.topic_partition] = ManagerExistsError("m", "rival")
                continue
            self.managers.add(item.key)
            if item.value is None:
                continue
            if item.value.offset < floor and not item.rewind:
                error = OffsetRegressionError("m", item.value.offset, floor)
                refused[item.key.topic_partition] = error
            else:
                self.taken[item.key] = item.value.offset
        return refused

    def heal(self) -> None:
        """Once the network heals, the service as it lives has the newest of each partition."""
        self.rivals.clear()
        self.full = False
        self.receive(lost=False)
        self.outbox.meet(str(self.instance))  # a heartbeat finds out
        for _ in range(40):
            self.now += room.PARK_S
            self.send(arrives=True)
            self.receive(lost=False)
        assert self.taken == self.wanted
        assert not self.outbox.unsent
        assert not self.outbox.crowded
        held = [self.outbox.get(key) for key in KEYS]
        assert all(each.registered for each in held if each is not None)


_KEY = st.sampled_from(KEYS)
_STEP = st.one_of(
    st.tuples(st.just("submit"), _KEY, st.integers(0, 9), st.booleans()),
    st.tuples(st.just("submit"), _KEY, st.integers(5, 9), st.just(value=False)),
    st.tuples(st.just("send"), st.sampled_from([True, True, False]), st.booleans()),
    st.tuples(st.just("limit"), st.booleans()),
    st.tuples(st.just("receive"), st.sampled_from([False, False, True])),
    st.tuples(st.sampled_from(["commit", "spawn"]), _KEY),
    st.tuples(st.just("restart")),
    st.tuples(st.just("rival"), _KEY, st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(steps=st.lists(_STEP, min_size=10, max_size=40))
@pytest.mark.fault(17)
def test_the_newest_arrives_whatever_happens(steps: list[tuple[Any, ...]]) -> None:
    """Whatever is lost, refused or restarted: in the end the service has the newest of each."""
    model = ClientAndService()
    for name, *values in steps:
        if name == "submit":
            model.submit(values[0], values[1], rewind=values[2])
        elif name == "send":
            model.send(arrives=values[0], crowded=values[1])
        elif name == "receive":
            model.receive(lost=values[0])
        elif name == "limit":
            model.limit(full=values[0])
        elif name == "rival":
            model.rival(values[0], held=values[1])
        else:
            getattr(model, name)(*values)
    model.heal()
