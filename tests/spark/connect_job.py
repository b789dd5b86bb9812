"""A job on Spark Connect, whose server starts in this process's own Spark; writes what it saw.

A process of its own, because a Spark is either one of Connect or one of the classic kind.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from offsetmgr import OffsetClient
from offsetmgr.spark import (
    batch_ranges,
    commit_offsets,
    kafka_batch,
    reconcile,
    starting_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame

    from offsetmgr import TopicPartition
    from offsetmgr.spark import OffsetRange


def sink(checkpoint: str, folder: str) -> Callable[[DataFrame, int], None]:
    """Writes of each batch how many records it has and what it reads; runs on the server."""

    @batch_ranges(checkpoint)
    def write(
        batch: DataFrame, batch_id: int, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        read = {where.partition: each for where, each in ranges.items()}
        text = json.dumps({"records": batch.count(), "ranges": read})
        Path(folder, f"batch-{batch_id}.json").write_text(text)

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("service", "brokers", "topic", "group", "jars", "folder", "sink"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    source = {"kafka.bootstrap.servers": given.brokers}
    checkpoint = f"{given.folder}/checkpoint"
    settings = {
        "spark.jars": given.jars,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
    with OffsetClient(given.service, name=f"{given.group}-connect") as client:
        start = starting_offsets(client, given.group, [given.topic])
        stream = spark.readStream.format("kafka").options(**source).option("subscribe", given.topic)
        frame = stream.option("startingOffsets", start).option("maxOffsetsPerTrigger", 30).load()
        with commit_offsets(spark, client, group=given.group) as commits:
            writer = frame.writeStream.option("checkpointLocation", checkpoint)
            if given.sink == "foreachBatch":
                writer = writer.foreachBatch(sink(checkpoint, given.folder))
            else:
                writer = writer.format(given.sink)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            left = commits.flush(query, timeout=60).uncommitted
            counts = commits.counts
        same = not reconcile(client, given.group, checkpoint, spark=spark).differences
        with kafka_batch(client, f"{given.group}-batch", [given.topic]) as batch:
            reader = spark.read.format("kafka").options(**source).options(**batch.options)
            read = reader.load().count()
    spark.stop()
    seen = {"left": len(left), "unreadable": counts.unreadable, "same": same, "batch": read}
    Path(given.folder, "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
