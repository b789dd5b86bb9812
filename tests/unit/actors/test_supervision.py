"""The restart policy; parents and children, and who stops with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import ActorRef, PooledActor

if TYPE_CHECKING:
    from tests.unit.actors.conftest import Simulation


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
        self.notes.append(f"{self.actor_urn} restarted after {reason}")

    def on_stop(self) -> None:
        self.notes.append(f"{self.actor_urn} stopped")


@pytest.fixture
def parent(sim: Simulation) -> ActorRef[Parent]:
    return sim.spawn(Parent, sim.notes, name="parent")


def test_an_actor_is_named_by_its_path_from_the_root(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """A name may be a path itself; a child knows its parent."""
    child = sim.ask(parent, {"name": "orders-etl/orders"})
    grandchild = sim.ask(child, {"name": "3"})
    assert str(grandchild) == "Parent (/parent/orders-etl/orders/3)"
    assert sim.ask(grandchild, "parent?") is child
    assert sim.ask(parent, "parent?") is None


def test_a_child_is_restarted_without_its_parent(parent: ActorRef[Parent], sim: Simulation) -> None:
    """A failure stays with the child: parent and siblings do not notice."""
    child, sibling = (sim.ask(parent, {"name": name}) for name in "ab")
    child.tell(ValueError("boom"))
    sim.ask(sibling, "sibling")
    sim.ask(child, "child")
    assert sorted(map(str, sim.notes)) == ["/parent/a restarted after boom", "child", "sibling"]


def test_children_survive_a_failure_of_their_parent(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """They neither stop nor wait."""
    child = sim.ask(parent, {"name": "a"})
    parent.tell(ValueError("boom"))
    child.tell("meanwhile")
    sim.advance(1)
    assert child.is_alive()
    assert sorted(map(str, sim.notes)) == ["/parent restarted after boom", "meanwhile"]


def test_a_stop_takes_the_children_first_and_their_messages_before(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """From the leaves to the root, and each handles what it has before it stops."""
    child = sim.ask(parent, {"name": "a"})
    grandchild = sim.ask(child, {"name": "b"})
    grandchild.tell("last words")
    assert parent.stop()
    assert sim.notes == [
        "last words",
        "/parent/a/b stopped",
        "/parent/a stopped",
        "/parent stopped",
    ]


def test_a_failing_child_neither_holds_up_the_stop_nor_loses_messages(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """A child that fails while its parent stops is restarted without a rest, as often as it may."""
    child = sim.ask(parent, {"name": "a"})
    parent.stop(block=False)
    for _ in range(3):
        child.tell(ValueError("boom"))
    child.tell("last words")
    assert parent.stop()
    assert sim.clock.now() == 0
    assert sim.notes[-3:] == ["last words", "/parent/a stopped", "/parent stopped"]


def test_a_parent_that_stops_takes_no_children(parent: ActorRef[Parent], sim: Simulation) -> None:
    """The spawn is refused by name and phase."""
    parent.stop()
    with pytest.raises(pykka.ActorDeadError, match=r"/parent cannot take .*/late.* DEAD"):
        sim.spawn(Parent, [], name="late", parent=parent)
