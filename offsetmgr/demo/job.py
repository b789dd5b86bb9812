"""The Spark job of the demo, as its users would write it: orders from Kafka into Parquet.

Run by ``offsetmgr demo`` as a process of its own, and stopped with SIGTERM like any driver.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

_SCHEMA: Final = "order_id BIGINT, country STRING, amount DECIMAL(12, 2)"
_POLL_S: Final = 1


def main() -> None:
    """Read the orders from where the group stands, until there are no more or SIGTERM comes."""
    settings = json.loads(sys.argv[1])
    topic, group, out = settings["topic"], settings["group"], Path(settings["out"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the demo's to handle
    spark = _session(settings["jars"], settings["scratch"])
    with OffsetClient(settings["service"], name=f"{group}-driver") as client:
        start = starting_offsets(client, group, [topic])
        commits = commit_offsets(spark, client, group=group)
        orders = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings["brokers"])
            .option("subscribe", topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", settings["batch_orders"])
            .load()
            .select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("order"))
            .select("order.*")
        )
        query = (
            orders.writeStream.foreachBatch(_write(out))
            .option("checkpointLocation", settings["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        while not stop.is_set() and not query.awaitTermination(_POLL_S):
            pass
        query.stop()
        finished = commits.flush(query)
        _drop_unfinished(query, out)
        _report(Path(settings["result"]), query, start, len(finished.uncommitted))
        commits.detach()
    spark.stop()


def _write(out: Path) -> Callable[[DataFrame, int], None]:
    """Return a function that writes each batch to its own folder; a repeated batch replaces it."""

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    return write


def _drop_unfinished(query: StreamingQuery, out: Path) -> None:
    """Delete the output of a batch that the stop interrupted: its orders are read again."""
    finished = query.lastProgress["batchId"] if query.lastProgress else -1
    for folder in out.glob("batch=*"):
        if int(folder.name.removeprefix("batch=")) > finished:
            shutil.rmtree(folder)


def _report(path: Path, query: StreamingQuery, start: str, uncommitted: int) -> None:
    progress = query.lastProgress
    # A text in Spark 4, a dict before.
    end: Any = progress["sources"][0]["endOffset"] if progress else {}
    path.write_text(
        json.dumps(
            {
                "start": json.loads(start),
                "end": json.loads(end) if isinstance(end, str) else end,
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
        "spark.sql.warehouse.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("orders")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
