"""What actors send each other below the messages: entries of an inbox that act on the cell."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.cell import Cell

__all__ = ["Signal", "UrgentSignal"]


class Signal(abc.ABC):
    """An inbox entry for the actor's cell. It waits its turn and fits into a full inbox."""

    __slots__ = ()

    @abc.abstractmethod
    def apply(self, cell: Cell) -> object:
        """Act on the cell, in the cell's own turn; answer what a trace should show."""


class UrgentSignal(Signal):
    """A signal which overtakes messages, and reaches an actor that takes none just now."""

    __slots__ = ()
