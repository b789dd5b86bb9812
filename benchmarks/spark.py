"""``python -m benchmarks.spark``: what Spark notices of offsetmgr, on a real Spark and broker.

A process of its own, whose Spark does nothing else.  ``overhead`` compares the micro-batches of a
query without a listener, with it, and with it while the service is dead, stands still, is refused
by Kafka, or answers errors.  ``paths`` reads the same records in each way in which Spark reads
Kafka.  It fails where a query fails, and where an offset that should be committed is not.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its name in every Spark program

from benchmarks.broken_service import answering_500
from benchmarks.harness import TIMEOUT_S, in_turn, parser, report, show
from benchmarks.sidecar import sidecar
from offsetmgr.client import OffsetClient
from offsetmgr.devkafka import DevKafka, spark_kafka_jars
from offsetmgr.spark import batch_ranges, commit_offsets, kafka_batch, reconcile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from offsetmgr.spark import OffsetRange
    from offsetmgr.types import TopicPartition

PARTITIONS = 8
VALUE_CHARS = 100
BATCHES = 12
SKIPPED = 2
"""The first batches of each run of ``overhead``, which start readers and caches."""
OVERHEAD_BATCH = 5_000
"""Records: so few that a batch is mostly what Spark does around it."""


class Lab:
    """A Spark, a topic full of records, and room for checkpoints."""

    def __init__(self, spark: SparkSession, folder: str, brokers: str) -> None:
        self.spark = spark
        self.brokers = brokers
        self.topic = ""
        self.records = 0
        self._folder = folder
        self._source = {"kafka.bootstrap.servers": brokers}
        self._numbers = count()

    @contextmanager
    def filled(self, name: str, records: int) -> Iterator[None]:
        """Have a topic with ``records`` of a hundred bytes meanwhile."""
        self.topic, self.records = f"bench-{name}-{uuid4().hex[:8]}", records
        admin = AdminClient({"bootstrap.servers": self.brokers})
        admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic].result(TIMEOUT_S)
        partition = (F.col("id") % PARTITIONS).cast("int").alias("partition")
        value = F.lpad(F.col("id").cast("string"), VALUE_CHARS, "0").alias("value")
        writer = self.spark.range(records).select(partition, value).write.format("kafka")
        writer.options(**self._source).option("topic", self.topic).save()
        try:
            yield
        finally:
            admin.delete_topics([self.topic])[self.topic].result(TIMEOUT_S)

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
        """Raise where the group is not at the end of the topic."""
        committed = sum(each.offset for each in client.committed(group).values())
        if committed != self.records:
            raise RuntimeError(f"{committed} of {self.records} records are committed to {group}")

    def new_name(self) -> str:
        """Return the name of a group or client that nobody has used."""
        return f"{self.topic}-{next(self._numbers)}"

    def new_checkpoint(self) -> str:
        """Return a folder that is not there yet."""
        return f"{self._folder}/checkpoint-{next(self._numbers)}"

    def cpu_s(self) -> float:
        """Return the processor time that the driver has used, its JVM and its Python together."""
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001 -- nobody else knows the JVM
        both = psutil.Process(), psutil.Process(gateway.proc.pid)
        return float(sum(sum(process.cpu_times()[:2]) for process in both))


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's report of each batch; PySpark's own objects take longer than the batch."""
    recent: Any = query._jsq.recentProgress()  # noqa: SLF001 -- the only way around them
    return [json.loads(each.json()) for each in recent]


@contextmanager
def lab(brokers: str) -> Iterator[Lab]:
    """Start a local Spark with the Kafka connector on both cores, stopped afterwards."""
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


class Service(NamedTuple):
    """State of the service at the address of a listener's client."""

    address: str
    commits: bool = False
    group: str | None = None
    """The group to commit to; None for a new one each time."""


