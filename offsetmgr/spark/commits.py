"""Commits the offsets of a session's streaming queries to their consumer groups.

A thread of its own submits what queries report, so that Spark's listener bus never waits.  When it
has nothing to submit it stops the managers of ended queries, once Kafka has their offsets.

Spark reports no batch without new data.  So a run that resumes from its checkpoint, after the
driver was killed before the last report, may never report anything.  Until its first report, a run
is asked for its progress when it is idle and when it ends.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.client.core import ERROR_LIMIT
from offsetmgr.client.offsets import QueryReport, by_group
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    ClientFencedError,
    InvalidValueError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
    listed,
    shown,
)
from offsetmgr.mailboxes import Mailbox
from offsetmgr.spark.group_state import Decision, Groups, GroupState
from offsetmgr.spark.progress import Run, read_snapshot
from offsetmgr.spark.starting import check_client
from offsetmgr.types import (
    FlushResult,
    ManagerKey,
    OffsetAndMetadata,
    Uncommitted,
    check_callable,
    check_group,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.group_state import Commit
    from offsetmgr.spark.progress import Snapshot
    from offsetmgr.types import Stream

_log = logging.getLogger("offsetmgr.spark")

DETACH_S: Final = 10.0
"""Seconds that leaving a ``with`` block waits for the last commits."""

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


def commit_offsets(
    spark: SparkSession,
    client: Offsets,
    *,
    group: str | None = None,
    groups: Mapping[str, str] | None = None,
    query_name: str | None = None,
    on_error: Callable[[OffsetManagerError], object] | None = None,
) -> OffsetCommits:
    """Commit the offsets of streaming queries of ``spark`` to their groups, from now on.

    Give ``group`` for all topics, or ``groups`` as topic → group; topics without a group are not
    committed.  By default every query of the session with a Kafka source is committed, also those
    that run already; with ``query_name`` only the query of that name.  If no query has that name
    when another one reports a batch, a warning is logged.

    No query is slowed or failed if the service is down or Kafka refuses commits.  ``client``
    keeps the offsets, even after a query has ended, and sends them when the service is back.  Then
    it stops the managers of ended queries.

    The start and the end of a failure are logged once for each cause and group.  ``on_error`` is
    called with each error on its own thread; the first exception that it raises is logged.

    If several queries read a topic for one group, the lowest of their offsets is committed.  A
    stopped query still counts until it runs again (with the same id or, under a new checkpoint,
    with the same name) or is removed by ``release``.

    Raises InvalidValueError.
    """
    wanted = _checked_groups(group, groups)
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is no SparkSession", "give the session")
    check_client(client)
    if on_error is not None:
        check_callable(on_error, "on_error")
    return OffsetCommits(spark, client, wanted, query_name, on_error)


class OffsetCommits:
    """The commits of a session's queries; made by ``commit_offsets``.

    As a context manager it detaches at the end of the block.  If it is never detached, closing the
    client commits the last offsets.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Offsets,
        groups: Groups,
        query_name: str | None,
        on_error: Callable[[OffsetManagerError], object] | None,
    ) -> None:
        # Reading a checkpoint or pinning a batch by this package needs no pyspark.
        from offsetmgr.spark.listener import CommitListener  # noqa: PLC0415

        self._spark = spark
        self._client = client
        self._groups = groups
        self._on_error = on_error
        self._errors = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._to_call = Mailbox[OffsetManagerError]("commit_offsets", ERROR_LIMIT)
        self._detached = False
        self._committer = Committer(client, groups)
        self._listener = CommitListener(spark, self._committer, query_name)
        if on_error is not None:
            name, args = "offsetmgr-errors", (on_error,)
            threading.Thread(target=self._call, args=args, name=name, daemon=True).start()
        self._unwatch = client.watch_errors(self._failed)
        # In this order nothing falls between: what comes twice is the same batch.
        spark.streams.addListener(self._listener)
        for query in spark.streams.active:
            self._listener.take_up(query)

    @property
    def counts(self) -> CommitCounts:
        return CommitCounts(**self._committer.counts)

    def errors(self) -> Stream[OffsetManagerError]:
        """Return the unread errors of the groups' commits, until ``detach``.

        The newest 64 are kept; ``dropped`` is the number of the others.
        """
        return self._errors

    def flush(self, query: StreamingQuery, timeout: float = 10.0) -> FlushResult:
        """Commit the last offsets of ``query``; return what was committed in ``timeout`` seconds.

        Call it after ``query.awaitTermination()``, because Spark may not report the last batch.
        What was not committed is in the result, with the reason, and is still sent later.  Raises
        InvalidValueError for a query that is not committed here, ManagerStoppedError after
        ``detach``.
        """
        deadline = Deadline(timeout)
        if self._detached:
            message = "these commits are detached: flush the query first, inside the with block"
            raise ManagerStoppedError(message)
        if not self._listener.is_wanted(query.name):
            fix = f"flush the query named {self._listener.query_name!r}"
            raise InvalidValueError("query", query.name, "is not committed here", fix)
        progress = query.lastProgress
        if progress is None:
            return FlushResult({}, {})
        snapshot = read_snapshot(progress)
        try:
            return self._flushed(snapshot, deadline)
        finally:
            if not query.isActive:
                self._committer.end(Run.of(query))

    def release(self, query: StreamingQuery | str, timeout: float = 10.0) -> None:
        """Remove a stopped query (or its name or id) from the minimum of its groups.

        A query that still runs is removed when it ends.  Waits up to ``timeout`` seconds until the
        offsets of the other queries are submitted.  Raises InvalidValueError if no such query was
        committed here, ManagerStoppedError after ``detach``.
        """
        if self._detached:
            raise ManagerStoppedError("these commits are detached, and keep no group back")
        name = query if isinstance(query, str) else str(getattr(query, "id", query))
        if not getattr(query, "isActive", True):
            self._committer.end(Run.of(query))
        answered = wait([self._committer.release(name)], timeout).done
        if not all(each.result() for each in answered):
            fix = "give a query of this session, its queryName or its id"
            raise InvalidValueError("query", name, "has not been committed here", fix)

    def detach(self, timeout: float = DETACH_S) -> None:
        """Stop listening, commit what is left and stop the managers; a second call does nothing.

        Waits up to ``timeout`` seconds.  What is not committed by then is logged, with the command
        that commits it later, and still sent while the client is open.
        """
        if self._detached:
            return
        self._detached = True
        try:
            self._spark.streams.removeListener(self._listener)
        except Exception:  # noqa: BLE001 -- of py4j or of Spark Connect
            # A session that was stopped before has no listeners any more.
            _log.debug("the listener was not removed", exc_info=True)
        self._committer.close(timeout)
        self._unwatch()
        self._errors.close()
        self._to_call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _failed(self, key: ManagerKey | None, error: OffsetManagerError) -> None:
        """Take an error from the client's threads; it is logged by the client."""
        if key is None or self._groups.include(key.group):
            self._committer.counts["refused"] += isinstance(error, OffsetCommitError)
            self._errors.put(error)
            if self._on_error is not None:
                self._to_call.put(error)

    def _call(self, on_error: Callable[[OffsetManagerError], object]) -> None:
        for error in self._to_call:
            try:
                on_error(error)
            except Exception as raised:  # noqa: BLE001 -- the user's function may raise anything
                text = f"on_error of commit_offsets raised {type(raised).__name__}: {raised}"
                self._committer.warn_once(("on_error",), text)

    def _flushed(self, snapshot: Snapshot, deadline: Deadline) -> FlushResult:
        wanted = self._committer.offsets(snapshot)
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        is_submitted = bool(wait([self._committer.put(snapshot)], deadline.left_s).done)
        for group, partitions in by_group(wanted if is_submitted else ()).items():
            left_s = deadline.left_s
            result = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            committed.update(result.committed)
            uncommitted.update(result.uncommitted)
        left = [key for key in wanted if key not in committed and key not in uncommitted]
        # A manager may have been stopped meanwhile, since Kafka has its offset.
        known = self._committer.look_up(by_group(left), deadline.left_s)
        for key in left:
            offset = OffsetAndMetadata(wanted[key])
            if known.get(key, -1) >= offset.offset:
                committed[key] = OffsetAndMetadata(known[key])
            elif is_submitted:
                why = "the client is closed" if self._client.closed else "the log says why"
                error = ManagerStoppedError(f"{key} at {wanted[key]} was not submitted: {why}")
                uncommitted[key] = Uncommitted(offset, error)
            else:
                text = f"the service did not answer within {deadline.timeout} s; it is still sent"
                uncommitted[key] = Uncommitted(offset, OffsetTimeoutError(text))
        return FlushResult(committed, uncommitted)


def _checked_groups(group: object, groups: object) -> Groups:
    """Return the groups as the caller named them: exactly one of the two arguments."""
    if (group is None) == (groups is None):
        problem = "is missing" if group is None else "was given beside groups"
        fix = 'give either group="..." or groups={"topic": "group"}'
        raise InvalidValueError("group", group, problem, fix)
    if groups is None:
        return Groups(check_group(group))
    if not isinstance(groups, Mapping) or not groups:
        fix = 'give a mapping such as {"orders": "orders-etl"}'
        raise InvalidValueError("groups", groups, "is no mapping of topics to groups", fix)
    by_topic = {
        check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
        for topic, name in groups.items()
    }
    return Groups(None, by_topic)


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
