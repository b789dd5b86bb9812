"""Who lives in an actor system, and who is whose child."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pykka

from actors.errors import SystemStoppedError
from actors.phase import Phase

if TYPE_CHECKING:
    from actors.cell import Cell

__all__ = ["Registry"]


class Registry:
    """The living cells of one system; every change of the tree happens under its lock.

    pykka's own registry is a list, in which the stop of one actor costs a look
    at all the others.
    """

    def __init__(self, system_name: str) -> None:
        # Reentrant, as a signal handler may stop actors in the middle of a spawn.
        self.lock = threading.RLock()
        self._name = system_name
        self._empty = threading.Condition(self.lock)
        # A dict, as it keeps the order: a simulation must stop actors in the same order each time.
        self._cells: dict[Cell, None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Count the actors that are not dead."""
        return len(self._cells)

    def admit(self, cell: Cell) -> None:
        """Enter a new cell, and make it known to its parent.

        Raises:
            pykka.ActorDeadError: the parent is stopping, restarting or not yet constructed.
            SystemStoppedError: the system is stopping.

        """
        parent = cell.parent
        with self.lock:
            if parent is None:
                if self._closed:
                    raise SystemStoppedError(
                        f"actor system {self._name!r} is stopping: "
                        f"it does not start {cell.lineage} any more"
                    )
            elif not parent.phase.takes_children:
                raise pykka.ActorDeadError(
                    f"{parent.lineage} cannot take the child {cell.lineage} while it is "
                    f"{parent.phase.name}: spawn children from on_start on, and before it stops"
                )
            else:
                parent.children[cell] = None
            self._cells[cell] = None

    def enter(self, cell: Cell, phase: Phase) -> list[Cell]:
        """Move the cell to a phase that takes no children; returns those it has."""
        with self.lock:
            cell.phase = phase
            return list(cell.children)

    def remove(self, cell: Cell) -> bool:
        """Strike out a dead cell; True when its parent was waiting for this last child."""
        parent = cell.parent
        with self.lock:
            cell.phase = Phase.DEAD
            del self._cells[cell]
            if not self._cells:
                self._empty.notify_all()
            if parent is None:
                return False
            del parent.children[cell]
            return not parent.children and parent.phase.awaits_children

    def close(self) -> list[Cell]:
        """Admit no more roots; returns those there are."""
        with self.lock:
            self._closed = True
            return [cell for cell in self._cells if cell.parent is None]

    def wait_empty(self, timeout_s: float) -> list[Cell]:
        """Wait until everybody is dead, at most `timeout_s` seconds; returns who is not."""
        with self.lock:
            self._empty.wait_for(lambda: not self._cells, timeout_s)
            return list(self._cells)
