"""Calls that no signal handler finds half done."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from offsetmgr.errors import OffsetTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class InterruptedCallError(OffsetTimeoutError):
    """A signal handler cannot wait for the call that it has interrupted."""


class Calls:
    """Calls of a thread that holds a lock; a signal handler's own are made behind them."""

    def __init__(self) -> None:
        self._is_calling = False
        self._later: deque[Callable[[], object]] = deque()

    def call(self, do: Callable[[], _T], later: Callable[[], object] | None = None) -> _T:
        """Return what ``do`` returns.

        Raises InterruptedCallError in a signal handler that has interrupted another call;
        ``later`` is then called when that one returns.
        """
        if self._is_calling:
            if later is not None:
                self._later.append(later)
            text = "a signal handler cannot wait for the call that it has interrupted"
            raise InterruptedCallError(f"{text}; it is made after it")
        self._is_calling = True
        try:
            return do()
        finally:
            self._is_calling = False
            while self._later:
                self._later.popleft()()
