"""One flush or stop of many managers, counted down to one answer."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from actors import Future

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from offsetmgr.manager.desk import Desk
    from offsetmgr.types import ManagerKey, StopResult


class Ticket:
    """Who waits for a set of managers; answered when all have answered, or when it expires."""

    def __init__(self, desks: Iterable[Desk], deadline: float) -> None:
        self._lock = Lock()
        # A dictionary as an ordered set: a simulation must replay in the same order.
        self._open = dict.fromkeys(desks)
        self._results: dict[ManagerKey, StopResult] = {}
        self.deadline = deadline
        """When it expires, in the clock's seconds."""
        self.future: Future[dict[ManagerKey, StopResult]] = Future()
        if not self._open:
            self.future.set({})

    def done(self, answers: Iterable[tuple[Desk, StopResult]]) -> None:
        """Answers of managers; the first one of each counts."""
        with self._lock:
            results, waited_for = self._results, self._open
            for desk, result in answers:
                if desk in waited_for:
                    del waited_for[desk]
                    results[desk.key] = result
            complete = not waited_for
        if complete:
            self.future.set(results)

    def done_all(self, desks: Sequence[Desk], results: dict[ManagerKey, StopResult]) -> None:
        """``done`` for all of these, quickest where nobody else is waited for.

        ``results`` are those of ``desks`` in the same order, and the ticket's from now on.
        """
        with self._lock:
            waited_for = self._open
            if len(desks) == len(waited_for) and all(map(waited_for.__contains__, desks)):
                waited_for.clear()
                if self._results:
                    results.update(self._results)
                self._results = results
            complete = not waited_for
        if complete:
            self.future.set(self._results)
        else:
            self.done(zip(desks, results.values(), strict=True))

    def expire(self) -> list[Desk]:
        """Answer for those who have not; returns them."""
        with self._lock:
            late = list(self._open)
            for desk in late:
                self._results[desk.key] = desk.settled()
            self._open.clear()
        if late:
            self.future.set(self._results)
        return late
