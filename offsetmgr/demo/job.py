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
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA: Final = "order_id BIGINT, country STRING, amount DECIMAL(12, 2)"
_POLL_S: Final = 1


def main() -> None:
    """Read the orders from where the group stands, until there are no more or SIGTERM comes."""
    settings = json.loads(sys.argv[1])
    topic, group, out = settings["topic"], settings["group"], Path(settings["out"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the demo's to handle
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("orders")
        .config("spark.jars", settings["jars"])
        .config("spark.driver.host", "127.0.0.1")
        # For a job of seconds Java's second compiler costs more than it gains.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.local.dir", "spark")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        """Write a batch to a folder of its own; a repeated batch replaces it."""
        batch.write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    with (
        OffsetClient(settings["service"], name=f"{group}-driver") as client,
        commit_offsets(spark, client, group=group) as commits,
    ):
        orders = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings["brokers"])
            .option("subscribe", topic)
            .option("startingOffsets", starting_offsets(client, group, [topic]))
            .option("maxOffsetsPerTrigger", settings["batch_orders"])
            .load()
            .select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("order"))
            .select("order.*")
        )
        query = (
            orders.writeStream.foreachBatch(write)
            .option("checkpointLocation", settings["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        while not stop.is_set() and not query.awaitTermination(_POLL_S):
            pass
        query.stop()
        commits.flush(query)
    # A batch that the stop interrupted is read again: its output goes.
    finished = query.lastProgress["batchId"] if query.lastProgress else -1
    for folder in out.glob("batch=*"):
        if int(folder.name.removeprefix("batch=")) > finished:
            shutil.rmtree(folder)
    spark.stop()


if __name__ == "__main__":
    main()
