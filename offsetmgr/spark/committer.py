"""Hands what queries have read over to the client, on one thread of its own.

Spark's bus never waits here: it leaves a snapshot in the inbox and goes on.  What may wait for
the network, to look up what a group had committed and to stop the managers of a query that has
ended, waits on this thread.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.errors import OffsetManagerError
from offsetmgr.spark.inbox import MAX_RUNS, Inbox
from offsetmgr.spark.ledger import Ledger
from offsetmgr.types import ManagerKey, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetmgr.client import OffsetClient, Uncommitted
    from offsetmgr.spark.groups import Groups
    from offsetmgr.spark.inbox import Ask, Run, Waiting
    from offsetmgr.spark.ledger import Decision, Move
    from offsetmgr.spark.progress import Snapshot
    from offsetmgr.types import OffsetAndMetadata

_log = logging.getLogger("offsetmgr.spark")

LOOK_UP_S: Final = 5.0
"""Longest wait for what a group had committed, once for each new run of a query."""

RELEASE_S: Final = 10.0
"""Longest wait for the last commits of a query that has ended."""

_MAX_SAID: Final = 1_000
_MAX_ENDS: Final = 100_000
_SHOWN_PARTITIONS: Final = 10


class CommitCounts(NamedTuple):
    """What became of the offsets that queries reported."""

    submitted: int = 0
    """Offsets handed to the client."""
    rewinds: int = 0
    """Of those, how many took a partition back because a query started anew further behind."""
    refused: int = 0
    """Offsets not handed over: lower than one of the same run, or of a batch of which the client
    did not take all."""
    unreadable: int = 0
    """Positions and reports of Spark that could not be read."""


class Notices:
    """Says each thing once."""

    def __init__(self) -> None:
        """Nothing is said yet."""
        self._said: dict[tuple[str, ...], None] = {}

    def warn(self, key: tuple[str, ...], message: str) -> None:
        """Log ``message`` unless something was said under ``key`` before."""
        if key in self._said:
            return
        if len(self._said) >= _MAX_SAID:
            del self._said[next(iter(self._said))]
        self._said[key] = None
        _log.warning("%s", message)


class Committer:
    """Submits snapshots through a client, and stops the managers of queries that ended."""

    def __init__(self, client: OffsetClient, groups: Groups, notices: Notices) -> None:
        """``client`` stays its owner's: it is neither closed nor flushed here."""
        self._client = client
        self._ledger = Ledger(groups)
        self._notices = notices
        self._counts = CommitCounts()
        self._inbox = Inbox()
        self._ends: dict[ManagerKey, OffsetAndMetadata | Uncommitted] = {}
        self._thread = threading.Thread(target=self._work, name="offsetmgr-spark", daemon=True)

    @property
    def counts(self) -> CommitCounts:
        """What was done so far."""
        return self._counts

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def positions(self, snapshot: Snapshot) -> dict[ManagerKey, int]:
        """What of a snapshot is committed, and where."""
        return dict(self._ledger.positions(snapshot))

    def expect(self, run: Run, ask: Ask) -> None:
        """Submit what ``ask`` tells of a run that has begun, unless a snapshot of it comes first.

        It is asked on the committer's thread, again and again until the run is ``heard``, and when
        the run ends.
        """
        self._inbox.expect(run, ask)

    def heard(self, run: Run) -> None:
        """Ask a run no more."""
        self._inbox.heard(run)

    def submit(self, snapshot: Snapshot) -> int:
        """Submit a snapshot soon; return a ticket for ``wait``.  Never blocks."""
        return self._inbox.put(snapshot)

    def end(self, run: Run) -> int:
        """Commit what a run has read last and release its managers, soon; a ticket."""
        return self._inbox.end(run)

    def wait(self, ticket: int, deadline: float) -> bool:
        """Wait until what the ticket is for is done; False at ``deadline``."""
        return self._inbox.wait(ticket, deadline)

    def end_of(self, key: ManagerKey) -> OffsetAndMetadata | Uncommitted | None:
        """What the last released manager of ``key`` ended with; None where none is known."""
        return self._ends.get(key)

    def close(self, deadline: float) -> bool:
        """End every run and the thread; False where that is not done at ``deadline``."""
        return self._inbox.wait(self._inbox.close(), deadline)

    def _work(self) -> None:
        while True:
            taken = self._inbox.take()
            if taken is None:
                break
            entries, ticket = taken
            if self._inbox.dropped:
                self._notices.warn(
                    ("dropped",),
                    f"more than {MAX_RUNS} queries waited at once: the oldest are left out",
                )
            for waiting in entries:
                self._guarded(waiting)
            self._inbox.done(ticket)
        try:
            self._release(self._ledger.end_all())
        finally:
            self._inbox.done(self._inbox.close())

    def _guarded(self, waiting: Waiting) -> None:
        try:
            snapshot = waiting.snapshot
            if snapshot is None and waiting.ask is not None:
                snapshot = self._asked(waiting.run, waiting.ask)
            if snapshot is not None:
                self._observe(snapshot)
            if waiting.ended:
                self._release(self._ledger.end(*waiting.run))
        except Exception:  # noqa: BLE001 -- the thread must outlive it: other queries need it
            _log.exception("offsets of query %s were not handed over", waiting.run.query_id)

    def _asked(self, run: Run, ask: Ask) -> Snapshot | None:
        try:
            return ask()
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # Its own reports, and a flush, still tell; its session may be gone as well.
            _log.debug("query %s could not be asked how far it is", run.query_id, exc_info=True)
            self._inbox.heard(run)
            return None

    def _observe(self, snapshot: Snapshot) -> None:
        committed = self._look_up(self._ledger.new_groups(snapshot))
        decision = self._ledger.observe(snapshot, committed)
        self._say(snapshot, decision)
        submitted = self._submit(decision.moves)
        self._counts = CommitCounts(
            self._counts.submitted + submitted,
            self._counts.rewinds + sum(m.back_from is not None for m in decision.moves.values()),
            self._counts.refused + len(decision.refused) + len(decision.moves) - submitted,
        )
        self._release(decision.released)

    def _look_up(self, groups: Iterable[str]) -> dict[ManagerKey, int]:
        """What the groups have committed; what cannot be learned is left out."""
        found: dict[ManagerKey, int] = {}
        for group in groups:
            try:
                committed = self._client.committed(group, timeout=LOOK_UP_S)
            except OffsetManagerError as error:
                # The first offsets of a run may go back anyway; only saying so needs this.
                _log.debug("what %s had committed is not known: %s", group, error)
                continue
            found.update(
                (ManagerKey(group, place.topic, place.partition), entry.offset)
                for place, entry in committed.items()
            )
        return found

    def _submit(self, moves: Mapping[ManagerKey, Move]) -> int:
        """Hand the moves to the client; how many it took."""
        batches: dict[tuple[str, bool], dict[tuple[str, int], int | OffsetAndMetadata]] = {}
        for key, move in moves.items():
            batch = batches.setdefault((key.group, move.rewind), {})
            batch[key.topic, key.partition] = move.offset
        taken = 0
        for (group, rewind), offsets in batches.items():
            try:
                self._client.submit(group, offsets, rewind=rewind)
            except OffsetManagerError as error:
                self._notices.warn(("submit", group, error.code), f"not committed: {error}")
            else:
                taken += len(offsets)
        return taken

    def _release(self, keys: Iterable[ManagerKey]) -> None:
        by_group: dict[str, list[TopicPartition]] = {}
        for key in keys:
            by_group.setdefault(key.group, []).append(key.topic_partition)
        for group, partitions in by_group.items():
            result = self._client.stop_managers(RELEASE_S, group=group, partitions=partitions)
            left = result.uncommitted
            self._keep({**result.committed, **left})
            texts = {
                key: f"{key.topic_partition} at {offset.offset} ({error})"
                for key, (offset, error) in left.items()
            }
            if texts:
                _log.warning(
                    "a query ended with offsets that are not committed to group %s: %s",
                    group,
                    _listed(texts),
                )

    def _keep(self, ends: Mapping[ManagerKey, OffsetAndMetadata | Uncommitted]) -> None:
        for key, end in ends.items():
            self._ends.pop(key, None)
            self._ends[key] = end
        while len(self._ends) > _MAX_ENDS:
            del self._ends[next(iter(self._ends))]

    def _say(self, snapshot: Snapshot, decision: Decision) -> None:
        back = {
            key: f"{key} from {move.back_from} to {move.offset}"
            for key, move in decision.moves.items()
            if move.back_from is not None
        }
        if back:
            _log.warning(
                "%s takes its group back, as a new run that is further behind: %s",
                snapshot.label,
                _listed(back),
            )
        lower = {
            key: f"{key} at {floor}, not {offset}"
            for key, (offset, floor) in decision.refused.items()
        }
        if lower:
            _log.warning(
                "%s went back within one run, which is not committed: %s",
                snapshot.label,
                _listed(lower),
            )
        for group, topic in decision.shared:
            self._notices.warn(
                ("shared", group, topic),
                f"topic {topic} is read by more than one source for group {group}: the lowest of "
                "their offsets is committed; give each query a group of its own "
                "(query_name=... commits one query alone)",
            )
        for topic in decision.ungrouped:
            self._notices.warn(
                ("ungrouped", topic, snapshot.query_id),
                f"topic {topic} of {snapshot.label} is not committed: groups={{...}} does not "
                "name it",
            )


def _listed(texts: Mapping[ManagerKey, str]) -> str:
    shown = ", ".join(list(texts.values())[:_SHOWN_PARTITIONS])
    more = len(texts) - _SHOWN_PARTITIONS
    return shown if more <= 0 else f"{shown} and {more} more"
