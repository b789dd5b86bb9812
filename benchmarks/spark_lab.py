"""A real Spark for the benchmarks, and a topic full of records for its jobs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from offsetmgr.devkafka import spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

PARTITIONS = 8
VALUE_CHARS = 100
TIMEOUT_S = 60.0


class Lab:
    """A Spark, a topic, and room for checkpoints."""

    def __init__(self, spark: SparkSession, folder: str, brokers: str) -> None:
        """``fill`` makes a topic."""
        self.spark = spark
        self.brokers = brokers
        self.topic = ""
        self.records = 0
        self._folder = folder
        self._admin = AdminClient({"bootstrap.servers": brokers})
        self._numbers = count()

    @contextmanager
    def filled(self, name: str, records: int) -> Iterator[None]:
        """A topic with ``records`` of a hundred bytes, for all that follows; deleted afterwards."""
        topic = f"bench-{name}-{uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
        try:
            self._fill(topic, records)
            self.topic, self.records = topic, records
            yield
        finally:
            self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def _fill(self, topic: str, records: int) -> None:
        partition = (F.col("id") % PARTITIONS).cast("int").alias("partition")
        value = F.lpad(F.col("id").cast("string"), VALUE_CHARS, "0").alias("value")
        writer = self.spark.range(records).select(partition, value).write.format("kafka")
        writer.options(**self._source()).option("topic", topic).save()

    def stream(self, batch: int) -> DataFrame:
        """The topic as a stream, ``batch`` records at a time."""
        reader = self.spark.readStream.format("kafka").options(**self._source())
        reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", batch).load()

    def table(self, options: dict[str, str] | None = None) -> DataFrame:
        """The topic as a batch, whole or what ``options`` say."""
        reader = self.spark.read.format("kafka").options(**self._source())
        return reader.options(**(options or {"subscribe": self.topic})).load()

    def run(self, writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
        """Run a query to its end; raises where it fails, or has not read everything."""
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in reports(query))
        if query.exception() is not None or read != self.records:
            raise RuntimeError(f"the query read {read} of {self.records} records")
        return query

    def new_name(self) -> str:
        """The name of a group or client that nobody has used."""
        return f"{self.topic}-{next(self._numbers)}"

    def new_checkpoint(self) -> str:
        """A folder that is not there yet."""
        return f"{self._folder}/checkpoint-{next(self._numbers)}"

    def processor_s(self) -> float:
        """Processor time that the driver has used, its JVM and its Python together."""
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001 -- nobody else knows the JVM
        spent = 0.0
        for process in (psutil.Process(), psutil.Process(gateway.proc.pid)):
            times = process.cpu_times()
            spent += times.user + times.system
        return spent

    def _source(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.brokers}


def reports(query: StreamingQuery) -> list[dict[str, Any]]:
    """What Spark tells of each batch; PySpark's own objects take longer than the batch itself."""
    recent: Any = query._jsq.recentProgress()  # noqa: SLF001 -- the only way around them
    return [json.loads(each.json()) for each in recent]


@contextmanager
def lab(brokers: str) -> Iterator[Lab]:
    """A local Spark with the Kafka connector on both cores, stopped afterwards."""
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
            yield Lab(spark, folder, brokers)
        finally:
            spark.stop()
