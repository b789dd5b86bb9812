"""A million records through each way in which Spark reads Kafka, beside plain Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Contestant, in_turn, report
from benchmarks.service import sidecar
from offsetmgr.client import OffsetClient
from offsetmgr.spark import batch_ranges, commit_offsets, kafka_batch, reconcile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from benchmarks.spark_lab import Lab
    from offsetmgr.spark import OffsetRange
    from offsetmgr.types import TopicPartition

BATCHES = 10
TIMEOUT_S = 60.0


def paths(lab: Lab, *, records: int, rounds: int) -> None:
    """Read ``records`` in each way, without offsetmgr and with it, and print a table for each."""
    with (
        lab.filled("paths", records),
        sidecar(lab.brokers) as service,
        OffsetClient(service.address, name="paths") as client,
    ):
        race = Race(lab, client)
        contests = {
            "as a stream": [race.stream(), race.committed_stream(), race.reconciled_stream()],
            "by foreachBatch": [race.foreach(), race.foreach_with_ranges()],
            "as a batch": [race.batch(), race.kafka_batch()],
            "by Python tasks": [race.tasks(), race.submitting_tasks()],
        }
        for way, contestants in contests.items():
            results = in_turn(contestants, rounds=rounds)
            report(f"{records:,} records {way}", results, items=records, unit="records")


class Race:
    """The contestants; each checks that it has read everything, and committed it if it is to."""

    def __init__(self, lab: Lab, client: OffsetClient) -> None:
        """``client`` commits."""
        self._lab = lab
        self._client = client
        self._per_batch = lab.records // BATCHES

    def stream(self) -> Contestant:
        """Plain Spark."""

        def run(_number: int) -> None:
            self._stream(self._lab.new_checkpoint())

        return Contestant("plain Spark", run)

    def committed_stream(self) -> Contestant:
        """With the listener, up to the acknowledged flush."""

        def run(_number: int) -> None:
            group = self._lab.new_name()
            with commit_offsets(self._lab.spark, self._client, group=group) as commits:
                query = self._stream(self._lab.new_checkpoint())
                left = commits.flush(query, timeout=TIMEOUT_S).uncommitted
            self._check(group, left)

        return Contestant("commit_offsets, flushed", run)

    def reconciled_stream(self) -> Contestant:
        """Plain Spark, whose checkpoint is committed afterwards."""

        def run(_number: int) -> None:
            group, checkpoint = self._lab.new_name(), self._lab.new_checkpoint()
            self._stream(checkpoint)
            reconcile(self._client, group, checkpoint).execute(self._client, timeout=TIMEOUT_S)
            self._check(group)

        return Contestant("plain Spark, then reconcile", run)

    def foreach(self) -> Contestant:
        """Plain Spark, a batch at a time."""

        def run(_number: int) -> None:
            self._foreach(lambda batch, _id: self._save(batch), self._lab.new_checkpoint())

        return Contestant("plain Spark", run)

    def foreach_with_ranges(self) -> Contestant:
        """With each batch's ranges and the listener."""

        def run(_number: int) -> None:
            group, checkpoint = self._lab.new_name(), self._lab.new_checkpoint()
            seen = []

            @batch_ranges(checkpoint)
            def write(
                batch: DataFrame, _id: int, ranges: Mapping[TopicPartition, OffsetRange]
            ) -> None:
                self._save(batch)
                seen.append(sum(each.size for each in ranges.values()))

            with commit_offsets(self._lab.spark, self._client, group=group) as commits:
                query = self._foreach(write, checkpoint)
                left = commits.flush(query, timeout=TIMEOUT_S).uncommitted
            if sum(seen) != self._lab.records:
                raise RuntimeError(f"the ranges hold {sum(seen)} records")
            self._check(group, left)

        return Contestant("batch_ranges and commit_offsets", run)

    def batch(self) -> Contestant:
        """Plain Spark."""
        return Contestant("plain Spark", lambda _number: self._save(self._lab.table()))

    def kafka_batch(self) -> Contestant:
        """With a pinned range, committed."""

        def run(_number: int) -> None:
            group = self._lab.new_name()
            with kafka_batch(self._client, group, [self._lab.topic]) as batch:
                self._save(self._lab.table(batch.options))
            self._check(group)

        return Contestant("kafka_batch", run)

    def tasks(self) -> Contestant:
        """Plain Spark."""
        return Contestant("plain Spark", lambda _number: self._tasks(None))

    def submitting_tasks(self) -> Contestant:
        """Where each task submits its partition's end by itself."""

        def run(_number: int) -> None:
            group = self._lab.new_name()
            self._tasks(group)
            self._check(group)

        return Contestant("a client in each task, sync", run)

    def _stream(self, checkpoint: str) -> Any:
        return self._lab.run(
            self._lab.stream(self._per_batch).writeStream.format("noop"), checkpoint
        )

    def _foreach(self, write: Any, checkpoint: str) -> Any:
        writer = self._lab.stream(self._per_batch).writeStream.foreachBatch(write)
        return self._lab.run(writer, checkpoint)

    @staticmethod
    def _save(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _tasks(self, group: str | None) -> None:
        """Count in Python; with ``group`` each task commits the end of what it has read."""
        topic, client = self._lab.topic, self._client if group else None

        def count(batches: Iterable[Any]) -> Iterator[Any]:
            records, ends = 0, {}
            for batch in batches:
                records += batch.num_rows
                # A task of Spark's reads one partition.
                if batch.num_rows:
                    ends[topic, batch["partition"][0].as_py()] = pc.max(batch["offset"]).as_py() + 1
            if client is not None and group is not None:
                with client:
                    client.submit(group, ends, sync=True, timeout=TIMEOUT_S)
            yield pa.RecordBatch.from_pydict({"records": [records]})

        frame = self._lab.table().select("partition", "offset")
        counted = frame.mapInArrow(count, "records long").collect()
        if sum(row.records for row in counted) != self._lab.records:
            raise RuntimeError("not every record was read")

    def _check(self, group: str, left: Mapping[Any, Any] | None = None) -> None:
        """The group is at the end of the topic."""
        committed = sum(each.offset for each in self._client.committed(group).values())
        if left or committed != self._lab.records:
            raise RuntimeError(f"{committed} of {self._lab.records} records are committed")
