"""A real Spark on this machine: what commits add to micro-batches and to whole reads.

Both benchmarks fail if a query fails, or if an offset that should be committed is not.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer
from starlette.responses import Response

from benchmarks.harness import TIMEOUT_S, filled, in_turn, report, serving
from benchmarks.service import sidecar
from offsetmgr.client import OffsetClient
from offsetmgr.spark import OffsetRange, batch_ranges, commit_offsets, kafka_batch, reconcile
from tests.spark.support import new_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from offsetmgr.types import TopicPartition

BATCHES: Final = 12
"""Of a streaming query."""
SKIPPED: Final = 2
"""The first batches of each run, which start readers and caches."""
BATCH: Final = 5_000
"""Records: so few that a batch is mostly what Spark does around it."""
RECORDS: Final = 1_000_000


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

    def stream(self) -> DataStreamWriter:
        """Return a writer of the topic as a stream, in ``BATCHES`` batches."""
        reader = self.spark.readStream.format("kafka").options(**self._source)
        reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", self.records // BATCHES).load().writeStream

    def table(self, options: dict[str, str] | None = None) -> DataFrame:
        """Return the topic as a batch, whole or what ``options`` say."""
        reader = self.spark.read.format("kafka").options(**self._source)
        return reader.options(**(options or {"subscribe": self.topic})).load()

    def run(self, writer: DataStreamWriter, checkpoint: str | None = None) -> StreamingQuery:
        """Run a query to its end; raise where it fails, or has not read everything."""
        writer = writer.option("checkpointLocation", checkpoint or self.new_checkpoint())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        if query.exception() is not None or read != self.records:
            raise RuntimeError(f"the query read {read} of {self.records} records")
        return query

    def new_name(self) -> str:
        return f"{self.topic}-{next(self._numbers)}"

    def new_checkpoint(self) -> str:
        return f"{self._folder}/checkpoint-{next(self._numbers)}"


@contextmanager
def lab(brokers: str, records: int) -> Iterator[Lab]:
    """Start a local Spark on both cores, with ``records`` of a hundred bytes in a topic."""
    with TemporaryDirectory(prefix="offsetmgr-bench-") as folder:
        spark = new_session("local[2]", Path(folder))
        try:
            yield Lab(spark, folder, brokers, records)
        finally:
            spark.stop()


# Micro-batches without a listener, with it, and with it while nothing can be committed


class Service(NamedTuple):
    """The service at the address of a listener's client; without a group it gets new ones."""

    address: str
    commits: bool = False
    group: str | None = None


def overhead(brokers: str, rounds: int) -> list[str]:
    """Compare the durations of micro-batches, by Spark's own measure."""
    with lab(brokers, BATCH * BATCHES) as spark, _services(spark) as services:
        took_s: dict[str, list[float]] = {name: [] for name in services}
        for number in range(rounds + 1):
            for name, service in services.items():
                query = _listened(spark, name, service)
                if number:  # the first round is to warm up
                    for batch in query.recentProgress[SKIPPED:BATCHES]:
                        took_s[name].append(batch["durationMs"]["triggerExecution"] / 1_000)
    report("A streaming query's micro-batches", took_s, items=BATCH, unit="records")
    return []


def _listened(spark: Lab, name: str, service: Service | None) -> StreamingQuery:
    """Run a query with a listener whose client finds ``service``; without one where it is None."""
    writer = spark.stream().format("noop")
    if service is None:
        return spark.run(writer)
    timeout_s = TIMEOUT_S if service.commits else 0
    client = OffsetClient(service.address, name=spark.new_name())
    commits = commit_offsets(spark.spark, client, group=service.group or spark.new_name())
    try:
        query = spark.run(writer)
        committed = commits.flush(query, timeout=timeout_s).committed.values()
        done = sum(each.offset for each in committed)
        if done != (spark.records if service.commits else 0):
            raise RuntimeError(f"{name}: {done} of {spark.records} records are committed")
        return query
    finally:
        # A client that is closed first ends what would be tried again for a while.
        client.close(timeout=timeout_s)
        commits.detach(timeout=timeout_s)


@contextmanager
def _services(spark: Lab) -> Iterator[dict[str, Service | None]]:
    """Have a service in every state that it can be in."""
    with ExitStack() as stack:
        well = stack.enter_context(sidecar(spark.brokers)).address
        with sidecar(spark.brokers) as dying:
            dead = dying.address
        stalled = stack.enter_context(sidecar(spark.brokers))
        psutil.Process(stalled.process.pid).suspend()
        refused = spark.new_name()
        stack.enter_context(closing(_member(spark, refused)))
        wrong = stack.enter_context(serving(Response(status_code=501)))
        yield {
            "no listener": None,
            "listener": Service(well, commits=True),
            "service dead": Service(dead),
            "service stalled (SIGSTOP)": Service(stalled.address),
            "Kafka refuses the commits": Service(well, group=refused),
            "another server, which answers 501": Service(wrong),
        }


