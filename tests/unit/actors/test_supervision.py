"""The restart policy; parents and children, and who stops with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import NEVER_GIVE_UP, ActorRef, PooledActor, Supervision

if TYPE_CHECKING:
    from tests.unit.actors.conftest import Simulation

AT_ONCE = Supervision(backoff_s=0)


class Parent(PooledActor):
    """Spawns what it is told, and notes what it hears."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self.notes = notes

    def on_receive(self, message: Any) -> Any:
        """Spawn for keyword arguments, raise exceptions, note anything else."""
        if isinstance(message, dict):
            return self.spawn_child(Parent, self.notes, **message)
        if isinstance(message, BaseException):
            raise message
        self.notes.append(message)
        return self.parent

    def on_restart(self, reason: BaseException) -> None:
        """Note it."""
        self.notes.append(f"{self.actor_urn} restarted after {reason}")

    def on_stop(self) -> None:
        """Note it."""
        self.notes.append(f"{self.actor_urn} stopped")


@pytest.fixture
def parent(sim: Simulation, notes: list[object]) -> ActorRef[Parent]:
    """A parent without children."""
    return sim.spawn(Parent, notes, name="parent", supervision=AT_ONCE)


@given(st.integers(1, 2000))
def test_the_rest_doubles_up_to_its_limit(failures: int) -> None:
    """The n-th failure rests twice as long as the one before, never above the limit."""
    policy = Supervision(None, backoff_s=0.5, backoff_max_s=30)
    rest_s = policy.rest_s(failures)
    if failures == 1:
        assert rest_s == 0.5
    else:
        assert rest_s == min(30, 2 * (policy.rest_s(failures - 1) or 0))


@given(st.lists(st.floats(0, 1000)), st.integers(0, 10))
def test_the_memory_of_failures_is_bounded(times_s: list[float], max_restarts: int) -> None:
    """However many failures there were, no more are kept than the decision needs."""
    policy = Supervision(max_restarts=max_restarts, window_s=100)
    kept = policy.recent(sorted(times_s), 1000)
    within = [at_s for at_s in times_s if at_s > 900]
    assert len(kept) == min(len(within), max_restarts + 1)
    assert (policy.rest_s(len(kept)) is None) == (len(within) > max_restarts)
    assert len(NEVER_GIVE_UP.recent([1000.0] * 1000, 1000)) < 100


def test_an_actor_is_named_by_its_path_from_the_root(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """A name may be a path itself; a child knows its parent."""
    child = sim.ask(parent, {"name": "orders-etl/orders"})
    grandchild = sim.ask(child, {"name": "3"})
    assert str(grandchild) == "Parent (/parent/orders-etl/orders/3)"
    assert sim.ask(grandchild, "parent?") is child
    assert sim.ask(parent, "parent?") is None


def test_a_child_is_restarted_without_its_parent(
    parent: ActorRef[Parent], notes: list[object], sim: Simulation
) -> None:
    """A failure stays with the child: parent and siblings do not notice."""
    child, sibling = (sim.ask(parent, {"name": name, "supervision": AT_ONCE}) for name in "ab")
    child.tell(ValueError("boom"))
    sim.ask(sibling, "sibling")
    sim.ask(child, "child")
    assert sorted(map(str, notes)) == ["/parent/a restarted after boom", "child", "sibling"]


def test_a_restart_stops_the_children_first(
    parent: ActorRef[Parent], notes: list[object], sim: Simulation
) -> None:
    """A fresh instance begins without children: those of the failed one stopped before it."""
    children = [sim.ask(parent, {"name": name}) for name in "ab"]
    children[0].tell("last words")
    parent.tell(ValueError("boom"))
    sim.run_until_idle()
    assert not any(child.is_alive() for child in children)
    assert "last words" in notes
    assert notes[-1] == "/parent restarted after boom"


def test_a_stop_takes_the_children_first_and_their_messages_before(
    parent: ActorRef[Parent], notes: list[object], sim: Simulation
) -> None:
    """From the leaves to the root, and each handles what it has before it stops."""
    child = sim.ask(parent, {"name": "a"})
    grandchild = sim.ask(child, {"name": "b"})
    grandchild.tell("last words")
    assert parent.stop()
    assert notes == ["last words", "/parent/a/b stopped", "/parent/a stopped", "/parent stopped"]


def test_a_failing_child_neither_holds_up_the_stop_nor_loses_messages(
    parent: ActorRef[Parent], sim: Simulation, notes: list[object]
) -> None:
    """A child that fails while its parent stops is restarted without a rest, as often as it may."""
    child = sim.ask(parent, {"name": "a", "supervision": Supervision(max_restarts=3)})
    parent.stop(block=False)
    for _ in range(3):
        child.tell(ValueError("boom"))
    child.tell("last words")
    assert parent.stop()
    assert sim.clock.now() == 0
    assert notes[-3:] == ["last words", "/parent/a stopped", "/parent stopped"]


def test_a_parent_that_stops_takes_no_children(parent: ActorRef[Parent], sim: Simulation) -> None:
    """The spawn is refused by name and phase."""
    parent.stop()
    with pytest.raises(pykka.ActorDeadError, match=r"/parent cannot take .*/late.* DEAD"):
        sim.spawn(Parent, [], name="late", parent=parent)


def test_a_constructor_has_no_system_yet(sim: Simulation) -> None:
    """An actor that may yet fail to exist has no children; it has no system yet."""

    class Premature(PooledActor):
        def __init__(self) -> None:
            super().__init__()
            self.spawn_child(Parent, [], name="child")

    with pytest.raises(AttributeError, match="system"):
        sim.spawn(Premature, name="premature")
    assert sim.actor_count() == 0
