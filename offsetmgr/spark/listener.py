"""Listens on Spark's bus: reads each event, hands it over, and raises nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.streaming import StreamingQueryListener

from offsetmgr.spark.inbox import Run

if TYPE_CHECKING:
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

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        """A run has begun: where nothing new comes, it is asked how far it is."""
        try:
            self._commits.started(Run(str(event.id), str(event.runId)), event.name)
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("the start of a query was not handed over")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        """A batch is finished: its end offsets are what is to be committed."""
        try:
            self._commits.take(event.progress)
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("a query's progress was not handed over")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 -- Spark's name
        """Nothing: an idle trigger read nothing, so the offsets are those handed over before."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        """A run ended: its last offsets are committed and its managers released."""
        try:
            self._commits.ended(Run(str(event.id), str(event.runId)))
        except Exception:  # noqa: BLE001 -- nothing may reach Spark
            _log.exception("the end of a query was not handed over")
