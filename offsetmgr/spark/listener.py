"""Reads the events of Spark's listener bus, hands them over to the committer, and raises nothing.

PySpark makes Python objects of a progress before it calls a listener, by more than 400 calls into
the JVM for each batch, while the query's next batch wants the processor.  So the JVM is given
``JsonListener`` instead, which asks for JSON.  Spark Connect, whose events come as JSON anyway,
calls ``CommitListener`` itself.
"""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import JStreamingQueryListener

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.committer import Subscription, WatchedRun
from offsetmgr.spark.files import is_stopped
from offsetmgr.spark.progress import Run, finished_batch, read_snapshot
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsetmgr.spark.committer import Committer
    from offsetmgr.spark.group_state import Groups
    from offsetmgr.spark.progress import Snapshot

_log = SafeLogger("offsetmgr.spark")

_attached: Final[WeakSet[CommitListener]] = WeakSet()

SILENT_S: Final = 30.0
"""With Spark Connect, the time without an event after which a query may be a continuous one."""


def _without_raising(method: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Log what a method raises: a bus that is stuck holds up every listener of the session."""

    def run(self: object, event: object) -> None:
        _log.guard("an event of a query was not handed over", method, self, event)

    return run


class CommitListener(Subscription, StreamingQueryListener):
    """A subscription of a session's queries, or of one of them, by Spark's events.

    The methods have Spark's names.  For ``onQueryStarted`` the start of a query itself waits.
    """

    def __init__(
        self, committer: Committer, groups: Groups, spark: SparkSession, query_name: str | None
    ) -> None:
        self.query_name = query_name
        """The name of the query that is committed; None for every query."""
        self.ids: set[str] = set()
        """The session's queries that were seen, committed or not."""
        self._spark = spark
        self._has_matched = query_name is None
        self.is_listening = False
        self._looking: Question[None] | None = None
        _attached.add(self)
        super().__init__(committer, groups, spark)  # from here on it may be called

    @cached_property
    def _jlistener(self) -> Any:
        """The Java listener that ``addListener`` and ``removeListener`` give to the JVM."""
        # A PySpark for Spark Connect alone has none.
        from pyspark import SparkContext  # noqa: PLC0415

        jvm: Any = SparkContext._jvm  # noqa: SLF001 -- PySpark has no other way to it
        return jvm.PythonStreamingQueryListenerWrapper(JsonListener(self))

    def is_wanted(self, name: str | None) -> bool:
        return self.query_name is None or name == self.query_name

    def listen(self) -> None:
        # In this order nothing falls between: what comes twice is the same batch.
        self._spark.streams.addListener(self)
        for query in self._spark.streams.active:
            self.take_up(query)
        self.is_listening = True

    @_without_raising
    def take_up(self, query: StreamingQuery) -> None:
        """Note a query that runs; its progress is handed over."""
        run = Run.of(query)
        self.ids.add(run.query_id)
        if not self.is_wanted(query.name):
            return
        self._has_matched = True
        is_continuous = _is_continuous(query)

        def ask() -> Snapshot | None:
            if query.isActive and not is_continuous:
                # While it runs its files are not read again and again: its next report will come.
                progress = _last_progress(query)
                return None if progress is None else self._read(progress)
            self.end_if_over(query)
            return self.position(query)

        self.runs.setdefault(run, WatchedRun(ask, is_continuous))

    def end_if_over(self, query: StreamingQuery) -> str:
        """Return the query's id."""
        run = Run.of(query)
        if not query.isActive:
            error = query.exception()
            self.end(run, None if error is None else str(error))
        return run.query_id

    def state_of(self, query: StreamingQuery) -> tuple[Snapshot | None, bool]:
        """Return ``position`` and True if it runs; refuses a query that is not committed here."""
        Run.of(query)
        if not self.is_wanted(query.name):
            fix = f"flush the query named {self.query_name!r}"
            raise InvalidValueError("query", query.name, "is not committed here", fix)
        return self.position(query), query.isActive

    def position(self, query: StreamingQuery) -> Snapshot | None:
        """Return how far a query is, by its last report or, without one, by its checkpoint.

        A continuous query makes none, and Spark may be set to keep none of the others.  None if
        nothing is known.  Raises InvalidValueError for a report that is not understood, where
        nobody can read the checkpoint.
        """
        progress = _last_progress(query)
        snapshot = None if progress is None else self._read(progress)
        if snapshot is not None:
            return snapshot
        execution = getattr(query, "_jsq", None)
        if execution is None:  # Spark Connect reads no files
            if progress is None:
                return None
            hint = "the log has the reason; offsetmgr spark reconcile reads the query's checkpoint"
            raise InvalidValueError("query", str(query.id), "has an unreadable report", hint)
        location = execution.streamingQuery().resolvedCheckpointRoot()
        try:
            finished = Checkpoint(str(location), self._spark).last_finished()
        except (InvalidValueError, OSError):
            if _is_continuous(query):
                raise
            finished = None  # such as of a query that has failed at its start
        if finished is None:
            return None
        batch_id, run = finished.batch_id, Run.of(query)
        return finished_batch(run, query.name, batch_id, finished.offsets, time.time())

    @_without_raising
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        # Looked up while Spark waits: a run with nothing to do may be over in a moment.
        query = self._spark.streams.get(str(event.id))
        if query is not None:
            self.take_up(query)

    @_without_raising
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        self.hand_over(event.progress)

    @_without_raising
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        self.end(Run.of(event), event.exception)

    def hand_over(self, progress: object) -> None:
        snapshot = self._read(progress)
        if snapshot is not None:
            self.put(snapshot)

    def is_over(self) -> bool:
        return is_stopped(self._spark)

    def look_around(self) -> None:
        last = self._looking
        # A server that is gone, or a JVM that is stopped, does not answer: others need the thread.
        if last is None or last.wait():
            self._looking = Question(self._look_around)
            if last is not None:
                last.result()

    def _look_around(self) -> None:
        """Warn of queries of other sessions that would be committed, were they of this one."""
        if self.is_over():
            return
        session = getattr(self._spark, "_jsparkSession", None)
        if session is None:  # Spark Connect shows a client its own queries alone
            self._warn_of_silent()
            self._look_for_events()
            return
        known = set().union(*(listener.ids for listener in _attached))
        running = session.sharedState().activeStreamingQueries()
        for key in list(running):
            progress = None if str(key) in known else running[key].lastProgress()
            if progress is None:
                continue
            self.ids.add(str(key))
            snapshot = self._read(json.loads(progress.json()))
            if snapshot and self.offsets(snapshot):
                _log.warning(
                    "%s is not committed, as it is of another session of this driver: call "
                    "commit_offsets with that session and the same client",
                    snapshot.label,
                )

    def _look_for_events(self) -> None:
        """Have queries asked if Spark Connect has removed all listeners, as it does on a failure.

        A session does not let them be added again.
        """
        bus: Any = self._spark.streams
        bus = bus._sqlb  # noqa: SLF001 -- PySpark only warns
        thread = bus._execution_thread  # noqa: SLF001 -- the same
        is_live = thread is not None and thread.is_alive() and self in bus._listener_bus  # noqa: SLF001
        if is_live or not self.is_listening:
            return
        self.warn_once(
            ("events", str(id(self))),
            "Spark Connect sends no events of queries any more, as after a broken connection: "
            "running queries are asked instead. Flush those that have ended, or compare their "
            "groups by offsetmgr spark reconcile",
        )
        for query in self._spark.streams.active:
            self.take_up(query)

    def _warn_of_silent(self) -> None:
        """Warn of queries that may be continuous: Spark Connect does not say."""
        for run, watched in list(self.runs.items()):
            if watched.last is None and time.monotonic() - watched.since_s > SILENT_S:
                self.warn_once(
                    ("silent", run.run_id),
                    f"query {run.query_id} has reported nothing for {SILENT_S:g} s; if its trigger "
                    "is continuous, it is not committed: with Spark Connect only offsetmgr spark "
                    "follow, or reconcile, commits it from its checkpoint",
                )

    def _read(self, progress: object) -> Snapshot | None:
        """Return a report; None, with the reason logged, for one that is not to be committed."""
        try:
            snapshot = read_snapshot(progress)
        except InvalidValueError as error:
            self.counts["unreadable"] += 1
            self.warn_once(
                ("report", error.field), f"a query's progress is not understood: {error}"
            )
            return None
        if not self.is_wanted(snapshot.name):
            # At its first report and not at its start: the one that is meant may start next.
            if not self._has_matched:
                wanted = f"no query named {shown(self.query_name)} (query_name) has started yet"
                self.warn_once(("query_name",), f"{wanted}; {snapshot.label} is not committed")
            return None
        for part, problem in snapshot.problems.items():
            self.counts["unreadable"] += 1
            text = f"{snapshot.label}, {part}: {problem}"
            self.warn_once((snapshot.run.query_id, part), text)
        return snapshot


def _last_progress(query: StreamingQuery) -> object:
    """Return the last report, or None; as JSON where PySpark would make objects of it."""
    execution = getattr(query, "_jsq", None)
    if execution is None:
        return query.lastProgress
    progress = execution.lastProgress()
    return None if progress is None else json.loads(progress.json())


def _is_continuous(query: StreamingQuery) -> bool:
    """Return True for a continuous trigger, which reports nothing; Spark Connect does not say."""
    execution = getattr(query, "_jsq", None)
    name = "" if execution is None else str(execution.streamingQuery().getClass().getName())
    return name.endswith("ContinuousExecution")


class JsonListener(JStreamingQueryListener):
    pylistener: CommitListener

    @_without_raising
    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 -- Spark's name
        self.pylistener.hand_over(json.loads(jevent.progress().json()))
