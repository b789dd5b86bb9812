"""Listens on Spark's bus: reads each event, hands it over, and raises nothing.

PySpark makes Python objects of a progress before it calls a listener, by more than 400 calls into
the JVM for each batch, while the query's next batch wants the processor.  So the JVM calls ``Ears``
instead, who ask for JSON.  Spark Connect, whose events come as JSON anyway, calls the listener
itself.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import JStreamingQueryListener

from offsetmgr.spark.inbox import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsetmgr.spark.commits import OffsetCommits

_log = logging.getLogger("offsetmgr.spark")


class CommitListener(StreamingQueryListener):
    """Tells an ``OffsetCommits`` of the progress and the end of queries.

    The methods have Spark's names.  Nothing may be raised from them: Spark logs it as a fault of
    the query's driver, and a bus that is stuck holds up every listener of the session.  For
    ``onQueryStarted`` the start of a query itself waits.
    """

    def __init__(self, commits: OffsetCommits) -> None:
        """``commits`` is told of every query of the session."""
        self._commits = commits
        self._java: Any = None

    @property
    def _jlistener(self) -> Any:
        """What the session's ``addListener`` and ``removeListener`` give to the JVM."""
        if self._java is None:
            # A PySpark for Spark Connect alone has none.
            from pyspark import SparkContext  # noqa: PLC0415

            jvm: Any = SparkContext._jvm  # noqa: SLF001 -- PySpark has no other way to it
            try:
                self._java = jvm.PythonStreamingQueryListenerWrapper(Ears(self))
            except Exception:  # noqa: BLE001 -- of py4j or of a PySpark that is made otherwise
                _log.debug("this PySpark takes its own way to a listener", exc_info=True)
                self._java = super()._jlistener
        return self._java

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        """A run has begun: where nothing new comes, it is asked how far it is."""
        try:
            self._commits.started(Run(str(event.id), str(event.runId)), event.name)
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("the start of a query was not handed over")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        """A batch is finished: its end offsets are what is to be committed."""
        self.progressed(lambda: event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's name
        """Nothing: an idle trigger read nothing, so the offsets are those handed over before."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        """A run ended: its last offsets are committed and its managers released."""
        try:
            self._commits.ended(Run(str(event.id), str(event.runId)))
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("the end of a query was not handed over")

    def progressed(self, read: Callable[[], object]) -> None:
        """Hand over the progress that ``read`` returns."""
        try:
            self._commits.take(read())
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("a query's progress was not handed over")


class Ears(JStreamingQueryListener):
    """What the JVM calls, with events of its own."""

    pylistener: CommitListener

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 -- Spark's name
        """A batch is finished."""
        self.pylistener.progressed(lambda: json.loads(jevent.progress().json()))
