"""Parents and children: the policy, the parent's decision, and who stops with whom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from actors import ActorRef, ChildStopped, Directive, PooledActor, Supervision

if TYPE_CHECKING:
    from actors.testing import SimSystem

AT_ONCE = Supervision(backoff_s=0)
NEVER = Supervision(max_restarts=0)


@dataclass(frozen=True)
class Ask:
    """Ask for one attribute of the actor."""

    attribute: str


class Parent(PooledActor):
    """Spawns what it is told, and notes what it hears of its children."""

    def __init__(self, notes: list[object]) -> None:
        super().__init__()
        self.notes = notes

    def on_receive(self, message: Any) -> Any:
        """Spawn for keyword arguments, raise exceptions, note anything else."""
        if isinstance(message, Ask):
            return getattr(self, message.attribute)
        if isinstance(message, dict):
            return self.spawn_child(Child, self.notes, **message)
        if isinstance(message, BaseException):
            raise message
        self.notes.append(message)
        return self.children

    def on_restart(self, _reason: BaseException) -> None:
        """Note it."""
        self.notes.append(f"{self.lineage} restarted")

    def on_stop(self) -> None:
        """Note it."""
        self.notes.append(f"{self.lineage} stopped")


class Child(Parent):
    """A child, which may have children as well."""


@pytest.fixture
def parent(sim: SimSystem, notes: list[object]) -> ActorRef[Parent]:
    """A parent without children."""
    return sim.spawn(Parent, notes, name="parent")


@given(st.integers(1, 2000))
def test_the_rest_doubles_up_to_its_limit(failures: int) -> None:
    """The n-th failure rests twice as long as the one before, never above the limit."""
    policy = Supervision(backoff_s=0.5, backoff_max_s=30)
    rest_s = policy.rest_s(failures)
    assert rest_s == 0.5 if failures == 1 else rest_s == min(30, 2 * policy.rest_s(failures - 1))


@given(st.lists(st.floats(0, 1000)), st.integers(0, 10))
def test_the_memory_of_failures_is_bounded(times_s: list[float], max_restarts: int) -> None:
    """However many failures there were, no more are kept than the decision needs."""
    policy = Supervision(max_restarts=max_restarts, window_s=100)
    kept = policy.recent(sorted(times_s), 1000)
    within = [at_s for at_s in times_s if at_s > 900]
    assert len(kept) == min(len(within), max_restarts + 1)
    assert (policy.decide(len(kept)) is Directive.STOP) == (len(within) > max_restarts)


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"window_s": 0}, "window_s=0"),
        ({"window_s": math.nan}, "window_s=nan"),
        ({"backoff_s": -1}, "backoff_s=-1"),
        ({"backoff_s": 2, "backoff_max_s": 1}, "backoff_max_s=1"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(figures: dict[str, Any], named: str) -> None:
    """The error names the figure and its value."""
    with pytest.raises(ValueError, match=named):
        Supervision(**figures)


def test_a_lineage_is_the_path_from_the_root(parent: ActorRef[Parent]) -> None:
    """A name may be a path itself; parent and children know each other."""
    child = parent.ask({"name": "orders-etl/orders"})
    grandchild = child.ask({"name": "3"})
    assert grandchild.lineage == "/parent/orders-etl/orders/3"
    assert str(grandchild) == "Child (/parent/orders-etl/orders/3)"
    assert parent.ask("children") == [child]
    assert grandchild.ask(Ask("parent")) is child
    assert grandchild.ask(Ask("name")) == "3"
    assert parent.ask(Ask("parent")) is None


def test_a_child_is_restarted_without_its_parent(
    parent: ActorRef[Parent], notes: list[object]
) -> None:
    """A failure stays with the child: parent and siblings do not notice."""
    child, sibling = (parent.ask({"name": name, "supervision": AT_ONCE}) for name in "ab")
    child.tell(ValueError("boom"))
    assert sibling.ask("sibling") == []
    assert child.ask("child") == []
    assert notes == ["sibling", "/parent/a restarted", "child"]


def test_a_child_that_is_given_up_is_reported(
    parent: ActorRef[Parent], notes: list[object], sim: SimSystem
) -> None:
    """The parent is told ChildStopped with the ref and the reason, even into a full inbox."""
    child = parent.ask({"name": "a", "supervision": NEVER})
    error = ValueError("boom")
    child.tell(error)
    with capture_logs() as logs:
        sim.run_until_idle()
    assert notes == [ChildStopped(child, error)]
    assert not child.is_alive()
    assert parent.ask("children") == []
    assert [entry["event"] for entry in logs] == ["actor_failed", "actor_gave_up"]


def test_a_child_that_stops_by_itself_is_not_reported(
    parent: ActorRef[Parent], notes: list[object]
) -> None:
    """ChildStopped means failure; an ordinary stop is no news."""
    child = parent.ask({"name": "a"})
    assert child.stop()
    assert parent.ask("children") == []
    assert notes == ["/parent/a stopped", "children"]


class Judge(Parent):
    """Decides by itself."""

    def on_child_failure(self, child: ActorRef[Any], reason: BaseException) -> Directive:
        """Take the decision from the exception; anything else is a failure of the judge."""
        self.notes.append(f"judged {child.lineage}")
        directive = reason.args[0]
        if isinstance(directive, Directive):
            return directive
        raise TypeError("cannot judge")


@pytest.fixture
def judge(sim: SimSystem, notes: list[object]) -> ActorRef[Judge]:
    """A parent that decides by itself."""
    return sim.spawn(Judge, notes, name="judge")


def test_the_parent_may_stop_a_child_at_its_first_failure(
    judge: ActorRef[Judge], notes: list[object], sim: SimSystem
) -> None:
    """The decision of on_child_failure counts, not the policy's."""
    child = judge.ask({"name": "a"})
    child.tell(ValueError(Directive.STOP))
    sim.run_until_idle()
    assert not child.is_alive()
    assert "judged /judge/a" in notes


