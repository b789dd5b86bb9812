"""The thread pool: fixed threads, fair turns, no thread lost to an exception."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from actors import ActorSystem, PoolDispatcher, PooledActor, Strand
from tests.logs import capture_logs
from tests.together import together
from tests.unit.actors.conftest import Recorder
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.actors.conftest import Simulation


class Job:
    path = "/job"

    def __init__(self, call: Any) -> None:
        self._call = call

    def run(self, budget: int) -> str | None:
        self._call(budget)
        return None


@pytest.fixture
def pool() -> Iterator[PoolDispatcher]:
    pool = PoolDispatcher(2, 3, name="pool")
    yield pool
    assert pool.stop(WAIT_S)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_a_raising_turn_ends_no_thread(pool: PoolDispatcher, error: BaseException) -> None:
    """The exception is logged with the path of the actor."""

    def fail(budget: int) -> None:
        raise error

    with capture_logs() as logs:
        for _ in range(4):
            pool.schedule(Job(fail))
        meeting = threading.Barrier(3, timeout=WAIT_S)
        for _ in range(2):
            pool.schedule(Job(lambda _: meeting.wait()))
        meeting.wait()
    assert [line["event"] for line in logs] == ["the turn of actor /job failed"] * 4


class Busy(PooledActor):
    """Sends itself messages until ``done`` is set."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self._done = done

    def on_receive(self, message: Any) -> None:
        if not self._done.is_set():
            self.actor_ref.tell(message)


def test_a_busy_actor_does_not_starve_the_others() -> None:
    """On a single thread."""
    done = threading.Event()
    with ActorSystem(threads=1, throughput=2) as system:
        system.spawn(Busy, done, name="busy").tell("go")
        quiet = system.spawn(Echo, name="quiet")
        assert [quiet.ask(i, timeout=WAIT_S) for i in range(5)] == [0, 1, 2, 3, 4]
        done.set()


class Echo(PooledActor):
    def on_receive(self, message: Any) -> Any:
        return message


class Companion(PooledActor):
    """Counts without a lock, and shares the counter with the other actors of its strand."""

    def __init__(self, counter: list[int]) -> None:
        super().__init__()
        self._counter = counter

    def on_receive(self, _message: Any) -> int:
        before = self._counter[0]
        if before % 100 == 0:
            os.stat(".")  # noqa: PTH116 - lets go of the interpreter, as any I/O does
        self._counter[0] = before + 1
        return self._counter[0]


@pytest.mark.parametrize("count", [1, 4], ids=["one actor", "actors of a strand"])
def test_an_actor_and_a_strand_are_never_run_by_two_threads_at_once(count: int) -> None:
    """Four threads send, four threads run them: no message and no change is lost."""
    counter = [0]
    with ActorSystem(threads=4, throughput=3) as system:
        strand = Strand(system.dispatcher) if count > 1 else None
        refs = [
            system.spawn(Companion, counter, name=f"{n}", strand=strand, inbox_limit=100_000)
            for n in range(count)
        ]

        def send(_sender: int) -> None:
            for number in range(4_000):
                refs[number % count].tell("count")

        together(4, send)
        for ref in refs:
            ref.ask("count", timeout=WAIT_S)
    assert counter == [16_000 + count]


def test_a_failing_actor_does_not_delay_its_strand(sim: Simulation) -> None:
    """The others take their turns during its back-off."""
    strand = Strand(sim.dispatcher)
    failing = sim.spawn(Recorder, sim.notes, name="failing", strand=strand)
    other = sim.spawn(Recorder, [], name="other", strand=strand)
    failing.tell(ValueError("boom"))
    failing.tell("later")
    assert sim.ask(other, "a") == 1
    assert "later" not in sim.notes
    sim.advance(1)
    assert sim.notes[-1] == "later"
