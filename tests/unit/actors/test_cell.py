"""An actor's life: messages in order, failure and restart, and the stop."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from structlog.testing import capture_logs

from actors import ActorCrashedError, InboxFullError, PooledActor, Supervision

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors import ActorRef
    from actors.testing import SimSystem

AT_ONCE = Supervision(backoff_s=0)


@pytest.fixture
def spawn(sim: SimSystem, recorder_class: Any, notes: list[object]) -> Callable[..., ActorRef[Any]]:
    """Start a recorder in the simulation."""

    def spawn(**options: Any) -> ActorRef[Any]:
        return sim.spawn(recorder_class, notes, name="r", **options)

    return spawn


def test_messages_are_handled_in_order_between_start_and_stop(
    spawn: Callable[..., ActorRef[Any]], notes: list[object]
) -> None:
    """on_start comes first, then every message told before the stop, then on_stop."""
    ref = spawn()
    for message in range(3):
        ref.tell(message)
    assert ref.stop()
    assert notes == ["on_start", 0, 1, 2, "on_stop"]


def test_any_object_is_a_message(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """None and falsy values are messages like any other."""
    ref = spawn()
    ref.tell(None)
    ref.tell(0)
    sim.run_until_idle()
    assert notes == ["on_start", None, 0]
    assert [step.message_type for step in sim.trace] == ["Start", "NoneType", "int"]


def test_a_full_inbox_refuses_messages_but_not_the_stop(
    spawn: Callable[..., ActorRef[Any]], notes: list[object]
) -> None:
    """At its limit, tell and ask fail with the lineage and the limit; the actor still stops."""
    ref = spawn(inbox_limit=2)
    ref.tell(1)
    ref.tell(2)
    with pytest.raises(InboxFullError, match=r"/r is full: inbox_limit=2") as caught:
        ref.tell(3)
    assert (caught.value.lineage, caught.value.limit) == ("/r", 2)
    assert not ref.try_tell(3)
    assert isinstance(ref.ask(3, block=False).exception(), InboxFullError)
    assert ref.stop()
    assert notes == ["on_start", 1, 2, "on_stop"]


def test_a_failed_tell_calls_supervision_and_restarts_a_fresh_instance(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """Same ref and inbox, new state; the failed message is gone, the next ones are handled."""
    ref = spawn(supervision=AT_ONCE)
    ref.tell("a")
    ref.tell(ValueError("boom"))
    ref.tell("b")
    with capture_logs() as logs:
        sim.run_until_idle()
    assert notes == [
        "on_start",
        "a",
        "on_failure ValueError('boom')",
        "on_start",
        "on_restart ValueError('boom')",
        "b",
    ]
    assert ref.ask("c") == 2, "the count began afresh"
    failed, restarted = logs
    assert failed["event"] == "actor_failed"
    assert (failed["lineage"], failed["message_type"]) == ("/r", "ValueError")
    assert repr(failed["exc_info"]) == "ValueError('boom')"
    assert restarted["event"] == "actor_restarted"


def test_a_failed_ask_answers_and_restarts(spawn: Callable[..., ActorRef[Any]]) -> None:
    """Who asked gets the very exception; the actor's state is rebuilt as after a tell."""
    ref = spawn(supervision=AT_ONCE)
    assert ref.ask("a") == 1
    with pytest.raises(ValueError, match="boom"):
        ref.ask(ValueError("boom"))
    assert ref.ask("b") == 1


def test_a_refusal_answers_an_ask_and_is_no_failure(spawn: Callable[..., ActorRef[Any]]) -> None:
    """An exception that the class lists in `refusals` reaches the caller and keeps the state."""
    ref = spawn()
    assert ref.ask("a") == 1
    with pytest.raises(KeyError):
        ref.ask(KeyError("listed through its base class"))
    assert ref.ask("b") == 2


