"""The signals by which an actor's life goes on: stop, failure, verdict, restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.signals import Signal, UrgentSignal

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.supervision import Directive

__all__ = ["CHILDREN_GONE", "START", "STOP", "ChildFailed", "Notice", "Restart", "Verdict"]


class Start:
    """What a trace shows of an actor's first turn; no inbox ever holds it."""

    __slots__ = ()


class Stop(Signal):
    """Stop, after the messages that came before."""

    __slots__ = ()

    def apply(self, cell: Cell) -> object:
        """Begin the stop."""
        cell.begin_stop()
        return self


class Notice(Signal):
    """A message from the runtime, which must not get lost when the inbox is full."""

    __slots__ = ("_message",)

    def __init__(self, message: object) -> None:
        self._message = message

    def apply(self, cell: Cell) -> object:
        """Hand the message to the actor."""
        cell.receive(self._message, None)
        return self._message


class ChildFailed(UrgentSignal):
    """A child failed, is suspended, and asks for a verdict."""

    __slots__ = ("_child", "_reason")

    def __init__(self, child: Cell, reason: BaseException) -> None:
        self._child = child
        self._reason = reason

    def apply(self, cell: Cell) -> object:
        """Decide, and tell the child."""
        directive = cell.judge(self._child, self._reason)
        self._child.signal(Verdict(directive, self._reason))
        return self


class Verdict(UrgentSignal):
    """What the parent decided on the failure."""

    __slots__ = ("_directive", "_reason")

    def __init__(self, directive: Directive, reason: BaseException) -> None:
        self._directive = directive
        self._reason = reason

    def apply(self, cell: Cell) -> object:
        """Do as decided."""
        cell.obey(self._directive, self._reason)
        return self


class Restart(UrgentSignal):
    """The rest after a failure is over."""

    __slots__ = ()

    def apply(self, cell: Cell) -> object:
        """Begin the restart."""
        cell.begin_restart(self)
        return self


class ChildrenGone(UrgentSignal):
    """The last child of an actor that waits for it is dead."""

    __slots__ = ()

    def apply(self, cell: Cell) -> object:
        """Go on."""
        cell.children_gone()
        return self


START: Final = Start()
STOP: Final = Stop()
CHILDREN_GONE: Final = ChildrenGone()
