"""Commits the offsets of a session's streaming queries to their consumer groups.

Two threads, so that Spark's listener bus never waits.  One submits what queries report.  The other
stops the managers of ended queries once Kafka has their offsets; until then the client keeps them.

Spark reports no batch without new data.  So a run that resumes from its checkpoint, after the
driver was killed before the last report, may never report anything.  Until its first report, a run
is asked for its progress when it is idle and when it ends.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.client.core import BoundedStream
from offsetmgr.client.offsets import Deadline, QueryReport, by_group
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
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.group_state import Commit
    from offsetmgr.spark.progress import Snapshot
    from offsetmgr.types import Stream, TopicPartition

_log = logging.getLogger("offsetmgr.spark")

DETACH_S: Final = 10.0
"""Seconds that leaving a ``with`` block waits for the last commits."""

LOOK_UP_S: Final = 1.0
"""Longest wait for what a group had committed, once for each new run of a query."""

FLUSH_S: Final = 5.0
"""Longest wait for the commits of one group before the next group gets its turn."""

STOP_S: Final = 2.0
"""Longest wait for the service to stop managers that hold nothing uncommitted."""

RETRY_S: Final = 2.0
"""Pause after a round that left something uncommitted."""

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

    No query is slowed or failed if the service is down or Kafka refuses commits.  ``client`` keeps
    the offsets, also after the end of a query, and sends them when the service is back.  Then the
    managers of an ended query are stopped.

    Failures are logged once for each cause and group, and so is their end.  ``on_error`` is called
    with each error on a thread of its own; the first exception it raises is logged.

    If several queries read a topic for one group, the lowest of their offsets is committed.  A
    stopped query still counts until it runs again (with the same id or, under a new checkpoint,
    with the same name) or is removed by ``release``.

    Raises InvalidValueError.
    """
    wanted = _checked_groups(group, groups)
    if not hasattr(spark, "streams"):
        raise InvalidValueError("spark", spark, "is no SparkSession", "give the session")
    check_client(client)
    _check_options(query_name, on_error)
    return OffsetCommits(spark, client, wanted, query_name, on_error)


