"""The reference: it is pykka's, it survives restarts, and it wakes who waits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import ActorRef, Supervision

if TYPE_CHECKING:
    from actors import ActorSystem


@pytest.fixture
def ref(system: ActorSystem, recorder_class: Any) -> ActorRef[Any]:
    """A recorder on real threads, which is restarted without a rest."""
    return system.spawn(recorder_class, [], name="r", supervision=Supervision(backoff_s=0))


def test_it_is_a_pykka_ref(ref: ActorRef[Any]) -> None:
    """Whatever takes pykka's ActorRef takes this one."""
    assert isinstance(ref, pykka.ActorRef)
    assert repr(ref) == "<ActorRef for Recorder (/r)>"
    assert ref.actor_urn == ref.lineage == "/r"


def test_a_blocking_ask_waits_at_most_its_timeout(ref: ActorRef[Any]) -> None:
    """While the actor is busy, ask gives up in time and the message stays."""
    busy = threading.Event()

    def wait(_: object) -> None:
        busy.wait(30)

    ref.ask("first", block=False).add_done_callback(wait)
    with pytest.raises(pykka.Timeout):
        ref.ask("second", timeout=0.01)
    busy.set()
    assert ref.ask("third", timeout=10) == 3


def test_an_ask_can_be_awaited(ref: ActorRef[Any]) -> None:
    """An event loop awaits answers and stops without a thread of its own."""

    async def main() -> tuple[int, bool]:
        answer = await ref.ask("x", block=False)
        return answer, await ref.stop(block=False)

    assert asyncio.run(main()) == (1, True)


def test_the_proxy_follows_a_restart(ref: ActorRef[Any]) -> None:
    """A proxy made after a restart looks at the fresh instance."""
    ref.tell("one")
    assert ref.proxy().handled.get(timeout=10) == 1
    ref.tell(ValueError("boom"))
    assert ref.ask("one again", timeout=10) == 1
    assert ref.proxy().handled.get(timeout=10) == 1


def test_the_stopped_event_of_a_dead_actor_is_set(ref: ActorRef[Any]) -> None:
    """The actor_stopped of pykka can be waited for before the stop and looked at after it."""
    before = ref.actor_stopped
    assert not before.is_set()
    assert ref.stop(timeout=10)
    assert before.wait(10)
    assert ref.actor_stopped.is_set()


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
    assert ref.ask("x", timeout=10) >= 1
    assert ref.stop(timeout=30)
    for thread in threads:
        thread.join(40)
    assert ends == [pykka.ActorDeadError] * 4
