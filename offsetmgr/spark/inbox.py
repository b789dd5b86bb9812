"""Where Spark's bus leaves what the committer is to do; neither waits for the other.

Of each run only the newest snapshot waits: a snapshot is whole, so it makes the one before it
needless, and a committer that is held up finds one for each query and not a backlog.

Spark reports no trigger that finds nothing new.  A run that goes on from its checkpoint, whose last
batch nobody heard of because the driver was killed, may so be silent for as long as it lives.
Until its first report comes, a run is therefore asked, now and then and when it ends.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.spark.progress import Snapshot

Ask: TypeAlias = "Callable[[], Snapshot | None]"
"""Asks a run how far it is; None where it cannot say yet."""

MAX_RUNS: Final = 10_000
"""How many runs may wait at once; a driver with more of them loses the oldest."""

ASK_S: Final = 1.0
"""How long a run may be silent before it is asked."""


class Run(NamedTuple):
    """One start of a query."""

    query_id: str
    run_id: str


@dataclass
class Waiting:
    """What is to be done for one run: first the snapshot, which may have to be asked for, then
    the end."""  # noqa: D205, D209 -- one sentence

    run: Run
    snapshot: Snapshot | None = None
    ask: Ask | None = None
    ended: bool = False


class Inbox:
    """Holds what waits for one reader; any thread may put."""

    def __init__(self) -> None:
        """Start empty and open."""
        self._changed = threading.Condition()
        self._waiting: dict[Run, Waiting] = {}
        self._silent: dict[Run, Ask] = {}
        self._ask_at = 0.0
        self._put = 0
        self._done = 0
        self._closed = False
        self.dropped = 0
        """How many runs were dropped because too many waited."""

    def expect(self, run: Run, ask: Ask) -> None:
        """Have a run asked by ``ask`` until its first snapshot is put."""
        with self._changed:
            if not self._silent:
                self._ask_at = time.monotonic() + ASK_S
            self._silent[run] = ask
            self._changed.notify_all()

    def heard(self, run: Run) -> None:
        """Have a run asked no more."""
        with self._changed:
            self._silent.pop(run, None)

    def put(self, snapshot: Snapshot) -> int:
        """Leave a snapshot; return a ticket to wait on."""
        with self._changed:
            run = Run(snapshot.query_id, snapshot.run_id)
            self._silent.pop(run, None)
            waiting = self._entry(run)
            if waiting.snapshot is None or waiting.snapshot.batch_id <= snapshot.batch_id:
                waiting.snapshot = snapshot
            return self._notify()

    def end(self, run: Run) -> int:
        """Leave word that a run has ended; return a ticket to wait on."""
        with self._changed:
            waiting = self._entry(run)
            waiting.ended = True
            waiting.ask = self._silent.pop(run, waiting.ask)
            return self._notify()

    def close(self) -> int:
        """Take nothing more; the reader ends when all is taken.  Return a ticket to wait on."""
        with self._changed:
            self._closed = True
            self._ask_silent()
            self._silent.clear()
            return self._notify()

    def take(self) -> tuple[list[Waiting], int] | None:
        """Wait for work; return all of it with its ticket, None once closed and empty."""
        with self._changed:
            while not self._closed:
                left_s = self._ask_at - time.monotonic() if self._silent else None
                if left_s is not None and left_s <= 0:
                    self._ask_silent()
                if self._waiting:
                    break
                self._changed.wait(left_s)
            if not self._waiting:
                return None
            taken, self._waiting = list(self._waiting.values()), {}
            return taken, self._put

    def done(self, ticket: int) -> None:
        """The reader has finished everything up to ``ticket``."""
        with self._changed:
            self._done = max(self._done, ticket)
            self._changed.notify_all()

    def wait(self, ticket: int, deadline: float) -> bool:
        """Wait for the reader to finish ``ticket``; False at ``deadline`` (monotonic seconds)."""
        with self._changed:
            while self._done < ticket:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            return True

    def _ask_silent(self) -> None:
        self._ask_at = time.monotonic() + ASK_S
        for run, ask in self._silent.items():
            self._entry(run).ask = ask

    def _entry(self, run: Run) -> Waiting:
        waiting = self._waiting.get(run)
        if waiting is None:
            if len(self._waiting) >= MAX_RUNS:
                del self._waiting[next(iter(self._waiting))]
                self.dropped += 1
            waiting = self._waiting[run] = Waiting(run)
        return waiting

    def _notify(self) -> int:
        self._put += 1
        self._changed.notify_all()
        return self._put
