"""The ranges of real batches, their commits, and the checkpoint held against the group."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from offsetmgr.cli.app import app
from offsetmgr.spark import batch_ranges, reconcile
from tests.spark.support import WAIT_S, ends, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from offsetmgr.spark import OffsetRange
    from offsetmgr.types import TopicPartition
    from tests.spark.support import Job


class FailingOnceAfterItsWrite:
    """Writes a batch and its range in one transaction; the second batch fails after that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[int, Mapping[TopicPartition, OffsetRange]]] = []
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE numbers (number INTEGER)")
            database.execute("CREATE TABLE batches (batch INTEGER PRIMARY KEY)")

    def write(
        self, batch: DataFrame, batch_id: int, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        """As the recipe of docs/spark.md."""
        numbers = [(row.number,) for row in batch.collect()]
        assert len(numbers) == sum(each.size for each in ranges.values())
        self.seen.append((batch_id, ranges))
        with sqlite3.connect(self.path) as database:
            done = database.execute("SELECT 1 FROM batches WHERE batch = ?", (batch_id,)).fetchone()
            if done is None:
                database.executemany("INSERT INTO numbers VALUES (?)", numbers)
                database.execute("INSERT INTO batches VALUES (?)", (batch_id,))
        if [each for each, _ in self.seen] == [0, 1]:
            raise SystemExit("the sink broke")

    def numbers(self) -> list[int]:
        with sqlite3.connect(self.path) as database:
            return [number for (number,) in database.execute("SELECT number FROM numbers")]


def test_a_batch_that_fails_is_run_again_with_its_ranges(job: Job, tmp_path: Path) -> None:
    """It is not committed until it succeeds; the sink has each record once, also after an exit."""
    job.topic.produce(90)
    sink = FailingOnceAfterItsWrite(tmp_path / "sink.db")
    write = batch_ranges(job.checkpoint)(sink.write)
    stream = job.read(30)
    with job.commits() as commits:
        with pytest.raises(StreamingQueryException, match="the sink broke"):
            run(stream, job.checkpoint, write)
        eventually(lambda: sum(job.committed().values()), 30)
        if pyspark.__version__.startswith("4.1."):
            # Spark's own bug, SPARK-55271: its report of a batch that it ran again after a restart
            # fails, when the batch is finished.
            with pytest.raises(StreamingQueryException, match=r"scala\.Option\.get"):
                run(stream, job.checkpoint, write)
        query = run(stream, job.checkpoint, write)
        assert commits.flush(query, timeout=WAIT_S).uncommitted == {}
        expected = ends(query)
    assert [batch_id for batch_id, _ in sink.seen] == [0, 1, 1, 2]
    assert sink.seen[1] == sink.seen[2]
    assert [sum(each.size for each in ranges.values()) for _, ranges in sink.seen] == [30] * 4
    assert sorted(sink.numbers()) == list(range(90))
    assert job.committed() == expected


def test_ranges_from_the_checkpoint_of_another_query_are_refused(job: Job, tmp_path: Path) -> None:
    """It has batches of the same numbers, which read something else."""
    job.topic.produce(9)
    other = str(tmp_path / "other")
    run(job.read(), other)
    write = batch_ranges(other)(lambda *_: None)
    with pytest.raises(StreamingQueryException, match="own checkpointLocation"):
        run(job.read(3), job.checkpoint, write)


def test_a_job_without_the_listener_is_reconciled(job: Job) -> None:
    """Its checkpoint alone says where it is, read on this machine or through the session.

    A session may have the file system in its own settings, which the context's do not name.  One
    that it does not have, or a path that Java refuses, is named in one line.  The command does
    without a service too.
    """
    servers = f"kafka://{job.topic.kafka.bootstrap_servers}"
    command = ["spark", "reconcile", "--checkpoint", job.checkpoint, "--group", job.group]
    job.topic.produce(30)
    query = job.run(10)
    found = reconcile(job.client, job.group, job.checkpoint)
    assert {where: each.checkpoint for where, each in found.partitions.items()} == ends(query)
    mounted = "viewfs://lab/jobs/checkpoint"
    job.spark.conf.set("fs.viewfs.mounttable.lab.link./jobs", Path(job.checkpoint).parent.as_uri())
    for url in (f"file:{job.checkpoint}", mounted):
        assert reconcile(job.client, job.group, url, spark=job.spark) == found
    for location in ("nosuch://bucket/path", "a:b"):
        with pytest.raises(OSError, match=f"{location}/metadata failed: .*$") as caught:
            reconcile(job.client, job.group, location, spark=job.spark)
        assert "\n" not in str(caught.value)
    assert CliRunner().invoke(app, [*command, "--service", servers]).exit_code == 3
    found.execute(job.client, timeout=WAIT_S)
    assert job.committed() == ends(query)
    assert reconcile(job.client, job.group, job.checkpoint).differences == {}
    assert CliRunner().invoke(app, [*command, "--service", servers]).exit_code == 0
