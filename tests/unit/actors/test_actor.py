"""Actors and references with pykka's methods, on the threads of a system."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import PooledActor
from tests.interrupted import interrupted
from tests.together import together
from tests.unit.actors.conftest import Recorder, Simulation
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from actors import ActorRef, ActorSystem


class Account(PooledActor):
    """An actor with a method for a proxy."""

    def close(self) -> None:
        self.stop()


@pytest.fixture
def ref(system: ActorSystem) -> ActorRef[Any]:
    """A recorder on real threads."""
    return system.spawn(Recorder, [], name="r")


def test_messages_are_handled_in_a_thread_of_the_pool(system: ActorSystem) -> None:
    """The constructor runs in the thread that calls ``spawn``."""

    class Threads(PooledActor):
        def __init__(self) -> None:
            super().__init__()
            self.constructed_in = threading.current_thread().name

        def on_receive(self, _message: Any) -> tuple[str, str]:
            return self.constructed_in, threading.current_thread().name

    constructed_in, handled_in = system.spawn(Threads, name="t").ask("where", timeout=WAIT_S)
    assert constructed_in == threading.current_thread().name
    assert handled_in in {"test-0", "test-1"}


def test_an_actor_can_stop_itself(system: ActorSystem) -> None:
    """After its waiting messages."""
    ref = system.spawn(Account, name="ada")
    ref.proxy().close().get(timeout=WAIT_S)
    ref.stop(timeout=WAIT_S)
    assert not ref.is_alive()
    assert ref.actor_stopped.is_set()


def test_an_exception_under_ask_is_the_answer(ref: ActorRef[Any]) -> None:
    """The actor has not failed, as with pykka."""
    assert ref.ask("a", timeout=WAIT_S) == 1
    with pytest.raises(ValueError, match="boom"):
        ref.ask(ValueError("boom"), timeout=WAIT_S)
    assert ref.ask("b", timeout=WAIT_S) == 2


def test_an_answer_and_a_stop_can_be_awaited(ref: ActorRef[Any]) -> None:
    """In an event loop, without another thread."""

    async def main() -> tuple[int, bool]:
        answer: Any = ref.ask("x", block=False)
        return await answer, await ref.stop(block=False)

    assert asyncio.run(main()) == (1, True)


def test_every_ask_during_a_stop_returns(ref: ActorRef[Any]) -> None:
    """Threads that ask at the very moment of the stop are answered or refused."""

    def ask_endlessly() -> None:
        while True:
            ref.ask("x", timeout=WAIT_S)

    def ask_or_stop(number: int) -> None:
        if number == 0:
            assert ref.stop(timeout=WAIT_S)
            return
        with pytest.raises(pykka.ActorDeadError):
            ask_endlessly()

    together(5, ask_or_stop)


def test_a_message_of_a_signal_handler_is_not_lost() -> None:
    """The kind: it is put into the inbox in the middle of the actor's first message."""
    for at in range(1, 100):
        sim = Simulation()
        ref = sim.recorder()
        sim.run_until_idle()
        was_interrupted = interrupted(partial(ref.tell, "a"), at, partial(ref.tell, "b"), "actors/")
        sim.run_until_idle()
        assert sorted(map(str, sim.notes[1:])) == ["a", "b"][: 1 + was_interrupted]
        if not was_interrupted:
            break
    assert at > 5


def test_an_interrupted_stop_can_be_repeated() -> None:
    """The kind: a Ctrl-C between the note that an actor is to stop and the message to it."""
    for at in range(1, 100):
        sim = Simulation()
        ref = sim.recorder()
        was_interrupted = interrupted(partial(ref.stop, block=False), at, within="actors/")
        stopped = ref.stop(block=False)
        sim.run_until_idle()
        assert stopped.done()
        assert not ref.is_alive()
        if not was_interrupted:
            break
    assert at > 5
