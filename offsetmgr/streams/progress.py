"""The state and the numbers of a processor, from Spark's query and its checkpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from offsetmgr.spark.progress import read_offsets, report_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql.streaming import StreamingQuery

    from offsetmgr.spark.checkpoint import Checkpoint
    from offsetmgr.types import TopicPartition

State = Literal["stopped", "initializing", "recovering", "running", "stalled", "failed"]


class ProcessorStats(NamedTuple):
    """The state of a processor after its last batch."""

    state: State
    batch_id: int | None
    """None before the first batch."""
    rows: int
    """Messages of inputs and loop in the last batch; rows of tables are not counted."""
    rows_per_s: float
    batch_s: float
    """Time that the last batch took."""
    read: Mapping[TopicPartition, int]
    """The next offset to read of each partition of inputs and loop."""
    lag: Mapping[TopicPartition, int]
    """Messages of inputs and loop that were not read when the batch began, per partition.  Those of
    an open transaction and behind it do not count."""
    buckets: int
    """Buckets that hold rows; 0 of a stateless processor."""
    state_bytes: int
    """Memory of Spark's state stores."""


def state_of(
    query: StreamingQuery | None,
    opened: Callable[[], Checkpoint],
    stalled_s: float,
    *,
    recovering: bool,
) -> State:
    """Return the state; ``recovering`` says that the first batch has tables to read.

    A batch that takes longer than ``stalled_s`` is stalled.
    """
    if query is None:
        return "stopped"
    if not query.isActive:
        return "stopped" if query.exception() is None else "failed"
    files = opened()
    begun = files.last_begun()
    # Until Spark has noted where its sources begin, new messages may be before that.
    if query.status["message"].startswith("Initializing") or not (begun or _has_starts(files)):
        return "initializing"
    finished = None if begun is None else files.last_finished()
    if begun is not None and begun.at_s is not None:
        late = time.time() - begun.at_s > stalled_s
        if late and (finished is None or finished.batch_id < begun.batch_id):
            return "stalled"
    return "recovering" if recovering and finished is None else "running"


def _has_starts(files: Checkpoint) -> bool:
    sources = files.names("sources")
    return bool(sources) and all("0" in files.names(f"sources/{number}") for number in sources)


def stats_of(
    query: StreamingQuery | None, state: State, streams: Collection[str]
) -> ProcessorStats:
    """Return what the query reported of its last batch; ``streams`` are the inputs and the loop."""
    progress = None if query is None else query.lastProgress
    if progress is None:
        return ProcessorStats(state, None, 0, 0.0, 0.0, {}, {}, 0, 0)
    report: dict[str, Any] = report_of(progress)
    read: dict[TopicPartition, int] = {}
    lag: dict[TopicPartition, int] = {}
    rows = 0
    rows_per_s = 0.0
    for source in report["sources"]:
        newest = read_offsets(source.get("latestOffset"))
        ends = read_offsets(source.get("endOffset"))
        if not any(partition.topic in streams for partition in ends):
            continue
        rows += source["numInputRows"]
        rows_per_s += source.get("processedRowsPerSecond", 0.0)
        for partition, end in ends.items():
            read[partition] = end
            lag[partition] = max(0, newest.get(partition, end) - end)
    stores = report.get("stateOperators", [])
    return ProcessorStats(
        state,
        report["batchId"],
        rows,
        rows_per_s,
        report["durationMs"].get("triggerExecution", 0) / 1_000,
        read,
        lag,
        sum(store["numRowsTotal"] for store in stores),
        sum(store["memoryUsedBytes"] for store in stores),
    )