class OffsetCommits:
    """The commits of a session's queries; made by ``commit_offsets``.

    As a context manager it detaches at the end of the block.  If nobody detaches, the close of the
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
        self._errors = BoundedStream[OffsetManagerError]("commit_offsets")
        self._to_call = BoundedStream[OffsetManagerError]("commit_offsets")
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
            try:
                self._listener.take_up(query)
            except Exception:  # noqa: BLE001 -- the other queries are taken up all the same
                _log.exception("the offsets of a running query were not taken up")

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
        wanted = self._committer.offsets(snapshot)
        try:
            with self._committer.keeping():
                handed_over = wait([self._committer.put(snapshot)], deadline.left_s)
                if handed_over.done:
                    return self._flushed(wanted, deadline)
            text = f"the service did not answer within {timeout} s; the offsets are still sent"
            error = OffsetTimeoutError(text)
            return FlushResult({}, {key: _left(each, error) for key, each in wanted.items()})
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
        fix = "give a query of this session, its queryName or its id"
        if isinstance(query, str):
            run = Run(query, "")
        elif not hasattr(query, "runId"):
            raise InvalidValueError("query", query, "is no query", fix)
        else:
            run = Run.of(query)
            if not query.isActive:
                self._committer.end(run)
        answered = wait([self._committer.release(run)], timeout).done
        if not all(each.result() for each in answered):
            raise InvalidValueError("query", run.query_id, "has not been committed here", fix)

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
                self._committer.once.warn(("on_error",), text)

    def _flushed(self, wanted: Mapping[ManagerKey, int], deadline: Deadline) -> FlushResult:
        committed: dict[ManagerKey, OffsetAndMetadata] = {}
        uncommitted: dict[ManagerKey, Uncommitted] = {}
        for group, partitions in by_group(wanted).items():
            left_s = deadline.left_s
            result = self._client.flush(timeout=left_s, group=group, partitions=partitions)
            committed.update(result.committed)
            uncommitted.update(result.uncommitted)
        why = "the client is closed" if self._client.closed else "the log says why"
        for key in wanted.keys() - committed.keys() - uncommitted.keys():
            error = ManagerStoppedError(f"{key} at {wanted[key]} was not submitted: {why}")
            uncommitted[key] = _left(wanted[key], error)
        return FlushResult(committed, uncommitted)


def _checked_groups(group: object, groups: object) -> Groups:
    """Return the groups as the caller named them: exactly one of the two arguments."""
    if groups is None:
        if group is None:
            fix = 'give group="..." or groups={"topic": "group"}'
            raise InvalidValueError("group", None, "is missing", fix)
        return Groups(check_group(group))
    if group is not None:
        raise InvalidValueError("groups", groups, "was given beside group", "give one of the two")
    if not isinstance(groups, Mapping) or not groups:
        fix = 'give a mapping such as {"orders": "orders-etl"}'
        raise InvalidValueError("groups", groups, "is no mapping of topics to groups", fix)
    by_topic = {
        check_topic(topic, "groups topic"): check_group(name, f"groups[{topic!r}]")
        for topic, name in groups.items()
    }
    return Groups(None, by_topic)


def _check_options(query_name: object, on_error: object) -> None:
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        fix = "give the queryName of the query, or leave it out for every query"
        raise InvalidValueError("query_name", query_name, "is not the name of a query", fix)
    if on_error is not None:
        check_callable(on_error, "on_error")


def _left(offset: int, error: OffsetManagerError) -> Uncommitted:
    return Uncommitted(OffsetAndMetadata(offset), error)


class LogOnce:
    """Logs the first warning of each key."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, ...]] = set()

    def warn(self, key: tuple[str, ...], message: str) -> None:
        if key not in self._logged:
            if len(self._logged) >= _MAX_REMEMBERED:
                self._logged.clear()
            self._logged.add(key)
            _log.warning("%s", message)


@dataclass(eq=False)
class _Unread:
    """A manager that is to be stopped: no running query reads its partition."""

    left: Uncommitted | None = None
    """The offset that the last try could not commit, and why."""
    is_reported: bool = False


