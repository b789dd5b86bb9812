"""The simulator: a seed replays the same schedule, and steps are bounded."""

from __future__ import annotations

from functools import partial
from typing import Any

import pykka
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import ActorRef, PooledActor
from actors.testing import SimStep, SimSystem, SimulationError

SEEDS = st.integers(0, 2**32)


class Gossip(PooledActor):
    """Passes each number minus one to all neighbours; fails at every tenth."""

    def __init__(self, heard: list[tuple[str, int]]) -> None:
        super().__init__()
        self._heard = heard
        self.neighbours: list[ActorRef[Any]] = []

    def on_start(self) -> None:
        self.tell_after(7, 1)

    def on_receive(self, message: Any) -> None:
        if isinstance(message, list):
            self.neighbours = message
            return
        self._heard.append((self.actor_urn, message))
        if len(self._heard) % 10 == 0:
            raise ValueError(message)
        for neighbour in self.neighbours if message else ():
            neighbour.try_tell(message - 1)


def gossip(seed: int) -> tuple[list[SimStep], list[tuple[str, int]]]:
    """Run four actors that send, fail and restart; return the trace and the messages."""
    system = SimSystem(seed)
    heard: list[tuple[str, int]] = []
    refs = [system.spawn(Gossip, heard, name=name) for name in "abcd"]
    for ref in refs:
        ref.tell(refs)
        ref.tell(2)
    system.advance(30)
    assert system.stop()
    return list(system.trace), heard


@settings(max_examples=20)
@given(SEEDS)
def test_a_seed_replays_the_identical_schedule(seed: int) -> None:
    """Every step and every effect, failures and timers included."""
    assert gossip(seed) == gossip(seed)


def test_different_seeds_try_different_schedules() -> None:
    assert len({tuple(gossip(seed)[0]) for seed in range(10)}) == 10


class Echo(PooledActor):
    """Echoes; fails on request; repeats "again" forever; waits for others, which is forbidden."""

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        if message == "again":
            self.actor_ref.tell("again")
        if isinstance(message, ActorRef):
            return message.stop()
        return message


def test_steps_are_bounded_and_the_error_names_the_seed() -> None:
    """It also shows the last steps."""
    system = SimSystem(seed=4711)
    system.spawn(Echo, name="echo").tell("again")
    with pytest.raises(SimulationError, match=r"seed 4711: .* after 50 steps; last: .*/echo"):
        system.run_until_idle(max_steps=50)
    assert len(system.trace) == 50


def test_the_seed_orders_simultaneous_timers() -> None:
    orders = set()
    for seed in range(20):
        system = SimSystem(seed)
        fired: list[int] = []
        for index in range(3):
            system.timers.call_after(1, partial(fired.append, index))
        system.advance(1)
        orders.add(tuple(fired))
    assert len(orders) > 1


def test_a_missing_answer_is_a_timeout(sim: SimSystem) -> None:
    """In simulated time."""
    ref = sim.spawn(Echo, name="echo")
    ref.tell(ValueError("boom"))
    answer: Any = ref.ask("x", block=False)
    with pytest.raises(pykka.Timeout):
        sim.wait(answer, 0.05)
    assert sim.clock.now() == 0.05


def test_a_blocking_actor_is_reported(sim: SimSystem) -> None:
    """A call that could deadlock a thread pool raises, so that no test hangs."""
    other = sim.spawn(Echo, name="other")
    answer: Any = sim.spawn(Echo, name="echo").ask(other, block=False)
    with pytest.raises(SimulationError, match=r"seed 1: an actor blocks"):
        sim.wait(answer, None)
