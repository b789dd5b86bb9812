"""Reads the events of Spark's listener bus, hands them over to the committer, and raises nothing.

PySpark makes Python objects of a progress before it calls a listener, by more than 400 calls into
the JVM for each batch, while the query's next batch wants the processor.  So the JVM is given
``JsonListener`` instead, which asks for JSON.  Spark Connect, whose events come as JSON anyway,
calls ``CommitListener`` itself.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import JStreamingQueryListener

from offsetmgr.errors import InvalidValueError, shown
from offsetmgr.logs import SafeLogger
from offsetmgr.spark.progress import Run, read_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsetmgr.spark.committer import Committer
    from offsetmgr.spark.progress import Snapshot

_log = SafeLogger("offsetmgr.spark")


def _without_raising(method: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Log what a method raises.

    Spark would log it as a fault of the query's driver, and a bus that is stuck holds up every
    listener of the session.
    """

    def run(self: object, event: object) -> None:
        try:
            method(self, event)
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("an event of a query was not handed over")

    return run


class CommitListener(StreamingQueryListener):
    """Hands over the progress of a session's queries, or of one of them.

    The methods have Spark's names.  For ``onQueryStarted`` the start of a query itself waits.
    """

    def __init__(self, spark: SparkSession, committer: Committer, query_name: str | None) -> None:
        self.query_name = query_name
        """The name of the query that is committed; None for every query."""
        self._spark = spark
        self._committer = committer
        self._has_matched = query_name is None

    @cached_property
    def _jlistener(self) -> Any:
        """The Java listener that ``addListener`` and ``removeListener`` give to the JVM."""
        # A PySpark for Spark Connect alone has none.
        from pyspark import SparkContext  # noqa: PLC0415

        jvm: Any = SparkContext._jvm  # noqa: SLF001 -- PySpark has no other way to it
        return jvm.PythonStreamingQueryListenerWrapper(JsonListener(self))

    def is_wanted(self, name: str | None) -> bool:
        return self.query_name is None or name == self.query_name

    @_without_raising
    def take_up(self, query: StreamingQuery) -> None:
        """Hand over the progress of a query that runs already."""
        run, progress = Run.of(query), query.lastProgress
        if self.is_wanted(query.name):
            self._expect(run, query)
            if progress is not None:
                self.hand_over(progress)
            if not query.isActive:
                # Its end may have been reported before its progress was taken: it is not repeated.
                self._committer.end(run)

    @_without_raising
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        if self.is_wanted(event.name):
            # Looked up while Spark waits: a run with nothing to do may be over in a moment.
            query = self._spark.streams.get(str(event.id))
            if query is not None:
                self._expect(Run.of(event), query)

    @_without_raising
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        self.hand_over(event.progress)

    @_without_raising
    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's name
        self._committer.idle(Run.of(event))

    @_without_raising
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        self._committer.end(Run.of(event), event.exception)

    def hand_over(self, progress: object) -> None:
        snapshot = self._read(progress)
        if snapshot is not None:
            self._committer.put(snapshot)

    def _expect(self, run: Run, query: StreamingQuery) -> None:
        def ask() -> Snapshot | None:
            progress = query.lastProgress
            return None if progress is None else self._read(progress)

        self._has_matched = True
        self._committer.expect(run, ask)

    def _read(self, progress: object) -> Snapshot | None:
        warn_once = self._committer.warn_once
        try:
            snapshot = read_snapshot(progress)
        except InvalidValueError as error:
            self._committer.counts["unreadable"] += 1
            warn_once(("report",), f"a query's progress is not understood: {error}")
            return None
        if not self.is_wanted(snapshot.name):
            # At its first report and not at its start: the one that is meant may start next.
            if not self._has_matched:
                wanted = f"no query named {shown(self.query_name)} (query_name) has started yet"
                warn_once(("query_name",), f"{wanted}; {snapshot.label} is not committed")
            return None
        for source, problem in snapshot.problems.items():
            self._committer.counts["unreadable"] += 1
            text = f"{snapshot.label}, source {source}: {problem}"
            warn_once((snapshot.run.query_id, source), text)
        return snapshot


class JsonListener(JStreamingQueryListener):
    """Called by the JVM, with its own events."""

    pylistener: CommitListener

    @_without_raising
    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 -- Spark's name
        self.pylistener.hand_over(json.loads(jevent.progress().json()))
