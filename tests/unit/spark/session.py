"""A session of Spark and its queries, as far as they are used."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.spark.checkpoints import WrittenCheckpoint

LIVE = SimpleNamespace(is_alive=lambda: True)
"""A thread."""


def progress(offset: int, query: str = "q", run: str = "r1", **changes: Any) -> dict[str, Any]:
    """Return a report of a query that reads one partition of its topic."""
    topic = changes.pop("topic", "orders")
    source = {"description": f"KafkaV2[Subscribe[{topic}]]", "endOffset": {topic: {"0": offset}}}
    report = {"id": query, "runId": run, "name": None, "batchId": 0, "sources": [source]}
    return {**report, "timestamp": "2026-01-01T00:00:00.000Z", **changes}


class Session:
    """A session as far as it is used, which is its listeners and its queries."""

    def __init__(self) -> None:
        self.streams = self
        self.active: list[object] = []
        self.is_stopped = False
        self.listeners: list[Any] = []
        # Of Spark Connect: its listeners, and the thread that gets their events.
        self._sqlb = SimpleNamespace(_listener_bus=self.listeners, _execution_thread=LIVE)
        self.addListener = self.listeners.append
        self.removeListener = lambda _listener: None
        self.queries: dict[str, Query] = {}
        self.get = self.queries.get

    def start(self, query: Query) -> None:
        self.queries[query.id] = query
        for listener in self.listeners:
            listener.onQueryStarted(query)

    def report(self, *args: Any, **changes: Any) -> None:
        for listener in self.listeners:
            listener.onQueryProgress(SimpleNamespace(progress=progress(*args, **changes)))

    def end(self, query: str = "q", run: str = "r1") -> None:
        for listener in self.listeners:
            listener.onQueryTerminated(SimpleNamespace(id=query, runId=run, exception=None))


class Query(SimpleNamespace):
    """A query, which is its own start event; ``answer`` says how far it is."""

    def __init__(self, query: str, answer: Callable[[], object], name: str | None = None) -> None:
        super().__init__(id=query, runId="r1", name=name, isActive=True, answer=answer)
        self.exception = lambda: None

    @property
    def lastProgress(self) -> object:  # noqa: N802 -- Spark's name
        return self.answer()


def query_at(offset: int, query: str = "q", *, active: bool = True, **changes: Any) -> Any:
    """Return a query whose last report is ``progress`` of the same arguments."""
    made = Query(query, partial(progress, offset, query, **changes), changes.get("name"))
    made.isActive = active
    return made


def query_in(checkpoint: WrittenCheckpoint, kind: str, report: object = None) -> Any:
    """Return a query of which Spark has no report, or one that nobody understands."""
    java = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getName=lambda: kind),
        resolvedCheckpointRoot=lambda: checkpoint.root,
    )
    query = Query("q", lambda: None)
    last = report and SimpleNamespace(json=lambda: json.dumps(report))
    query._jsq = SimpleNamespace(streamingQuery=lambda: java, lastProgress=lambda: last)
    return query
