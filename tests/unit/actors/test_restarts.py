"""An actor's life: messages in order, failure and restart, and the stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import InboxFullError, PooledActor
from tests.unit.actors.conftest import Recorder

if TYPE_CHECKING:
    from tests.unit.actors.conftest import Simulation


def test_messages_are_handled_in_order_between_start_and_stop(sim: Simulation) -> None:
    """on_start comes first, then every message told before the stop, then on_stop."""
    ref = sim.recorder()
    for message in (None, 0, 1):
        ref.tell(message)
    assert ref.stop()
    assert sim.notes == ["on_start", None, 0, 1, "on_stop"]


def test_a_full_inbox_refuses_messages_but_not_the_stop(sim: Simulation) -> None:
    """At its limit, a tell fails with the path and the limit; the actor still stops."""
    ref = sim.recorder(inbox_limit=2)
    ref.tell(1)
    ref.tell(2)
    with pytest.raises(InboxFullError, match=r"/r is full: inbox_limit=2"):
        ref.tell(3)
    assert not ref.try_tell(3)
    assert ref.stop()
    assert sim.notes == ["on_start", 1, 2, "on_stop"]


def test_a_failed_actor_goes_on_with_its_state(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    """``on_restart`` puts it in order; the failed message is gone, the next ones are handled."""
    ref = sim.recorder()
    ref.tell("a")
    ref.tell(ValueError("boom"))
    ref.tell("b")
    sim.advance(1)
    assert sim.notes == [
        "on_start",
        "a",
        "on_failure ValueError('boom')",
        "on_restart ValueError('boom')",
        "b",
    ]
    assert sim.ask(ref, "c") == 3
    (failed,) = caplog.records
    assert failed.getMessage() == "actor /r failed at ValueError"
    assert failed.exc_info
    assert repr(failed.exc_info[1]) == "ValueError('boom')"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_a_base_exception_is_a_failure_of_its_actor_alone(
    sim: Simulation, error: BaseException
) -> None:
    """It restarts the actor and spares the others."""
    ref = sim.recorder()
    other = sim.spawn(Recorder, [], name="other")
    assert sim.ask(other, "a") == 1
    ref.tell(error)
    assert sim.ask(ref, "b") == 1
    assert f"on_restart {error!r}" in sim.notes
    assert sim.ask(other, "b") == 2


def test_an_actor_restarts_as_it_starts_by_default(sim: Simulation) -> None:
    """An actor without an ``on_restart`` of its own calls ``on_start`` again."""
    ref = sim.spawn(SelfTelling, sim.notes, name="t")
    ref.tell(ValueError("boom"))
    sim.advance(1)
    assert sim.notes[:2] == ["start", "start"]


def test_the_restart_waits_for_the_backoff(sim: Simulation) -> None:
    """While it rests, the actor takes messages and handles none.

    Each failure doubles the rest up to 5 s, and a minute without one begins anew.
    """
    ref = sim.recorder()
    for rest_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, None, 0.1):
        if rest_s is None:
            sim.advance(60)
            continue
        ref.tell(ValueError("boom"))
        ref.tell("waits")
        sim.notes.clear()
        sim.advance(rest_s - 0.01)
        assert "waits" not in sim.notes
        sim.advance(0.02)
        assert sim.notes[-1] == "waits"


def test_whoever_comes_behind_the_stop_is_refused(sim: Simulation) -> None:
    """A late question gets ActorDeadError instead of waiting for ever."""
    ref = sim.recorder()
    stopped = ref.stop(block=False)
    late = ref.ask("late", block=False)
    assert sim.wait(stopped, None) is True
    with pytest.raises(pykka.ActorDeadError, match="stopped before"):
        late.get(timeout=0)
    with pytest.raises(pykka.ActorDeadError):
        ref.tell("later")
    assert not ref.try_tell("later")


def test_stopping_twice_is_harmless(sim: Simulation) -> None:
    """Every stop of a living actor answers True when it is dead, any later one False."""
    ref = sim.recorder()
    first, second = ref.stop(block=False), ref.stop(block=False)
    assert ref.stop() is True
    assert first.get(timeout=0) is second.get(timeout=0) is True
    assert ref.stop() is False
    assert sim.notes.count("on_stop") == 1


def test_a_stop_does_not_wait_for_the_backoff(sim: Simulation) -> None:
    """An actor that rests is restarted at once when it shall stop, and handles what waits first.

    Also where that fails again.
    """
    ref = sim.recorder()
    for message in (ValueError("boom"), ValueError("again"), "waits"):
        ref.tell(message)
    sim.run_until_idle()
    assert ref.stop()
    assert sim.clock.now() == 0
    assert sim.notes[-2:] == ["waits", "on_stop"]
    sim.advance(60)
    assert sim.notes[-1] == "on_stop", "the end of the rest means nothing to a dead actor"


def test_a_start_that_fails_for_ever_does_not_hold_up_the_stop(sim: Simulation) -> None:
    """The policy may never give up: the stop does."""

    class EarlyFailing(Recorder):
        def on_start(self) -> None:
            raise ValueError("on_start")

    ref = sim.spawn(EarlyFailing, [], name="early")
    sim.run_until_idle()
    assert ref.stop()
    assert sim.clock.now() == 0


def test_what_is_due_fits_into_a_full_inbox(sim: Simulation) -> None:
    """It is not lost because others filled the inbox; for a dead actor it means nothing."""
    ref = sim.recorder(inbox_limit=1)
    ref.tell("full")
    ref.tell_due("due")
    sim.run_until_idle()
    assert sim.notes == ["on_start", "full", "due"]
    ref.stop()
    ref.tell_due("late")
    sim.run_until_idle()
    assert sim.notes[-1] == "on_stop"


class SelfTelling(PooledActor):
    """Tells itself in a second how often it has started, and notes that."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self._notes = notes

    def on_start(self) -> None:
        self._notes.append("start")
        self.tell_after(1, self._notes.count("start"))

    def on_receive(self, message: Any) -> None:
        """Raise an exception, tell itself text in two seconds, note anything else."""
        if isinstance(message, Exception):
            raise message
        if isinstance(message, str):
            self.tell_after(2, 2)
        else:
            self._notes.append(message)


def test_a_timer_takes_the_place_of_the_one_before(sim: Simulation) -> None:
    """Also of one whose message waits in the inbox already."""
    ref = sim.spawn(SelfTelling, sim.notes, name="t")
    sim.run_until_idle()
    ref.tell("anew")
    sim._manual_clock.advance(1)
    sim.timers.fire_due()
    sim.advance(2)
    assert sim.notes == ["start", 2]


def test_a_failure_and_the_stop_cancel_the_timer(sim: Simulation) -> None:
    """No message from before a failure comes after it, not even one that waits already."""
    ref = sim.spawn(SelfTelling, sim.notes, name="t")
    sim.run_until_idle()
    ref.tell(ValueError("boom"))
    sim._manual_clock.advance(1)
    sim.timers.fire_due()
    sim.run_until_idle()
    sim.advance(2)
    assert sim.notes == ["start", "start", 2]
    ref.tell(ValueError("boom"))
    assert ref.stop()
    assert sim.timers.next_due_s() is None
