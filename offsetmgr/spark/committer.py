"""The committer of a session's streaming queries.

A thread of its own submits what queries report, so that Spark's listener bus never waits.  When it
has nothing to submit it stops the managers of ended queries, once Kafka has their offsets.

Spark reports no batch without new data.  So a run that resumes from its checkpoint, after the
driver was killed before the last report, may never report anything.  Until its first report, a run
is asked for its progress when it is idle and when it ends.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.client.offsets import QueryReport, by_group
from offsetmgr.errors import (
    ClientFencedError,
    OffsetManagerError,
    OffsetRegressionError,
    listed,
    shown,
)
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.group_state import Decision, Groups, GroupState
from offsetmgr.types import (
    ManagerKey,
    OffsetAndMetadata,
    Uncommitted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.group_state import Commit
    from offsetmgr.spark.progress import Run, Snapshot

_log = SafeLogger("offsetmgr.spark")

LOOK_UP_S: Final = 1.0
"""Longest wait for what a group had committed, once for each new run of a query."""

FLUSH_S: Final = 1.0
"""Longest wait for the last commits of a group; offsets of other queries are submitted after it."""

STOP_S: Final = 2.0
"""Longest wait for the service to stop managers that hold nothing uncommitted."""

RETRY_S: Final = 2.0
"""Pause before managers that could not be stopped are tried again."""

_SHOWN_CHARS: Final = 255
_SHOWN_GROUPS: Final = 10
_ERROR_CHARS: Final = 4_000

_MAX_REMEMBERED: Final = 1_000
"""Warnings that were logged."""

Ask: TypeAlias = "Callable[[], Snapshot | None]"
"""Returns how far a run is; None if it cannot say yet."""

_Task: TypeAlias = "Callable[[], bool]"


class CommitCounts(NamedTuple):
    """Counts of the offsets that queries reported, by outcome."""

    submitted: int = 0
    """Offsets handed to the client."""
    rewinds: int = 0
    """Of those, the rewinds: a query started anew at a lower offset."""
    lower: int = 0
    """Offsets not handed over, because the same run had reported a higher one before."""
    not_taken: int = 0
    """Offsets that the client did not take, such as after its close."""
    refused: int = 0
    """Commits that Kafka refused or did not answer: one for each time and partition.  Their
    offsets are kept and tried again."""
    unreadable: int = 0
    """Offsets and reports of Spark that could not be read."""


class Committer:
    """Commits by the decisions of its ``GroupState``, on a thread of its own.

    Any thread may call its public methods, which never wait for the service, ``look_up`` and
    ``close`` excepted.
    """

    def __init__(self, client: Offsets, groups: Groups) -> None:
        self._client = client
        self._state = GroupState(groups)
        self.counts = Counter(dict.fromkeys(CommitCounts._fields, 0))
        self._warned: set[tuple[str, ...]] = set()
        self._unheard: dict[Run, Ask] = {}
        """Runs that have not reported anything yet."""
        self._reports: dict[Run, QueryReport] = {}
        """The last report of each run to the service."""
        self._unread: dict[ManagerKey, Uncommitted | None] = {}
        """Managers to be stopped, as no running query reads their partitions → the offset that the
        last try could not commit."""
        self._retry_at = 0.0
        self._lost: set[ManagerKey] = set()
        """Of those, the managers whose uncommitted offset was logged."""
        self._is_overdue = False
        """True if uncommitted offsets are logged at once."""
        self._lock = threading.Lock()
        """For ``_closed`` and ``_lost``."""
        self._closed = False
        self._tasks: SimpleQueue[tuple[Future[bool], _Task]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="offsetmgr-spark", daemon=True)
        self._thread.start()

    def expect(self, run: Run, ask: Ask) -> None:
        """Take up a run that may stay silent."""
        self._unheard[run] = ask

    def put(self, snapshot: Snapshot) -> Future[bool]:
        self._unheard.pop(snapshot.run, None)
        return self._do(lambda: self._progress(snapshot))

    def idle(self, run: Run) -> None:
        """Ask a run that found nothing new, unless it has reported already."""
        if run in self._unheard:
            self._do(lambda: self._ask(run))

    def end(self, run: Run, error: str | None = None) -> None:
        """Have the last offsets of a run committed and its managers stopped.

        ``error`` is why it failed, if Spark says so.
        """
        self._do(lambda: self._end(run, error))

    def release(self, name: str) -> Future[bool]:
        """Remove a query from the minimum of its groups; False if no such query is known."""
        return self._do(lambda: self._release(name))

    def offsets(self, snapshot: Snapshot) -> dict[ManagerKey, int]:
        return dict(self._state.offsets(snapshot))

    def look_up(self, groups: Iterable[str], timeout: float) -> dict[ManagerKey, int]:
        """Return what the groups have committed, each asked for up to ``timeout`` seconds."""
        found: dict[ManagerKey, int] = {}
        for group in groups:
            try:
                committed = self._client.committed(group, timeout=timeout)
            except OffsetManagerError as error:
                _log.debug("what %s had committed is not known: %s", group, error)
            else:
                found.update((ManagerKey(group, *p), each.offset) for p, each in committed.items())
        return found

    def warn_once(self, key: tuple[str, ...], message: str) -> None:
        """Log the first warning of each key."""
        if key not in self._warned:
            if len(self._warned) >= _MAX_REMEMBERED:
                self._warned.clear()
            self._warned.add(key)
            _log.warning("%s", message)

    def close(self, timeout: float) -> None:
        """End every run, and wait until all is committed and all managers are stopped.

        What is not committed after ``timeout`` seconds is logged, now or as soon as it is
        submitted, and still sent as long as the client lives.
        """
        with self._lock:
            self._closed = True
            for run in list(self._unheard):
                self._tasks.put((Future(), partial(self._ask, run)))
            self._tasks.put((Future(), self._end_all))
        self._thread.join(timeout)
        self._is_overdue = True
        self._report(self._unread.copy())

    def _do(self, task: _Task) -> Future[bool]:
        """Have it done by the thread, after all that it was given before."""
        done: Future[bool] = Future()
        with self._lock:
            if self._closed:
                done.set_result(False)
            else:
                self._tasks.put((done, task))
        return done

    # The thread.

    def _run(self) -> None:
        while not (self._closed and self._tasks.empty() and not self._unread):
            wait_s = max(0.0, self._retry_at - time.monotonic()) if self._unread else None
            try:
                done, task = self._tasks.get(timeout=wait_s)
            except Empty:
                done, task = Future(), self._stop_unread
            try:
                done.set_result(task())
            except Exception:  # noqa: BLE001 -- the thread must outlive it: other queries need it
                _log.exception("offsets of a query were not submitted")
                done.set_result(False)

    def _progress(self, snapshot: Snapshot) -> bool:
        # Only for the log that a group goes back, so it is left out when somebody waits.
        new = () if self._closed else self._state.new_groups(snapshot)
        decision = self._state.progress(snapshot, self.look_up(new, LOOK_UP_S))
        self._apply(snapshot.run.query_id, decision, snapshot.label)
        groups = sorted({key.group for key in self.offsets(snapshot)})
        report = self._reports[snapshot.run] = QueryReport(
            *snapshot.run,
            "running",
            None if snapshot.name is None else snapshot.name[:_SHOWN_CHARS],
            tuple(groups[:_SHOWN_GROUPS]),
            snapshot.batch_id,
            snapshot.timestamp,
            **snapshot.figures,
        )
        self._client.report_query(report)
        return True

    def _end(self, run: Run, error: str | None) -> bool:
        self._ask(run)
        self._unheard.pop(run, None)
        self._apply(run.query_id, self._state.end(run))
        report = self._reports.pop(run, None)
        if report is not None:
            state = "failed" if error else "ended"
            shown_error = error[:_ERROR_CHARS] if error else None
            self._client.report_query(report._replace(state=state, error=shown_error))
        return True

    def _end_all(self) -> bool:
        for run in self._state.running():
            self._apply(run.query_id, self._state.end(run)._replace(held_back={}))
        return True

    def _release(self, name: str) -> bool:
        decision = self._state.release(name)
        self._apply(name, decision or Decision())
        return decision is not None

    def _ask(self, run: Run) -> bool:
        """Ask a run how far it is, if it has not reported yet."""
        ask = self._unheard.get(run)
        try:
            snapshot = ask() if ask else None
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # Its own reports, and a flush, still come; its session may be gone as well.
            _log.debug("query %s could not be asked how far it is", run.query_id, exc_info=True)
            return False
        if snapshot is None:
            return False
        self._unheard.pop(run, None)
        return self._progress(snapshot)

    def _apply(self, query_id: str, decision: Decision, label: str | None = None) -> None:
        self._log(label or f"query {query_id}", decision)
        submitted = self._submit(decision.commits)
        rewinds = sum(commit.back_from is not None for commit in decision.commits.values())
        self.counts.update(
            submitted=submitted,
            rewinds=rewinds,
            lower=len(decision.lower),
            not_taken=len(decision.commits) - submitted,
        )
        if decision.unread:
            self._unread.update(dict.fromkeys(decision.unread))
            self._retry_at = 0.0

    def _submit(self, commits: Mapping[ManagerKey, Commit]) -> int:
        """Hand the commits to the client; return how many it took."""
        batches: defaultdict[tuple[str, bool], dict[tuple[str, int], int | OffsetAndMetadata]] = (
            defaultdict(dict)
        )
        for key, commit in commits.items():
            self._unread.pop(key, None)
            self._lost.discard(key)
            batches[key.group, commit.rewind][key.topic_partition] = commit.offset
        taken = 0
        for (group, rewind), offsets in batches.items():
            try:
                self._client.submit(group, offsets, rewind=rewind)
            except OffsetManagerError as error:
                self.warn_once(("submit", group, error.code), f"not committed: {error}")
            else:
                taken += len(offsets)
        return taken

    def _log(self, label: str, decision: Decision) -> None:
        back = [
            f"{key} from {commit.back_from} to {commit.offset}"
            for key, commit in decision.commits.items()
            if commit.back_from is not None
        ]
        if back:
            text = "%s takes its group back, because its new run starts further behind: %s"
            _log.warning(text, label, listed(back))
        lower = [
            f"{key} at {each.before}, not {each.offset}" for key, each in decision.lower.items()
        ]
        if lower:
            text = "%s reports lower offsets than before, which are not committed: %s"
            _log.warning(text, label, listed(lower))
        for group, topic in decision.shared:
            self.warn_once(
                ("shared", group, topic),
                f"topic {topic} is read by more than one source for group {group}: the lowest of "
                "their offsets is committed; give each query a group of its own "
                "(query_name=... commits one query alone)",
            )
        for group, query in decision.held_back.items():
            self.warn_once(
                ("held back", group, query),
                f"query {shown(query)} has stopped: until it runs again, group {group} goes no "
                "further than what it has read, though other queries have read more; "
                f"commits.release({shown(query)}) lets the group go on without it",
            )
        for topic in decision.ungrouped:
            self.warn_once(
                ("ungrouped", topic, label),
                f"topic {topic} of {label} is not committed: groups={{...}} does not name it",
            )

    def _stop_unread(self) -> bool:
        """Stop the managers that hold nothing which this client may still commit."""
        self._retry_at = time.monotonic() + RETRY_S
        for group, partitions in by_group(self._unread).items():
            flushed = self._client.flush(timeout=FLUSH_S, group=group, partitions=partitions)
            keys = [ManagerKey(group, *partition) for partition in partitions]
            self._unread.update({key: flushed.uncommitted.get(key) for key in keys})
            stopped = [key for key in keys if not self._may_commit(self._unread[key])]
            if stopped:
                places = [key.topic_partition for key in stopped]
                self._client.stop_managers(timeout=STOP_S, group=group, partitions=places)
            lost = keys if self._is_overdue else stopped
            self._report({key: self._unread[key] for key in lost})
            for key in stopped:
                del self._unread[key]
        return True

    def _may_commit(self, left: Uncommitted | None) -> bool:
        """Return True if this client may still commit it."""
        if left is None or self._client.closed:
            return False
        # Somebody else has committed a higher offset, or a newer driver has taken our place.
        return not isinstance(left.error, (OffsetRegressionError, ClientFencedError))

    def _report(self, unread: Mapping[ManagerKey, Uncommitted | None]) -> None:
        """Log what of ``unread`` is not committed, once, and the command that commits it."""
        texts: dict[str, list[str]] = defaultdict(list)
        with self._lock:
            for key, left in unread.items():
                if left is not None and key not in self._lost:
                    self._lost.add(key)
                    text = f"{key.topic_partition} at {left.offset.offset} ({left.error})"
                    texts[key.group].append(text)
        for group, lost in texts.items():
            _log.warning(
                "not all that was read is committed to group %s: %s; the checkpoint has it: when "
                "this driver has ended, compare the two by offsetmgr spark reconcile --checkpoint "
                "CHECKPOINT --group %s --service %s and add --execute to commit (CHECKPOINT is the "
                "query's checkpointLocation)",
                *(group, listed(lost), shlex.quote(group), self._client.url),
            )
