"""The system: how much it holds, and that it stops by its deadline."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from structlog.testing import capture_logs

from actors import ActorSystem, PooledActor

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 10_000


class Idle(PooledActor):
    """Does nothing."""

    def on_receive(self, message: Any) -> Any:
        """Answer."""
        return message


class Nursery(PooledActor):
    """Has many children."""

    def on_start(self) -> None:
        """Spawn them."""
        for index in range(MANY):
            self.spawn_child(Idle, name=str(index))

    def on_receive(self, _message: Any) -> int:
        """Answer once they are there."""
        return MANY


def names() -> set[str]:
    """Names of the threads of the systems in this file."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("many")}


def test_ten_thousand_actors_share_the_threads() -> None:
    """Children and roots by the ten thousand: no thread more, and every one of them stops."""
    with ActorSystem(threads=2, name="many") as system:
        expected = {"many-0", "many-1", "many-timers"}
        assert names() == expected
        nursery = system.spawn(Nursery, name="nursery")
        roots = [system.spawn(Idle, name=str(index)) for index in range(MANY)]
        assert nursery.ask("children", timeout=60) == MANY
        answers = [ref.ask(index, block=False) for index, ref in enumerate(roots)]
        assert [future.get(timeout=60) for future in answers] == list(range(MANY))
        assert system.actor_count() == 2 * MANY + 1
        assert names() == expected
        assert system.stop(timeout_s=60)
        assert system.actor_count() == 0
    assert names() == set()


def test_a_stopped_system_starts_nothing_and_stops_again() -> None:
    """Spawn is refused with the system's name; a second stop is harmless."""
    system = ActorSystem(threads=1, name="gone")
    assert system.stop()
    with pytest.raises(pykka.ActorDeadError, match=r"'gone'.*/late"):
        system.spawn(Idle, name="late")
    assert system.stop()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets stuck actors go, at the latest when the test is over."""
    release = threading.Event()
    yield release
    release.set()


class Stuck(PooledActor):
    """Blocks its thread until it is released."""

    def __init__(self, release: threading.Event, running: threading.Event) -> None:
        super().__init__()
        self._release = release
        self._running = running

    def on_receive(self, _message: Any) -> None:
        """Block."""
        self._running.set()
        self._release.wait(60)


class StuckThenFailing(Stuck):
    """Blocks its thread, and fails once it is released."""

    def on_receive(self, message: Any) -> None:
        """Block, then fail."""
        super().on_receive(message)
        raise ValueError("late")


def test_stop_returns_by_its_deadline_and_leaves_nobody_waiting(release: threading.Event) -> None:
    """With an actor that does not return, stop says so, and who waits for the actor is answered."""
    system = ActorSystem(threads=2, name="stuck")
    running = threading.Event()
    ref = system.spawn(Stuck, release, running, name="stuck")
    ref.tell("block")
    assert running.wait(10)
    asked: Any = ref.ask("never handled", block=False)
    stopped = ref.stop(block=False)
    with capture_logs() as logs:
        assert not system.stop(timeout_s=0.05)
    assert isinstance(asked.exception(), pykka.ActorDeadError)
    assert stopped.get(timeout=10) is False
    assert [(entry["event"], entry["first"]) for entry in logs] == [
        ("actors_left_behind", ["/stuck"])
    ]


def test_an_abandoned_actor_answers_nobody_for_ever(release: threading.Event) -> None:
    """Who asks an actor that was left behind is refused; it stays dead when it comes to."""
    system = ActorSystem(threads=1, name="abandoned")
    running = threading.Event()
    ref = system.spawn(StuckThenFailing, release, running, name="stuck")
    ref.tell("block")
    assert running.wait(10)
    assert not system.stop(timeout_s=0.05)
    assert not ref.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("late", timeout=10)
    release.set()
    assert system.dispatcher.stop(10)
    assert not ref.is_alive()


def test_stop_handles_what_waits_in_every_inbox() -> None:
    """A system that stops loses no message that was told before."""
    handled: list[int] = []

    class Slow(PooledActor):
        def on_receive(self, message: int) -> None:
            handled.append(message)

    with ActorSystem(threads=1, throughput=1) as system:
        refs = [system.spawn(Slow, name=str(index)) for index in range(10)]
        for number in range(100):
            for ref in refs:
                ref.tell(number)
    assert sorted(handled) == sorted(list(range(100)) * 10)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_no_exception_takes_the_system_down(
    system: ActorSystem, recorder_class: Any, error: BaseException
) -> None:
    """Actors that raise the worst on every thread leave the others, and the pool, as they were."""
    healthy = system.spawn(Idle, name="healthy")
    victims = [system.spawn(recorder_class, [], name=str(index)) for index in range(8)]
    for victim in victims:
        victim.tell(error)
    assert [healthy.ask(number, timeout=10) for number in range(50)] == list(range(50))
    assert all(victim.is_alive() for victim in victims)


def test_no_child_is_lost_when_its_parent_stops_meanwhile(system: ActorSystem) -> None:
    """Children spawned by other threads during the stop are refused or stopped, never orphaned."""
    parent = system.spawn(Idle, name="parent")
    born: list[pykka.ActorRef[Any]] = []
    ready = threading.Barrier(5, timeout=10)

    def spawn() -> None:
        ready.wait()
        try:
            for name in map(str, range(10_000)):
                born.append(system.spawn(Idle, name=name, parent=parent))  # noqa: PERF401
        except pykka.ActorDeadError:
            return

    threads = [threading.Thread(target=spawn, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert parent.stop(timeout=30)
    for thread in threads:
        thread.join(30)
    assert system.actor_count() == 0
    assert not any(child.is_alive() for child in born)