def test_the_parent_may_restart_a_child_beyond_its_policy(
    judge: ActorRef[Judge], sim: SimSystem
) -> None:
    """A policy of no restart is overruled; the backoff still applies."""
    child = judge.ask({"name": "a", "supervision": NEVER})
    for _ in range(20):
        child.tell(ValueError(Directive.RESTART))
        sim.advance(5)
        assert child.ask("x") == []


def test_a_judge_that_fails_leaves_the_decision_to_the_policy(
    judge: ActorRef[Judge], sim: SimSystem, notes: list[object]
) -> None:
    """An exception in on_child_failure is logged; the child does not hang, the judge lives on."""
    child = judge.ask({"name": "a", "supervision": AT_ONCE})
    child.tell(ValueError("no directive"))
    with capture_logs() as logs:
        sim.run_until_idle()
    assert "/judge/a restarted" in notes
    assert ("actor_hook_failed", "on_child_failure") in [
        (entry["event"], entry.get("hook")) for entry in logs
    ]


def test_a_restart_stops_the_children_first(sim: SimSystem, notes: list[object]) -> None:
    """A fresh instance begins without children: those of the failed one stopped before it."""
    parent = sim.spawn(Parent, notes, name="parent", supervision=AT_ONCE)
    children = [parent.ask({"name": name}) for name in "ab"]
    children[0].tell("last words")
    parent.tell(ValueError("boom"))
    assert parent.ask("children") == []
    assert not any(child.is_alive() for child in children)
    assert "last words" in notes
    assert notes[-2:] == ["/parent restarted", "children"]


def test_a_stop_takes_the_children_first_and_their_messages_before(
    parent: ActorRef[Parent], notes: list[object]
) -> None:
    """From the leaves to the root, and each handles what it has before it stops."""
    child = parent.ask({"name": "a"})
    grandchild = child.ask({"name": "b"})
    grandchild.tell("last words")
    assert parent.stop()
    assert notes == ["last words", "/parent/a/b stopped", "/parent/a stopped", "/parent stopped"]


def test_a_failing_child_neither_holds_up_the_stop_nor_loses_messages(
    parent: ActorRef[Parent], sim: SimSystem, notes: list[object]
) -> None:
    """A child that fails while its parent stops is restarted without a rest, as often as it may."""
    child = parent.ask({"name": "a", "supervision": Supervision(max_restarts=3)})
    parent.stop(block=False)
    for _ in range(3):
        child.tell(ValueError("boom"))
    child.tell("last words")
    assert parent.stop()
    assert sim.clock.now() == 0
    assert notes[-3:] == ["last words", "/parent/a stopped", "/parent stopped"]


def test_a_child_that_fails_for_ever_is_given_up_by_a_stopping_parent(
    parent: ActorRef[Parent], sim: SimSystem, notes: list[object]
) -> None:
    """The policy still bounds the restarts, so that a stop ends."""
    child = parent.ask({"name": "a", "supervision": AT_ONCE})
    parent.stop(block=False)
    for _ in range(10):
        child.tell(ValueError("boom"))
    assert parent.stop()
    assert sim.actor_count() == 0
    assert notes == ["/parent/a restarted"] * 5 + ["/parent stopped"]


def test_a_parent_that_stops_takes_no_children(parent: ActorRef[Parent], sim: SimSystem) -> None:
    """Nobody is born into a family that dies: the spawn is refused by name and phase."""
    parent.ask({"name": "a"})
    parent.stop(block=False)
    sim.run_until_idle()
    with pytest.raises(pykka.ActorDeadError, match=r"/parent cannot take .*/late.* DEAD"):
        sim.spawn(Child, [], name="late", parent=parent)


class Premature(PooledActor):
    """Has a child before it is born."""

    def __init__(self) -> None:
        super().__init__()
        self.spawn_child(Child, [], name="child")


def test_a_constructor_cannot_spawn(sim: SimSystem) -> None:
    """An actor that may yet fail to exist has no children; the error says where they belong."""
    with pytest.raises(pykka.ActorDeadError, match="on_start"):
        sim.spawn(Premature, name="premature")
    assert sim.actor_count() == 0