def overhead(lab: Lab, *, rounds: int) -> None:
    """Compare the durations of micro-batches, by Spark's own measure."""
    durations_ms: dict[str, list[int]] = {}
    cpu_s: dict[str, float] = {}
    with lab.filled("overhead", OVERHEAD_BATCH * BATCHES), _services(lab) as services:
        for number in range(rounds + 1):
            for name, service in services.items():
                before_s = lab.cpu_s()
                query = _listened(lab, name, service)
                if number:  # the first round is to warm up
                    cpu_s[name] = cpu_s.get(name, 0.0) + lab.cpu_s() - before_s
                    took = [each["durationMs"]["triggerExecution"] for each in progress_of(query)]
                    durations_ms.setdefault(name, []).extend(took[SKIPPED:BATCHES])
    base = median(next(iter(durations_ms.values())))
    rows = []
    for name, each in durations_ms.items():
        batch_ms = f"{cpu_s[name] * 1000 / (rounds * BATCHES):,.1f} ms/batch"
        took_ms = median(each)
        rows.append((name, str(len(each)), f"{took_ms:,.1f} ms", f"{took_ms / base:.3f}", batch_ms))
    columns = ("what", "batches", "median", "x no listener", "driver's processor time")
    show(f"A streaming query's micro-batches of {OVERHEAD_BATCH:,} records", columns, rows)


def _listened(lab: Lab, name: str, service: Service | None) -> StreamingQuery:
    """Run a query with a listener whose client finds ``service``; without one where it is None."""
    writer = lab.stream().writeStream.format("noop")
    if service is None:
        return lab.run(writer)
    timeout_s = TIMEOUT_S if service.commits else 0
    client = OffsetClient(service.address, name=lab.new_name())
    commits = commit_offsets(lab.spark, client, group=service.group or lab.new_name())
    try:
        query = lab.run(writer)
        committed = commits.flush(query, timeout=timeout_s).committed.values()
        done = sum(each.offset for each in committed)
        if done != (lab.records if service.commits else 0):
            raise RuntimeError(f"{name}: {done} of {lab.records} records are committed")
        return query
    finally:
        # A client that is closed first ends what would be tried again for a while.
        client.close(timeout=timeout_s)
        commits.detach(timeout=timeout_s)


@contextmanager
def _services(lab: Lab) -> Iterator[dict[str, Service | None]]:
    """Have a service in every state that it can be in."""
    with ExitStack() as stack:
        well = stack.enter_context(sidecar(lab.brokers)).address
        with sidecar(lab.brokers) as dying:
            dead = dying.address
        stalled = stack.enter_context(sidecar(lab.brokers))
        stalled.stats.suspend()
        stack.callback(stalled.stats.resume)
        refused = lab.new_name()
        stack.enter_context(_member(lab, refused))
        yield {
            "no listener": None,
            "listener": Service(well, commits=True),
            "service dead": Service(dead),
            "service stalled (SIGSTOP)": Service(stalled.address),
            "Kafka refuses the commits": Service(well, group=refused),
            "service answers 500": Service(stack.enter_context(answering_500())),
        }


