"""The same records read in each way in which Spark reads Kafka, without offsetmgr and with it.

It fails if a query fails, or if an offset that should be committed is not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import TIMEOUT_S, in_turn, report
from benchmarks.lab import Lab, lab
from benchmarks.sidecar import sidecar
from offsetmgr.client import OffsetClient
from offsetmgr.spark import batch_ranges, commit_offsets, kafka_batch, reconcile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from offsetmgr.spark import OffsetRange
    from offsetmgr.types import TopicPartition

RECORDS: Final = 1_000_000


def run(brokers: str, rounds: int) -> list[str]:
    ways: dict[str, dict[str, Callable[[Lab, OffsetClient], object]]] = {
        "as a stream": {
            "plain Spark": lambda spark, _: _stream(spark),
            "commit_offsets, flushed": _committed_stream,
            "plain Spark, then reconcile": _reconciled_stream,
        },
        "by foreachBatch": {
            "plain Spark": lambda spark, _: _foreach(spark, lambda batch, _id: _save(batch)),
            "batch_ranges and commit_offsets": _committed_foreach,
        },
        "as a batch": {
            "plain Spark": lambda spark, _: _save(spark.table()),
            "kafka_batch": _committed_batch,
        },
        "by Python tasks": {
            "plain Spark": lambda spark, _: _tasks(spark),
            "a client in each task, sync": _committed_tasks,
        },
    }
    with (
        lab(brokers, RECORDS) as spark,
        sidecar(brokers) as service,
        OffsetClient(service.address, name="paths") as client,
    ):

        def reading(read: Callable[[Lab, OffsetClient], object]) -> Callable[[int], None]:
            def once(_number: int) -> None:
                read(spark, client)

            return once

        for way, contestants in ways.items():
            ready = {name: reading(read) for name, read in contestants.items()}
            results = in_turn(ready, rounds=max(1, rounds // 2))
            report(f"{RECORDS:,} records {way}", results, items=RECORDS, unit="records")
    return []


def _stream(spark: Lab, checkpoint: str | None = None) -> StreamingQuery:
    return spark.run(spark.stream().writeStream.format("noop"), checkpoint)


def _foreach(spark: Lab, write: Any, checkpoint: str | None = None) -> StreamingQuery:
    return spark.run(spark.stream().writeStream.foreachBatch(write), checkpoint)


def _save(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _committing(spark: Lab, client: OffsetClient, query: Callable[[], StreamingQuery]) -> None:
    group = spark.new_name()
    with commit_offsets(spark.spark, client, group=group) as commits:
        commits.flush(query(), timeout=TIMEOUT_S)
    spark.check_committed(client, group)


def _committed_stream(spark: Lab, client: OffsetClient) -> None:
    _committing(spark, client, partial(_stream, spark))


def _reconciled_stream(spark: Lab, client: OffsetClient) -> None:
    group, checkpoint = spark.new_name(), spark.new_checkpoint()
    _stream(spark, checkpoint)
    reconcile(client, group, checkpoint).execute(client, timeout=TIMEOUT_S)
    spark.check_committed(client, group)


def _committed_foreach(spark: Lab, client: OffsetClient) -> None:
    checkpoint = spark.new_checkpoint()
    sizes = []

    @batch_ranges(checkpoint)
    def write(batch: DataFrame, _id: int, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        _save(batch)
        sizes.append(sum(each.size for each in ranges.values()))

    _committing(spark, client, lambda: _foreach(spark, write, checkpoint))
    if sum(sizes) != spark.records:
        raise RuntimeError(f"the ranges hold {sum(sizes)} of {spark.records} records")


def _committed_batch(spark: Lab, client: OffsetClient) -> None:
    group = spark.new_name()
    with kafka_batch(client, group, [spark.topic]) as batch:
        _save(spark.table(batch.options))
    spark.check_committed(client, group)


def _committed_tasks(spark: Lab, client: OffsetClient) -> None:
    group = spark.new_name()
    _tasks(spark, client, group)
    spark.check_committed(client, group)


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