def test_a_refusal_that_nobody_hears_is_a_failure(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """Under tell an exception has no other taker than supervision."""
    spawn().tell(KeyError("x"))
    sim.run_until_idle()
    assert notes == ["on_start", "on_failure KeyError('x')"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_a_base_exception_is_a_failure_of_its_actor_alone(
    spawn: Callable[..., ActorRef[Any]],
    sim: SimSystem,
    recorder_class: Any,
    error: BaseException,
) -> None:
    """It restarts the actor, spares the others, and reaches who asked wrapped in an Exception."""
    ref = spawn(supervision=AT_ONCE)
    other = sim.spawn(recorder_class, [], name="other")
    assert other.ask("a") == 1
    with pytest.raises(ActorCrashedError, match=type(error).__name__) as caught:
        ref.ask(error)
    assert caught.value.__cause__ is error
    ref.tell(error)
    assert ref.ask("b") == 1
    assert other.ask("b") == 2


def test_the_restart_waits_for_the_backoff(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """While it rests, the actor takes messages and handles none; each failure doubles the rest."""
    ref = spawn(supervision=Supervision(backoff_s=1, backoff_max_s=100))
    for rest_s in (1, 2, 4):
        ref.tell(ValueError("boom"))
        ref.tell("waits")
        notes.clear()
        sim.advance(rest_s - 0.001)
        assert "waits" not in notes
        sim.advance(0.001)
        assert notes[-1] == "waits"


def test_failing_too_often_is_the_end(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """One failure more than the policy allows stops the actor, loudly; on_stop is not called."""
    ref = spawn(supervision=Supervision(max_restarts=2, backoff_s=0))
    waiting = [ref.ask(ValueError("boom"), block=False) for _ in range(4)]
    with capture_logs() as logs:
        sim.run_until_idle()
    assert not ref.is_alive()
    assert [type(future.exception()) for future in waiting] == [
        ValueError,
        ValueError,
        ValueError,
        pykka.ActorDeadError,
    ]
    assert "on_stop" not in notes
    assert logs[-1]["event"] == "actor_gave_up"
    assert logs[-1]["failures"] == 3


def test_failures_outside_the_window_are_forgotten(
    spawn: Callable[..., ActorRef[Any]], sim: SimSystem
) -> None:
    """An actor that fails now and then lives for ever."""
    ref = spawn(supervision=Supervision(max_restarts=1, window_s=10, backoff_s=0))
    for _ in range(20):
        ref.tell(ValueError("boom"))
        sim.advance(10)
    assert ref.is_alive()


def test_a_failing_on_start_is_supervised(
    sim: SimSystem, early_failing_actor_class: Any, notes: list[object]
) -> None:
    """Spawn returns the ref; the actor is restarted by its policy, and then given up."""
    supervision = Supervision(max_restarts=1, backoff_s=0)
    ref = sim.spawn(early_failing_actor_class, notes, name="early", supervision=supervision)
    assert ref.is_alive()
    asked = ref.ask("x", block=False)
    sim.run_until_idle()
    assert notes == ["on_start", "on_failure ValueError('on_start')"] * 2
    assert not ref.is_alive()
    assert isinstance(asked.exception(), pykka.ActorDeadError)


def test_a_failing_constructor_raises_in_spawn_and_leaves_nothing(
    sim: SimSystem, unconstructible_actor_class: type[PooledActor]
) -> None:
    """Who spawns gets the exception; no actor and no timer of it remain."""
    with pytest.raises(ValueError, match="__init__"):
        sim.spawn(unconstructible_actor_class, name="u")
    assert sim.actor_count() == 0
    assert sim.timers.next_due_s() is None


class SecondTimeUnlucky(PooledActor):
    """Cannot be constructed a second time."""

    def __init__(self, constructed: list[int]) -> None:
        super().__init__()
        constructed.append(1)
        if len(constructed) == 2:
            raise OSError("no luck")

    def on_receive(self, message: Any) -> Any:
        """Raise an exception, answer anything else."""
        if isinstance(message, Exception):
            raise message
        return message


def test_a_constructor_that_fails_at_a_restart_is_supervised(sim: SimSystem) -> None:
    """It counts as one more failure, and the next attempt may succeed."""
    ref = sim.spawn(SecondTimeUnlucky, [], name="unlucky", supervision=AT_ONCE)
    ref.tell(ValueError("boom"))
    with capture_logs() as logs:
        assert ref.ask("x") == "x"
    failures = [entry["message_type"] for entry in logs if entry["event"] == "actor_failed"]
    assert failures == ["ValueError", "__init__"]


def test_a_failure_in_on_failure_changes_nothing(
    sim: SimSystem, failing_on_failure_actor_class: Any, notes: list[object]
) -> None:
    """The hook's own exception is logged, and the restart goes on."""
    ref = sim.spawn(failing_on_failure_actor_class, notes, name="f", supervision=AT_ONCE)
    ref.tell(ValueError("boom"))
    with capture_logs() as logs:
        assert ref.ask("x") == 1
    assert [(e["event"], e.get("hook")) for e in logs if "hook" in e] == [
        ("actor_hook_failed", "on_failure")
    ]


def test_a_failure_in_on_stop_is_logged_and_the_actor_is_dead(
    sim: SimSystem, late_failing_actor_class: Any, notes: list[object]
) -> None:
    """A stop ends, whatever on_stop raises."""
    ref = sim.spawn(late_failing_actor_class, notes, name="late")
    with capture_logs() as logs:
        assert ref.stop()
    assert not ref.is_alive()
    assert sim.actor_count() == 0
    assert [(entry["event"], entry["hook"]) for entry in logs] == [("actor_hook_failed", "on_stop")]


def test_what_waits_behind_the_stop_is_answered(spawn: Callable[..., ActorRef[Any]]) -> None:
    """Who asked too late gets ActorDeadError instead of waiting for ever."""
    ref = spawn()
    stopped = ref.stop(block=False)
    late = ref.ask("late", block=False)
    assert ref.cell.system.wait(stopped, None) is True
    assert isinstance(late.exception(), pykka.ActorDeadError)
    with pytest.raises(pykka.ActorDeadError, match=r"Recorder \(/r\) is stopped"):
        ref.tell("later")
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("later")
    assert not ref.try_tell("later")


class DyingOnAppend(deque[Any]):
    """An inbox whose actor dies between a sender's look at it and the message's arrival."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        super().__init__()
        self._ref = ref

    def append(self, entry: Any) -> None:
        """Let the actor die first."""
        self._ref.cell.begin_stop()
        super().append(entry)


def test_an_ask_that_meets_the_death_is_answered(
    spawn: Callable[..., ActorRef[Any]], sim: SimSystem
) -> None:
    """A message that arrives just after the last look into the inbox is refused by its sender."""
    ref = spawn()
    sim.run_until_idle()
    ref.cell._inbox = DyingOnAppend(ref)
    asked = ref.ask("x", block=False)
    assert isinstance(asked.exception(), pykka.ActorDeadError)


def test_stopping_twice_is_harmless(
    spawn: Callable[..., ActorRef[Any]], notes: list[object]
) -> None:
    """Every stop of a living actor answers True when it is dead, any later one False."""
    ref = spawn()
    first, second = ref.stop(block=False), ref.stop(block=False)
    assert ref.stop() is True
    assert first.get(timeout=0) is second.get(timeout=0) is True
    assert ref.stop() is False
    assert notes.count("on_stop") == 1


def test_a_stop_does_not_wait_for_the_backoff(
    spawn: Callable[..., ActorRef[Any]], notes: list[object], sim: SimSystem
) -> None:
    """An actor that rests is restarted at once when it shall stop, and handles what waits first."""
    ref = spawn(supervision=Supervision(backoff_s=5))
    ref.tell(ValueError("boom"))
    ref.tell("waits")
    sim.run_until_idle()
    assert ref.stop()
    assert sim.clock.now() == 0
    assert notes[-2:] == ["waits", "on_stop"]
    sim.advance(60)
    assert notes[-1] == "on_stop", "the end of the rest means nothing to a dead actor"


def test_the_rest_of_an_earlier_failure_does_not_shorten_a_later_one(
    sim: SimSystem, recorder_class: Any, notes: list[object]
) -> None:
    """A timer of a backoff that a decision overtook cannot restart the actor once more."""
    ref = sim.spawn(recorder_class, notes, name="r", supervision=Supervision(backoff_s=1))
    ref.tell(ValueError("first"))
    sim.run_until_idle()
    stale = ref.cell._backoff
    assert stale is not None
    sim.advance(1)
    ref.tell(ValueError("second"))
    sim.run_until_idle()
    ref.cell.signal(stale)
    sim.run_until_idle()
    assert notes[-1] == "on_failure ValueError('second')"


def test_a_failure_cancels_the_timers_of_the_instance(sim: SimSystem, notes: list[object]) -> None:
    """No tick of the failed instance reaches the fresh one, not even one that waits already."""
    ref = sim.spawn(SelfTicking, notes, name="t", supervision=AT_ONCE)
    sim.run_until_idle()
    ref.tell(ValueError("boom"))
    sim._manual_clock.advance(1)
    sim.timers.fire_due()
    sim.run_until_idle()
    assert notes == [(1, "start"), (2, "start")]
    sim.advance(1)
    assert notes == [(1, "start"), (2, "start"), (2, "tick")]
    assert ref.stop()
    assert sim.timers.next_due_s() is None


class SelfTicking(PooledActor):
    """Ticks each second; notes which of its instances did what."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self._notes = notes

    def on_start(self) -> None:
        """Set the timer."""
        self._generation = 1 + sum(note[1] == "start" for note in self._notes)  # type: ignore[index]
        self._notes.append((self._generation, "start"))
        self.tell_every(1, "tick")

    def on_receive(self, message: Any) -> None:
        """Raise an exception, note anything else."""
        if isinstance(message, Exception):
            raise message
        self._notes.append((self._generation, message))


@pytest.mark.parametrize(
    ("options", "named"), [({"name": ""}, "name=''"), ({"inbox_limit": 0}, "inbox_limit=0")]
)
def test_a_nameless_or_deaf_actor_is_refused(
    sim: SimSystem, recorder_class: Any, options: dict[str, Any], named: str
) -> None:
    """Spawn names the field and the value that mean nothing."""
    with pytest.raises(ValueError, match=named):
        sim.spawn(recorder_class, [], **{"name": "r", **options})
    assert sim.actor_count() == 0


class Owned:
    """What an actor is made of, and who knows the actor."""

    ref: ActorRef[Any]


class Owner(PooledActor):
    """Is made of something."""

    def __init__(self, owned: Owned) -> None:
        super().__init__()
        self._owned = owned


def test_what_an_ended_actor_was_made_of_goes_with_it(sim: SimSystem) -> None:
    """No collection is needed for it, although it knows the actor."""
    owned = Owned()
    owned.ref = sim.spawn(Owner, owned, name="r")
    sim.run_until_idle()
    gone = weakref.ref(owned)
    gc.disable()
    try:
        assert owned.ref.stop()
        sim.run_until_idle()
        del owned
        assert gone() is None
    finally:
        gc.enable()