@contextmanager
def _member(lab: Lab, group: str) -> Iterator[None]:
    """Keep an ordinary consumer in the group: Kafka refuses everybody else's commits."""
    config: dict[str, str | int] = {"bootstrap.servers": lab.brokers, "group.id": group}
    consumer = Consumer(config | {"max.poll.interval.ms": 86_400_000})
    consumer.subscribe([lab.topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.pause(consumer.assignment())
    try:
        yield
    finally:
        consumer.close()


def paths(lab: Lab, *, records: int, rounds: int) -> None:
    """Read ``records`` in each way, without offsetmgr and with it, and print a table for each."""
    ways: dict[str, dict[str, Callable[[Lab, OffsetClient], object]]] = {
        "as a stream": {
            "plain Spark": lambda lab, _: _stream(lab),
            "commit_offsets, flushed": _committed_stream,
            "plain Spark, then reconcile": _reconciled_stream,
        },
        "by foreachBatch": {
            "plain Spark": lambda lab, _: _foreach(lab, lambda batch, _id: _save(batch)),
            "batch_ranges and commit_offsets": _committed_foreach,
        },
        "as a batch": {
            "plain Spark": lambda lab, _: _save(lab.table()),
            "kafka_batch": _committed_batch,
        },
        "by Python tasks": {
            "plain Spark": lambda lab, _: _tasks(lab),
            "a client in each task, sync": _committed_tasks,
        },
    }
    with (
        lab.filled("paths", records),
        sidecar(lab.brokers) as service,
        OffsetClient(service.address, name="paths") as client,
    ):
        for way, contestants in ways.items():
            ready = {
                name: lambda _number, run=run: run(lab, client) for name, run in contestants.items()
            }
            results = in_turn(ready, rounds=rounds)
            report(f"{records:,} records {way}", results, items=records, unit="records")


def _stream(lab: Lab, checkpoint: str | None = None) -> StreamingQuery:
    return lab.run(lab.stream().writeStream.format("noop"), checkpoint)


def _foreach(lab: Lab, write: Any, checkpoint: str | None = None) -> StreamingQuery:
    return lab.run(lab.stream().writeStream.foreachBatch(write), checkpoint)


def _save(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _committing(lab: Lab, client: OffsetClient, query: Callable[[], StreamingQuery]) -> None:
    group = lab.new_name()
    with commit_offsets(lab.spark, client, group=group) as commits:
        commits.flush(query(), timeout=TIMEOUT_S)
    lab.check_committed(client, group)


def _committed_stream(lab: Lab, client: OffsetClient) -> None:
    _committing(lab, client, partial(_stream, lab))


def _reconciled_stream(lab: Lab, client: OffsetClient) -> None:
    group, checkpoint = lab.new_name(), lab.new_checkpoint()
    _stream(lab, checkpoint)
    reconcile(client, group, checkpoint).execute(client, timeout=TIMEOUT_S)
    lab.check_committed(client, group)


def _committed_foreach(lab: Lab, client: OffsetClient) -> None:
    checkpoint = lab.new_checkpoint()
    sizes = []

    @batch_ranges(checkpoint)
    def write(batch: DataFrame, _id: int, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        _save(batch)
        sizes.append(sum(each.size for each in ranges.values()))

    _committing(lab, client, lambda: _foreach(lab, write, checkpoint))
    if sum(sizes) != lab.records:
        raise RuntimeError(f"the ranges hold {sum(sizes)} of {lab.records} records")


def _committed_batch(lab: Lab, client: OffsetClient) -> None:
    group = lab.new_name()
    with kafka_batch(client, group, [lab.topic]) as batch:
        _save(lab.table(batch.options))
    lab.check_committed(client, group)


def _committed_tasks(lab: Lab, client: OffsetClient) -> None:
    group = lab.new_name()
    _tasks(lab, client, group)
    lab.check_committed(client, group)


def _tasks(lab: Lab, client: OffsetClient | None = None, group: str = "") -> None:
    """Count in Python; with a client each task commits the end of what it has read."""
    topic = lab.topic

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

    frame = lab.table().select("partition", "offset")
    counted = frame.mapInArrow(count_records, "records long").collect()
    if sum(row.records for row in counted) != lab.records:
        raise RuntimeError("not every record was read")


def in_own_process(bootstrap_servers: str) -> int:
    """Measure in a process that does nothing else; return its exit status."""
    command = [sys.executable, "-m", "benchmarks.spark", "--brokers", bootstrap_servers]
    return subprocess.run(command, check=False).returncode


def main() -> None:
    """Run on a broker of its own, or on ``--brokers``."""
    arguments = parser("benchmarks.spark", __doc__)
    arguments.add_argument("--only", choices=("overhead", "paths"), help="one of the two")
    arguments.add_argument("--rounds", type=int, help="rounds (6 of the overhead, 2 of the paths)")
    arguments.add_argument("--records", type=int, default=1_000_000, help="per path (1 million)")
    options = arguments.parse_args()
    # Services that do not commit are what is measured: nobody needs to be told.
    logging.getLogger("offsetmgr").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        brokers = options.brokers or stack.enter_context(DevKafka()).bootstrap_servers
        ready = stack.enter_context(lab(brokers))
        if options.only != "overhead":
            paths(ready, records=options.records, rounds=options.rounds or 2)
        if options.only != "paths":
            overhead(ready, rounds=options.rounds or 6)


if __name__ == "__main__":
    main()
