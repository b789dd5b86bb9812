"""The actor and its reference: they are pykka's, on the threads of a system."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import PooledActor
from tests.unit.actors.conftest import Recorder

if TYPE_CHECKING:
    from actors import ActorRef, ActorSystem


class Account(PooledActor):
    """An actor with attributes and methods, as a proxy sees them."""

    def __init__(self, owner: str, *, balance: int = 0) -> None:
        super().__init__(owner, balance=balance)
        self.owner = owner
        self.balance = balance

    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    def close(self) -> None:
        self.stop()


@pytest.fixture
def ref(system: ActorSystem) -> ActorRef[Any]:
    """A recorder on real threads, which is restarted without a rest."""
    return system.spawn(Recorder, [], name="r")


def test_the_thread_of_a_handler_is_the_pools(system: ActorSystem) -> None:
    """The constructor runs where spawn is called, the rest in a thread of the dispatcher."""

    class Threads(PooledActor):
        def __init__(self) -> None:
            super().__init__()
            self.born_in = threading.current_thread().name

        def on_receive(self, _message: Any) -> tuple[str, str]:
            return self.born_in, threading.current_thread().name

    born_in, lives_in = system.spawn(Threads, name="t").ask("where", timeout=10)
    assert born_in == threading.current_thread().name
    assert lives_in in {"test-0", "test-1"}


def test_an_actor_can_stop_itself(system: ActorSystem) -> None:
    """stop() from within ends the actor after the messages that wait."""
    ref = system.spawn(Account, "ada", name="ada")
    ref.proxy().close().get(timeout=10)
    ref.stop(timeout=10)
    assert not ref.is_alive()
    assert ref.actor_stopped.is_set()


def test_an_exception_under_ask_is_the_askers(ref: ActorRef[Any]) -> None:
    """As with pykka: it is the answer, and no failure of the actor."""
    assert ref.ask("a", timeout=10) == 1
    with pytest.raises(ValueError, match="boom"):
        ref.ask(ValueError("boom"), timeout=10)
    assert ref.ask("b", timeout=10) == 2


def test_an_answer_and_a_stop_can_be_awaited(ref: ActorRef[Any]) -> None:
    """An event loop awaits them without a thread of its own."""

    async def main() -> tuple[int, bool]:
        answer: Any = ref.ask("x", block=False)
        return await answer, await ref.stop(block=False)

    assert asyncio.run(main()) == (1, True)


def test_no_asker_is_forgotten_when_the_actor_stops(ref: ActorRef[Any]) -> None:
    """Threads that ask at the very moment of the stop are answered or refused, never left."""
    ends: list[object] = []
    asking = threading.Barrier(5, timeout=10)

    def ask() -> None:
        asking.wait()
        try:
            while True:
                ref.ask("x", timeout=30)
        except (pykka.ActorDeadError, pykka.Timeout) as error:
            ends.append(type(error))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    asking.wait()
    assert ref.stop(timeout=30)
    for thread in threads:
        thread.join(40)
    assert ends == [pykka.ActorDeadError] * 4
