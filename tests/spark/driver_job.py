"""A driver with one streaming query that goes on until it is killed, by itself where it is told to.

A process of its own, because all of a driver is to die: Python and its Java.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming import StreamingQueryListener

from offsetmgr import OffsetClient
from offsetmgr.spark import commit_offsets
from offsetmgr.spark.progress import read_snapshot
from tests.spark.support import new_session, offsets_of
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from offsetmgr.types import TopicPartition

SETTINGS = {
    # Every batch of the checkpoint stays, so that a test can look at all of them.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class Falling(StreamingQueryListener):
    """Ends the driver when a batch is told of, before any listener that was added later hears it.

    Spark tells of a batch when it is in the checkpoint's commit log, so that it dies in between.
    What was told before is committed by then.
    """

    def __init__(self, client: OffsetClient, group: str, batch_id: int) -> None:
        """``batch_id`` is the batch that nobody hears of."""
        self._client = client
        self._group = group
        self._batch_id = batch_id
        self._before: Mapping[TopicPartition, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's name
        """Nothing yet."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 -- Spark's name
        """It never gets so far."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 -- Spark's name
        """A batch is finished."""
        snapshot = read_snapshot(event.progress)
        if snapshot.batch_id == self._batch_id:
            eventually(lambda: offsets_of(self._client.committed(self._group)), self._before)
            os.killpg(0, signal.SIGKILL)
        self._before = snapshot.sources[0]


def main() -> None:
    """Read the topic in small batches, from its checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("service", "name", "brokers", "topic", "group", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch", type=int, required=True, help="most records of a batch")
    parser.add_argument("--fall", type=int, help="the batch that is finished and not told of")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path(given.checkpoint).parent) as scratch:
        spark = new_session("local[1]", Path(scratch), SETTINGS)
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", given.brokers)
            .option("subscribe", given.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", given.batch)
            .load()
        )
        client = OffsetClient(given.service, name=given.name)
        if given.fall is not None:
            spark.streams.addListener(Falling(client, given.group, given.fall))
        commit_offsets(spark, client, group=given.group)
        writer = frame.writeStream.format("noop").trigger(processingTime="100 milliseconds")
        writer.option("checkpointLocation", given.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