class Committer:
    """Commits by the decisions of its ``GroupState``; any thread may call."""

    def __init__(self, client: Offsets, groups: Groups) -> None:
        self._client = client
        self._state = GroupState(groups)
        self.once = LogOnce()
        self.counts = Counter(dict.fromkeys(CommitCounts._fields, 0))
        self._changed = threading.Condition()
        self._tasks: SimpleQueue[tuple[Future[bool], _Task] | None] = SimpleQueue()
        self._unheard: dict[Run, Ask] = {}
        """Runs that have not reported anything yet."""
        self._reports: dict[Run, QueryReport] = {}
        """The last report of each run to the service; for the thread that hands over."""
        self._unread: dict[ManagerKey, _Unread] = {}
        self._flushing = 0
        """Calls of ``flush``; nothing is stopped beside them."""
        self._closed = False
        self._handed_over = False
        """Nothing more will be submitted."""
        self._is_overdue = False
        """True if uncommitted offsets are logged at once."""
        self._managers = threading.Lock()
        """Held while managers take offsets or are stopped, and taken before ``_changed``."""
        for run, name in ((self._hand_over, "offsetmgr-spark"), (self._stop, "offsetmgr-release")):
            threading.Thread(target=run, name=name, daemon=True).start()

    # Called by the listener and by users: never waits for the service.

    def expect(self, run: Run, ask: Ask) -> None:
        """Take up a run that may stay silent."""
        with self._changed:
            self._unheard[run] = ask

    def put(self, snapshot: Snapshot) -> Future[bool]:
        with self._changed:
            self._unheard.pop(snapshot.run, None)
            return self._do(lambda: self._progress(snapshot))

    def idle(self, run: Run) -> None:
        """Ask a run that found nothing new, unless it has reported already."""
        with self._changed:
            if run in self._unheard:
                self._do(lambda: self._ask(run))

    def end(self, run: Run, error: str | None = None) -> None:
        """Have the last offsets of a run committed and its managers released.

        ``error`` is why it failed, if Spark says so.
        """
        with self._changed:
            self._do(lambda: self._end(run, error))

    def release(self, run: Run) -> Future[bool]:
        """Remove a query from the minimum of its groups; False if no such query is known."""
        with self._changed:
            return self._do(lambda: self._release(run.query_id))

    def offsets(self, snapshot: Snapshot) -> dict[ManagerKey, int]:
        return dict(self._state.offsets(snapshot))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Stop no manager inside the block."""
        with self._changed:
            self._flushing += 1
        try:
            yield
        finally:
            with self._changed:
                self._flushing -= 1
                self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """End every run, and wait until all is committed and released.

        What is not committed after ``timeout`` seconds is logged, now or as soon as it is handed
        over, and still sent as long as the client lives.
        """
        with self._changed:
            for run in self._unheard:
                self._do(partial(self._ask, run))
            self._do(self._end_all)
            self._closed = True
            self._tasks.put(None)
            if self._changed.wait_for(lambda: self._handed_over and not self._unread, timeout):
                return
            self._report(self._unread)
            self._is_overdue = True

    def _do(self, task: _Task) -> Future[bool]:
        """Have it done by the thread that hands over, after all that it was given before."""
        done: Future[bool] = Future()
        if self._closed:
            done.set_result(False)
        else:
            self._tasks.put((done, task))
        return done

    # The thread that hands over.

    def _hand_over(self) -> None:
        while (taken := self._tasks.get()) is not None:
            done, task = taken
            try:
                done.set_result(task())
            except Exception:  # noqa: BLE001 -- the thread must outlive it: other queries need it
                _log.exception("offsets of a query were not handed over")
                done.set_result(False)
        with self._changed:
            self._handed_over = True
            self._changed.notify_all()

    def _progress(self, snapshot: Snapshot) -> bool:
        committed = self._look_up(self._state.new_groups(snapshot))
        decision = self._state.progress(snapshot, committed)
        self._apply(snapshot.run.query_id, decision, snapshot.label)
        self._show(snapshot, sorted({key.group for key in self.offsets(snapshot)}))
        return True

    def _show(self, snapshot: Snapshot, groups: list[str]) -> None:
        """Have the service show the query to whoever looks at it."""
        run, name = snapshot.run, snapshot.name
        report = self._reports[run] = QueryReport(
            run.query_id,
            run.run_id,
            "running",
            None if name is None else name[:_SHOWN_CHARS],
            tuple(groups[:_SHOWN_GROUPS]),
            snapshot.batch_id,
            snapshot.timestamp,
            *snapshot.figures,
        )
        self._client.report_query(report)

    def _end(self, run: Run, error: str | None) -> bool:
        self._ask(run)
        with self._changed:
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
        with self._changed:
            self._unheard.pop(run, None)
        return self._progress(snapshot)

    def _look_up(self, groups: Iterable[str]) -> dict[ManagerKey, int]:
        found: dict[ManagerKey, int] = {}
        for group in () if self._closed else groups:
            try:
                committed = self._client.committed(group, timeout=LOOK_UP_S)
            except OffsetManagerError as error:
                # The first offsets of a run may go back anyway; only logging so needs this.
                _log.debug("what %s had committed is not known: %s", group, error)
                continue
            found.update((ManagerKey(group, *p), entry.offset) for p, entry in committed.items())
        return found

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
        with self._changed:
            self._unread.update((key, _Unread()) for key in decision.unread)
            self._changed.notify_all()

    def _submit(self, commits: Mapping[ManagerKey, Commit]) -> int:
        """Hand the commits to the client; return how many it took."""
        batches: defaultdict[tuple[str, bool], dict[tuple[str, int], int | OffsetAndMetadata]] = (
            defaultdict(dict)
        )
        for key, commit in commits.items():
            batches[key.group, commit.rewind][key.topic_partition] = commit.offset
        taken = 0
        with self._managers:
            with self._changed:
                for key in commits:
                    self._unread.pop(key, None)
            for (group, rewind), offsets in batches.items():
                try:
                    self._client.submit(group, offsets, rewind=rewind)
                except OffsetManagerError as error:
                    self.once.warn(("submit", group, error.code), f"not committed: {error}")
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
            self.once.warn(
                ("shared", group, topic),
                f"topic {topic} is read by more than one source for group {group}: the lowest of "
                "their offsets is committed; give each query a group of its own "
                "(query_name=... commits one query alone)",
            )
        for group, query in decision.held_back.items():
            self.once.warn(
                ("held back", group, query),
                f"query {shown(query)} has stopped: until it runs again, group {group} goes no "
                "further than what it has read, though other queries have read more; "
                f"commits.release({shown(query)}) lets the group go on without it",
            )
        for topic in decision.ungrouped:
            self.once.warn(
                ("ungrouped", topic, label),
                f"topic {topic} of {label} is not committed: groups={{...}} does not name it",
            )

    # The thread that stops managers.

    def _stop(self) -> None:
        while (unread := self._next_unread()) is not None:
            for group, partitions in by_group(unread).items():
                try:
                    self._stop_committed(group, partitions, unread)
                except Exception:  # noqa: BLE001 -- the thread must outlive it
                    _log.exception("partitions of group %s were not released", group)

    def _next_unread(self) -> dict[ManagerKey, _Unread] | None:
        """Wait for managers to be stopped; None once all is handed over and released."""
        with self._changed:
            if any(each.left for each in self._unread.values()):
                self._changed.wait(RETRY_S)
            while self._flushing or not self._unread:
                if self._handed_over and not self._unread:
                    return None
                self._changed.wait()
            return dict(self._unread)

    def _stop_committed(
        self, group: str, partitions: list[TopicPartition], unread: Mapping[ManagerKey, _Unread]
    ) -> None:
        """Stop the managers of a group that hold nothing which this client may still commit."""
        flushed = self._client.flush(timeout=FLUSH_S, group=group, partitions=partitions)
        with self._managers:
            with self._changed:
                stopped: dict[ManagerKey, _Unread] = {}
                for key in (ManagerKey(group, *partition) for partition in partitions):
                    each = unread[key]
                    # A query may have started again meanwhile, and have ended again further on.
                    if self._unread.get(key) is each and not self._flushing:
                        each.left = flushed.uncommitted.get(key)
                        if not self._may_commit(each.left):
                            stopped[key] = each
            try:
                if stopped:
                    places = [key.topic_partition for key in stopped]
                    self._client.stop_managers(timeout=STOP_S, group=group, partitions=places)
            finally:
                with self._changed:
                    self._report(self._unread if self._is_overdue else stopped)
                    for key in stopped:
                        del self._unread[key]
                    self._changed.notify_all()

    def _may_commit(self, left: Uncommitted | None) -> bool:
        """Return True if this client may still commit it."""
        if left is None or self._client.closed:
            return False
        # Somebody else has committed a higher offset, or a newer driver has taken our place.
        return not isinstance(left.error, (OffsetRegressionError, ClientFencedError))

    def _report(self, unread: Mapping[ManagerKey, _Unread]) -> None:
        """Log what of ``unread`` is not committed, once, and the command that commits it."""
        texts: dict[str, list[str]] = defaultdict(list)
        for key, each in unread.items():
            if each.left is not None and not each.is_reported:
                offset, error = each.left
                text = f"{key.topic_partition} at {offset.offset} ({error})"
                texts[key.group].append(text)
                each.is_reported = True
        for group, left in texts.items():
            _log.warning(
                "not all that was read is committed to group %s: %s; the checkpoint has it: when "
                "this driver has ended, compare the two by offsetmgr spark reconcile --checkpoint "
                "CHECKPOINT --group %s --service %s and add --execute to commit (CHECKPOINT is the "
                "query's checkpointLocation)",
                *(group, listed(left), shlex.quote(group), self._client.url),
            )
