"""The life of an actor: messages in order, failure and restart, and the stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import InboxFullError, PooledActor
from tests.unit.actors.conftest import Recorder

if TYPE_CHECKING:
    from tests.unit.actors.conftest import Simulation


def test_messages_are_handled_in_order_between_start_and_stop(sim: Simulation) -> None:
    """``on_start`` is called first, and ``on_stop`` after all messages sent before the stop."""
    ref = sim.recorder()
    for message in (None, 0, 1):
        ref.tell(message)
    assert ref.stop()
    assert sim.notes == ["on_start", None, 0, 1, "on_stop"]


def test_a_full_inbox_refuses_messages_but_not_the_stop(sim: Simulation) -> None:
    """The error names the path and the limit; the actor still stops."""
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
    """The failed message is dropped, and the next ones are handled after ``on_restart``."""
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
    """The actor is restarted, and the others go on."""
    ref = sim.recorder()
    other = sim.spawn(Recorder, [], name="other")
    assert sim.ask(other, "a") == 1
    ref.tell(error)
    assert sim.ask(ref, "b") == 1
    assert f"on_restart {error!r}" in sim.notes
    assert sim.ask(other, "b") == 2


def test_the_restart_waits_for_the_backoff(sim: Simulation) -> None:
    """Messages wait meanwhile.

    Each failure doubles the pause up to 5 s, and a minute without one resets it.
    """
    ref = sim.recorder()
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, None, 0.1):
        if pause_s is None:
            sim.advance(60)
            continue
        ref.tell(ValueError("boom"))
        ref.tell("waits")
        sim.notes.clear()
        sim.advance(pause_s - 0.01)
        assert "waits" not in sim.notes
        sim.advance(0.02)
        assert sim.notes[-1] == "waits"


def test_messages_after_the_stop_are_refused(sim: Simulation) -> None:
    """A late question raises ActorDeadError instead of waiting forever."""
    ref = sim.recorder()
    stopped = ref.stop(block=False)
    late = ref.ask("late", block=False)
    assert not ref.try_tell("late")
    assert sim.wait(stopped, None) is True
    with pytest.raises(pykka.ActorDeadError, match="stopped before"):
        late.get(timeout=0)
    with pytest.raises(pykka.ActorDeadError):
        ref.tell("later")
    assert not ref.try_tell("later")


def test_stopping_twice_is_harmless(sim: Simulation) -> None:
    """A stop of a live actor returns True once it is dead, a later one False."""
    ref = sim.recorder()
    first, second = ref.stop(block=False), ref.stop(block=False)
    assert ref.stop() is True
    assert first.get(timeout=0) is second.get(timeout=0) is True
    assert ref.stop() is False
    assert sim.notes.count("on_stop") == 1


def test_a_stop_does_not_wait_for_the_backoff(sim: Simulation) -> None:
    """A failed actor is restarted at once and handles its waiting messages.

    The same if it fails again.
    """
    ref = sim.recorder()
    for message in (ValueError("boom"), ValueError("again"), "waits"):
        ref.tell(message)
    sim.run_until_idle()
    assert ref.stop()
    assert sim.clock.now() == 0
    assert sim.notes[-2:] == ["waits", "on_stop"]
    sim.advance(60)
    assert sim.notes[-1] == "on_stop", "the end of the back-off means nothing to a dead actor"


def test_a_start_that_always_fails_does_not_delay_the_stop(sim: Simulation) -> None:

    class EarlyFailing(Recorder):
        def on_start(self) -> None:
            raise ValueError("on_start")

    ref = sim.spawn(EarlyFailing, [], name="early")
    sim.run_until_idle()
    assert ref.stop()
    assert sim.clock.now() == 0


def test_due_messages_fit_into_a_full_inbox(sim: Simulation) -> None:
    """A dead actor drops them."""
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
    """Sends itself the number of its starts in a second, and notes it."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self._notes = notes

    def on_start(self) -> None:
        self._notes.append("start")
        self.tell_after(1, self._notes.count("start"))

    def on_receive(self, message: Any) -> None:
        """Raise exceptions, set another timer on text, note anything else."""
        if isinstance(message, Exception):
            raise message
        if isinstance(message, str):
            self.tell_after(2, 2)
        else:
            self._notes.append(message)


def test_a_new_timer_replaces_the_pending_one(sim: Simulation) -> None:
    """The same if the message of the pending one waits in the inbox already."""
    ref = sim.spawn(SelfTelling, sim.notes, name="t")
    sim.run_until_idle()
    ref.tell("again")
    sim._manual_clock.advance(1)
    sim.timers.fire_due()
    sim.advance(2)
    assert sim.notes == ["start", 2]


def test_a_failure_and_the_stop_cancel_the_timer(sim: Simulation) -> None:
    """The same for a message that waits in the inbox already."""
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
