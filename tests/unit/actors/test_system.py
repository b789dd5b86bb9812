"""The actor system: its capacity, and stops by a deadline."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import ActorSystem, PooledActor
from tests.logs import capture_logs
from tests.together import together
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 2_000


class Idle(PooledActor):
    def on_receive(self, message: Any) -> Any:
        return message


def names() -> set[str]:
    """Return the names of the threads of the system ``many``."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("many")}


def test_thousands_of_actors_share_the_threads() -> None:
    """No thread is added, and all of them stop."""
    with ActorSystem(threads=2, name="many") as system:
        expected = {"many-0", "many-1", "many-timers"}
        assert names() == expected
        refs = [system.spawn(Idle, name=str(index)) for index in range(MANY)]
        answers = [ref.ask(index, block=False) for index, ref in enumerate(refs)]
        assert [future.get(timeout=WAIT_S) for future in answers] == list(range(MANY))
        assert system.actor_count() == MANY
        assert names() == expected
        assert system.stop(timeout_s=WAIT_S)
        assert system.actor_count() == 0
    assert names() == set()


def test_a_stopped_system_refuses_spawns() -> None:
    """The error names the system and the actor; a second stop is harmless."""
    system = ActorSystem(threads=1, name="gone")
    assert system.stop()
    with pytest.raises(pykka.ActorDeadError, match=r"'gone'.*/late"):
        system.spawn(Idle, name="late")
    assert system.stop()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Releases stuck actors, at the latest after the test."""
    release = threading.Event()
    yield release
    release.set()


class Stuck(PooledActor):
    def __init__(self, release: threading.Event, running: threading.Event) -> None:
        super().__init__()
        self._release = release
        self._running = running

    def on_receive(self, _message: Any) -> None:
        self._running.set()
        self._release.wait(WAIT_S)


def test_a_stop_with_a_stuck_actor_returns_by_its_deadline(release: threading.Event) -> None:
    """It returns False and is logged; callers that wait for the actor get an error."""
    system = ActorSystem(threads=2, name="stuck")
    running = threading.Event()
    ref = system.spawn(Stuck, release, running, name="stuck")
    ref.tell("block")
    assert running.wait(WAIT_S)
    asked: Any = ref.ask("never handled", block=False)
    stopped = ref.stop(block=False)
    with capture_logs() as logs:
        assert not system.stop(timeout_s=0.05)
    assert isinstance(asked.exception(), pykka.ActorDeadError)
    assert stopped.get(timeout=WAIT_S) is False
    (line,) = logs
    assert line["event"] == "1 actors of system 'stuck' did not stop in time, such as /stuck"


def test_actors_spawned_during_a_stop_are_stopped_or_refused() -> None:
    """None outlives its system."""
    system = ActorSystem(threads=2)
    born: list[pykka.ActorRef[Any]] = []

    def spawn_or_stop(number: int) -> None:
        if number == 0:
            assert system.stop(timeout_s=WAIT_S)
            return
        with suppress(pykka.ActorDeadError):
            for name in map(str, range(10_000)):
                born.append(system.spawn(Idle, name=name))  # noqa: PERF401

    together(5, spawn_or_stop)
    assert system.actor_count() == 0
    assert not any(ref.is_alive() for ref in born)
