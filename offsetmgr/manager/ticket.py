"""One flush or stop of many managers, counted down to one answer."""

from __future__ import annotations

from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Final

from actors import Future

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from offsetmgr.manager.desk import Desk
    from offsetmgr.types import ManagerKey, StopResult


_key_of: Final = attrgetter("key")


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
        results, waited_for = self._results, self._open
        with self._lock:
            for desk, result in answers:
                if desk in waited_for:
                    del waited_for[desk]
                    results[desk.key] = result
            complete = not waited_for
        if complete:
            self.future.set(results)

    def done_all(self, desks: Sequence[Desk], results: Iterable[StopResult]) -> None:
        """``done`` for all of these, quickest where nobody else is waited for."""
        with self._lock:
            waited_for = self._open
            if len(desks) == len(waited_for) and all(map(waited_for.__contains__, desks)):
                waited_for.clear()
                self._results.update(zip(map(_key_of, desks), results, strict=True))
            complete = not waited_for
        if complete:
            self.future.set(self._results)
        else:
            self.done(zip(desks, results, strict=True))

    def expire(self) -> list[Desk]:
        """Answer for those who have not; returns them."""
        with self._lock:
            late = list(self._open)
            for desk in late:
                self._results[desk.key] = desk.left()
            self._open.clear()
        if late:
            self.future.set(self._results)
        return late
