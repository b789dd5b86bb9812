"""A driver with one streaming query that goes on until it is killed.

A process of its own, because all of a driver is to die: Python and its Java.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from offsetmgr import OffsetClient
from offsetmgr.spark import commit_offsets
from tests.spark.support import new_session

SETTINGS = {
    # Every batch of the checkpoint stays, so that a test can look at all of them.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("service", "name", "brokers", "topic", "group", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--batch", type=int, required=True, help="most records of a batch")
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
        commit_offsets(spark, client, group=given.group)
        writer = frame.writeStream.format("noop").trigger(processingTime="100 milliseconds")
        writer.option("checkpointLocation", given.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
