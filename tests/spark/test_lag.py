"""How far a query is behind, as Spark itself, Kafka's own tool and the service say it."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from offsetmgr.spark.progress import read_offsets
from tests.spark.support import WAIT_S, eventually, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from tests.service.support import ServeProcess
    from tests.spark.support import Job, Topic

SAMPLE = re.compile(r"offsetmgr_committed_offset\{(?P<labels>[^}]*)\} (?P<value>\S+)")


class Gate:
    """A sink that takes a batch each time it is told to."""

    def __init__(self) -> None:
        self._open = threading.Semaphore(0)

    def __call__(self, _batch: DataFrame, _batch_id: int) -> None:
        """Hold the batch until it may pass; so those after it have not begun."""
        assert self._open.acquire(timeout=WAIT_S)

    def let_one_through(self) -> None:
        """Once."""
        self._open.release()


def progress_of(query: StreamingQuery, batch_id: int) -> list[StreamingQueryProgress]:
    """What Spark reports of a batch; an idle trigger after it has a number of its own."""
    return [each for each in query.recentProgress if each.batchId == batch_id]


def by_spark(progress: StreamingQueryProgress) -> dict[int, tuple[int, int]]:
    """Where each partition is, and how far behind."""
    (source,) = progress.sources
    ends, latest = read_offsets(source.endOffset), read_offsets(source.latestOffset)
    return {where.partition: (end, latest[where] - end) for where, end in ends.items()}


def by_service(sidecar: ServeProcess, topic: Topic, group: str) -> dict[int, tuple[int, int]]:
    """The same by its API, and by its metrics where the committed offset comes from there."""
    with sidecar.http() as http:
        offsets = http.get("/v1/offsets", params={"group": group}).json()["offsets"]
        (state,) = http.get("/v1/topics", params={"topic": topic.name}).json()["topics"]
        page = http.get("/metrics").text
    measured = {
        int(labels["partition"]): float(value)
        for labels, value in (
            (dict(re.findall(r'(\w+)="([^"]*)"', found["labels"])), found["value"])
            for found in SAMPLE.finditer(page)
        )
        if labels["group"] == group
    }
    committed = {each["partition"]: each["offset"] for each in offsets}
    assert measured == committed
    return {
        each["partition"]: (
            committed[each["partition"]],
            each["high_watermark"] - committed[each["partition"]],
        )
        for each in state["partitions"]
    }


def test_everybody_sees_the_same_lag_after_every_batch(job: Job, sidecar: ServeProcess) -> None:
    """To the offset, while the query runs on; in the end there is none."""
    job.topic.produce(100)
    gate, seen = Gate(), []
    with job.commits() as commits:
        query = start(job.read(37), gate, job.checkpoint)
        try:
            for batch_id in range(3):
                gate.let_one_through()
                eventually(lambda: len(progress_of(query, batch_id)), 1)  # noqa: B023 -- in the loop
                assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
                (progress,) = progress_of(query, batch_id)
                lag = by_spark(progress)
                assert job.topic.lag(job.group) == lag
                assert by_service(sidecar, job.topic, job.group) == lag
                behind = [each for _, each in lag.values()]
                assert progress.sources[0].metrics["maxOffsetsBehindLatest"] == str(max(behind))
                seen.append(sum(behind))
        finally:
            query.stop()
    assert seen[0] > seen[1] > seen[2] == 0
