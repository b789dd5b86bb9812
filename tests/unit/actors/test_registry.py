"""The tree of actors, changed by many threads at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pykka

from actors import PooledActor

if TYPE_CHECKING:
    from actors import ActorSystem


class Family(PooledActor):
    """A parent that others give children to."""

    def on_receive(self, message: Any) -> Any:
        """Answer."""
        return message


def test_no_child_is_lost_when_its_parent_stops_meanwhile(system: ActorSystem) -> None:
    """Children spawned by other threads during the stop are refused or stopped, never orphaned."""
    parent = system.spawn(Family, name="parent")
    born: list[pykka.ActorRef[Any]] = []
    ready = threading.Barrier(5, timeout=10)

    def spawn() -> None:
        ready.wait()
        try:
            for name in map(str, range(10_000)):
                child = system.spawn(Family, name=name, parent=parent)
                born.append(child)
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
