"""A real Spark on this machine, with a topic full of records, for what is measured in Spark."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil
from pyspark.sql import SparkSession

from benchmarks.harness import cpu_s, filled
from offsetmgr.devkafka import spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from offsetmgr.client import OffsetClient

BATCHES = 12


class Lab:
    """A Spark, a topic full of records, and room for checkpoints."""

    def __init__(self, spark: SparkSession, folder: str, brokers: str, records: int) -> None:
        self.spark = spark
        self.brokers = brokers
        self.topic = filled(brokers, records, records)
        self.records = records
        self._folder = folder
        self._source = {"kafka.bootstrap.servers": brokers}
        self._numbers = count()

    def stream(self) -> DataFrame:
        """Return the topic as a stream, in ``BATCHES`` batches."""
        reader = self.spark.readStream.format("kafka").options(**self._source)
        reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", self.records // BATCHES).load()

    def table(self, options: dict[str, str] | None = None) -> DataFrame:
        """Return the topic as a batch, whole or what ``options`` say."""
        reader = self.spark.read.format("kafka").options(**self._source)
        return reader.options(**(options or {"subscribe": self.topic})).load()

    def run(self, writer: DataStreamWriter, checkpoint: str | None = None) -> StreamingQuery:
        """Run a query to its end; raise where it fails, or has not read everything."""
        writer = writer.option("checkpointLocation", checkpoint or self.new_checkpoint())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in progress_of(query))
        if query.exception() is not None or read != self.records:
            raise RuntimeError(f"the query read {read} of {self.records} records")
        return query

    def check_committed(self, client: OffsetClient, group: str) -> None:
        committed = sum(each.offset for each in client.committed(group).values())
        if committed != self.records:
            raise RuntimeError(f"{committed} of {self.records} records are committed to {group}")

    def new_name(self) -> str:
        return f"{self.topic}-{next(self._numbers)}"

    def new_checkpoint(self) -> str:
        return f"{self._folder}/checkpoint-{next(self._numbers)}"

    def cpu_s(self) -> float:
        """Return the processor time that the driver has used, its JVM and its Python together."""
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001 -- nobody else knows the JVM
        return cpu_s(psutil.Process()) + cpu_s(psutil.Process(gateway.proc.pid))


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's report of each batch; PySpark's own objects take longer than the batch."""
    recent: Any = query._jsq.recentProgress()  # noqa: SLF001 -- the only way around them
    return [json.loads(each.json()) for each in recent]


@contextmanager
def lab(brokers: str, records: int) -> Iterator[Lab]:
    """Start a local Spark with the Kafka connector on both cores, stopped afterwards.

    ``records`` of a hundred bytes are in a topic of its own.
    """
    # Tasks in Python run by this very one, which has what they import.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with TemporaryDirectory(prefix="offsetmgr-bench-") as folder:
        builder = (
            SparkSession.builder.master("local[2]")
            .appName("benchmarks")
            .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
        # The JVM starts in the folder, where Spark leaves one named artifacts.
        here = Path.cwd()
        os.chdir(folder)
        try:
            spark = builder.getOrCreate()
        finally:
            os.chdir(here)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield Lab(spark, folder, brokers, records)
        finally:
            spark.stop()
