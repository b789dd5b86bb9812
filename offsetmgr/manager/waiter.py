"""A caller who waits for many managers, and is answered by a deadline."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from actors import Future

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetmgr.types import ManagerKey, StopResult


class Awaited(Protocol):
    """A manager, as a waiter sees it."""

    key: ManagerKey

    def result_after(self, waited_s: float | None) -> StopResult:
        """Return what is committed and what is not, ``waited_s`` seconds after the question."""


M = TypeVar("M", bound=Awaited)


class Waiter(Generic[M]):
    """A flush or stop of many managers; answered when all have answered, or when it expires."""

    def __init__(self, managers: Iterable[M], deadline_s: float, timeout_s: float) -> None:
        self._lock = RLock()
        # A dictionary as an ordered set: a simulation must replay in the same order.
        self._open = dict.fromkeys(managers)
        self._results: dict[ManagerKey, StopResult] = {}
        self.deadline_s = deadline_s
        """Time at which it expires, on the system's clock."""
        self.timeout_s = timeout_s
        self.future: Future[dict[ManagerKey, StopResult]] = Future()
        if not self._open:
            self.future.set({})

    def answer(self, answers: Iterable[tuple[M, StopResult]]) -> None:
        """Enter answers of managers; the first one of each counts."""
        with self._lock:
            if not self._open:
                return
            for manager, result in answers:
                if manager in self._open:
                    del self._open[manager]
                    self._results[manager.key] = result
            complete = not self._open
        if complete:
            self.future.set(self._results)

    def expire(self) -> list[M]:
        """Answer for the managers that have not; return them."""
        with self._lock:
            late = list(self._open)
            for manager in late:
                self._results[manager.key] = manager.result_after(self.timeout_s)
            self._open.clear()
        if late:
            self.future.set(self._results)
        return late
