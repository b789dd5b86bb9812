"""The Spark job of the demo, as its users would write it: revenue by country, into Parquet.

Run by ``offsetmgr demo`` as a process of its own, and stopped with SIGTERM like any driver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

_SCHEMA: Final = "order_id STRING, country STRING, amount DECIMAL(12, 2)"
_POLL_S: Final = 1


def main() -> None:
    """Read the orders from where the group stands, until there are no more or SIGTERM comes."""
    args = _arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the demo's to handle
    spark = _session(args.jars, args.scratch)
    with OffsetClient(args.service, name=f"{args.group}-driver") as client:
        start = starting_offsets(client, args.group, [args.topic])
        commits = commit_offsets(spark, client, group=args.group)
        orders = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", args.brokers)
            .option("subscribe", args.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", args.batch_orders)
            .load()
            .select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("order"))
            .select("order.*")
        )
        query = (
            orders.writeStream.foreachBatch(_write_sales(args.out))
            .option("checkpointLocation", str(args.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        while not stop.is_set() and not query.awaitTermination(_POLL_S):
            pass
        query.stop()
        finished = commits.flush(query)
        _drop_unfinished(query, args.out)
        _report(args.result, query, start, len(finished.uncommitted))
        commits.detach()
    spark.stop()


def _write_sales(out: Path) -> Callable[[DataFrame, int], None]:
    """Revenue by country of each batch, in a folder of its own: written again, it replaces."""

    def write(batch: DataFrame, batch_id: int) -> None:
        sales = batch.groupBy("country").agg(
            F.count("*").alias("orders"),
            F.sum("amount").alias("revenue"),
            F.collect_list("order_id").alias("order_ids"),
        )
        sales.write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    return write


def _drop_unfinished(query: StreamingQuery, out: Path) -> None:
    """Drop what a batch wrote that the stop interrupted: its orders are read again."""
    finished = query.lastProgress.batchId if query.lastProgress else -1
    for folder in out.glob("batch=*"):
        if int(folder.name.removeprefix("batch=")) > finished:
            shutil.rmtree(folder)


def _report(path: Path, query: StreamingQuery, start: str, uncommitted: int) -> None:
    progress = query.lastProgress
    path.write_text(
        json.dumps(
            {
                "start": json.loads(start),
                "end": json.loads(progress.sources[0].endOffset) if progress else {},
                "batches": progress.batchId + 1 if progress else 0,
                "uncommitted": uncommitted,
            }
        )
    )


def _session(jars: str, scratch: str) -> SparkSession:
    settings = {
        "spark.jars": jars,
        "spark.driver.host": "127.0.0.1",
        # For a job of seconds Java's second compiler costs more than it gains.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("orders")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--service", required=True, help="the sidecar's URL")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--jars", required=True, help="Spark's Kafka connector")
    parser.add_argument("--batch-orders", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--scratch", required=True, help="for Spark's temporary files")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