def _member(spark: Lab, group: str) -> Consumer:
    """Return an ordinary consumer in the group: Kafka refuses everybody else's commits."""
    config: dict[str, str | int] = {"bootstrap.servers": spark.brokers, "group.id": group}
    consumer = Consumer(config | {"max.poll.interval.ms": 86_400_000})
    consumer.subscribe([spark.topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    return consumer


# The same records read in each way in which Spark reads Kafka, without offsetmgr and with it


def paths(brokers: str, rounds: int) -> list[str]:
    ways: dict[str, dict[str, Callable[[Lab, OffsetClient, str], object]]] = {
        "as a stream": {
            "plain Spark": lambda spark, *_: spark.run(spark.stream().format("noop")),
            "commit_offsets, flushed": _committed_stream,
            "plain Spark, then reconcile": _reconciled_stream,
        },
        "by foreachBatch": {
            "plain Spark": lambda spark, *_: spark.run(
                spark.stream().foreachBatch(lambda batch, _id: _save(batch))
            ),
            "batch_ranges and commit_offsets": _committed_foreach,
        },
        "as a batch": {
            "plain Spark": lambda spark, *_: _save(spark.table()),
            "kafka_batch": _committed_batch,
        },
        "by Python tasks": {
            "plain Spark": lambda spark, *_: _tasks(spark),
            "a client in each task, sync": _tasks,
        },
    }
    with (
        lab(brokers, RECORDS) as spark,
        sidecar(brokers) as service,
        OffsetClient(service.address, name="paths") as client,
    ):

        def once(name: str, read: Callable[[Lab, OffsetClient, str], object], _: int) -> None:
            group = spark.new_name()
            read(spark, client, group)
            committed = sum(each.offset for each in client.committed(group).values())
            if committed != (0 if name == "plain Spark" else RECORDS):
                raise RuntimeError(f"{name}: {committed} of {RECORDS} records are committed")

        for way, contestants in ways.items():
            ready = {name: partial(once, name, read) for name, read in contestants.items()}
            results = in_turn(ready, rounds=max(1, rounds // 2))
            report(f"{RECORDS:,} records {way}", results, items=RECORDS, unit="records")
    return []


def _save(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _committed_stream(spark: Lab, client: OffsetClient, group: str) -> None:
    with commit_offsets(spark.spark, client, group=group) as commits:
        commits.flush(spark.run(spark.stream().format("noop")), timeout=TIMEOUT_S)


def _reconciled_stream(spark: Lab, client: OffsetClient, group: str) -> None:
    checkpoint = spark.new_checkpoint()
    spark.run(spark.stream().format("noop"), checkpoint)
    reconcile(client, group, checkpoint).execute(client, timeout=TIMEOUT_S)


def _committed_foreach(spark: Lab, client: OffsetClient, group: str) -> None:
    checkpoint = spark.new_checkpoint()
    sizes = []

    @batch_ranges(checkpoint)
    def write(batch: DataFrame, _id: int, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        _save(batch)
        sizes.append(sum(each.size for each in ranges.values()))

    with commit_offsets(spark.spark, client, group=group) as commits:
        query = spark.run(spark.stream().foreachBatch(write), checkpoint)
        commits.flush(query, timeout=TIMEOUT_S)
    if sum(sizes) != spark.records:
        raise RuntimeError(f"the ranges hold {sum(sizes)} of {spark.records} records")


def _committed_batch(spark: Lab, client: OffsetClient, group: str) -> None:
    with kafka_batch(client, group, [spark.topic]) as batch:
        _save(spark.table(batch.options))


def _tasks(spark: Lab, client: OffsetClient | None = None, group: str = "") -> None:
    """Count in Python; with a client each task commits the end of what it has read."""
    topic = spark.topic

    def count_records(batches: Iterable[Any]) -> Iterator[Any]:
        records, ends = 0, {}
        for batch in batches:
            records += batch.num_rows
            # A task of Spark's reads one partition.
            if batch.num_rows:
                ends[topic, batch["partition"][0].as_py()] = pc.max(batch["offset"]).as_py() + 1
        if client is not None:
            with client:
                client.submit(group, ends, sync=True, timeout=TIMEOUT_S)
        yield pa.RecordBatch.from_pydict({"records": [records]})

    frame = spark.table().select("partition", "offset")
    counted = frame.mapInArrow(count_records, "records long").collect()
    if sum(row.records for row in counted) != spark.records:
        raise RuntimeError("not every record was read")
