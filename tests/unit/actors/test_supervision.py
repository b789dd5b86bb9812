"""Parents and children: paths, failures and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import ActorRef, PooledActor

if TYPE_CHECKING:
    from tests.unit.actors.conftest import Simulation


class Parent(PooledActor):
    """Spawns children on request, and notes all other messages."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self.notes = notes

    def on_receive(self, message: Any) -> Any:
        """Spawn a child by keyword arguments, raise exceptions, note anything else."""
        if isinstance(message, dict):
            ref = self.actor_ref
            return self.system.spawn(Parent, self.notes, parent=ref, **message)
        if isinstance(message, BaseException):
            raise message
        self.notes.append(message)
        return None

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
    """A name may be a path itself."""
    child = sim.ask(parent, {"name": "orders-etl/orders"})
    grandchild = sim.ask(child, {"name": "3"})
    assert str(grandchild) == "Parent (/parent/orders-etl/orders/3)"


def test_a_child_is_restarted_without_its_parent(parent: ActorRef[Parent], sim: Simulation) -> None:
    """Parent and siblings go on."""
    child, sibling = (sim.ask(parent, {"name": name}) for name in "ab")
    child.tell(ValueError("boom"))
    sim.ask(sibling, "sibling")
    sim.ask(child, "child")
    assert sorted(map(str, sim.notes)) == ["/parent/a restarted after boom", "child", "sibling"]


def test_children_survive_a_failure_of_their_parent(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """They are neither stopped nor delayed."""
    child = sim.ask(parent, {"name": "a"})
    parent.tell(ValueError("boom"))
    child.tell("meanwhile")
    sim.advance(1)
    assert child.is_alive()
    assert sorted(map(str, sim.notes)) == ["/parent restarted after boom", "meanwhile"]


def test_children_stop_before_their_parent(parent: ActorRef[Parent], sim: Simulation) -> None:
    """From the leaves to the root; each handles its waiting messages first."""
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


def test_a_failing_child_does_not_delay_the_stop_of_its_parent(
    parent: ActorRef[Parent], sim: Simulation
) -> None:
    """It is restarted without a pause, and loses no message."""
    child = sim.ask(parent, {"name": "a"})
    parent.stop(block=False)
    for _ in range(3):
        child.tell(ValueError("boom"))
    child.tell("last words")
    assert parent.stop()
    assert sim.clock.now() == 0
    assert sim.notes[-3:] == ["last words", "/parent/a stopped", "/parent stopped"]


def test_a_stopped_parent_takes_no_children(parent: ActorRef[Parent], sim: Simulation) -> None:
    """The error names the path and the phase of the parent."""
    parent.stop()
    with pytest.raises(pykka.ActorDeadError, match=r"/parent cannot take .*/late.* DEAD"):
        sim.spawn(Parent, [], name="late", parent=parent)
