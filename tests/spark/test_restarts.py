"""A query that goes on from its checkpoint: its group ends where the checkpoint is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.spark import commit_offsets
from offsetmgr.spark.checkpoint import LocalFiles, last_finished
from tests.spark.jobs import run_job
from tests.spark.support import Collected, eventually, offsets_of, run, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.service.support import ServeProcess
    from tests.spark.support import Topic

JOB = Path(__file__).with_name("driver_job.py")


@pytest.mark.timeout(240)
def test_a_driver_killed_between_commit_log_and_event(
    spark: SparkSession,
    sidecar: ServeProcess,
    topic: Topic,
    group: str,
    checkpoint: str,
    unique_name: str,
) -> None:
    """Started again with nothing new to read, the group gets what nobody was told of."""
    topic.produce(90)
    options = {
        "service": sidecar.address,
        "name": unique_name,
        "brokers": topic.kafka.bootstrap_servers,
        "topic": topic.name,
        "group": group,
        "checkpoint": checkpoint,
        "batch": 30,
        "fall": 2,
    }
    driver = run_job(JOB, options)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    finished = last_finished(LocalFiles(checkpoint))
    assert finished is not None
    assert (finished.batch_id, sum(finished.offsets.values())) == (2, 90)
    with OffsetClient(sidecar.address, name=unique_name) as client:
        assert sum(offsets_of(client.committed(group)).values()) == 60
        with commit_offsets(spark, client, group=group):
            query = start(topic.read(spark, "earliest", 30), Collected(), checkpoint)
            try:
                eventually(lambda: offsets_of(client.committed(group)), finished.offsets)
            finally:
                query.stop()


def test_a_run_that_finds_nothing_new(
    spark: SparkSession, client: OffsetClient, topic: Topic, group: str, checkpoint: str
) -> None:
    """Spark reports nothing of it, and ends it at once: its checkpoint is committed all the same.

    Nobody flushes, and nobody listened when its batches were read.
    """
    topic.produce(30)
    sink = Collected()
    run(topic.read(spark, "earliest"), sink, checkpoint)
    finished = last_finished(LocalFiles(checkpoint))
    assert finished is not None
    with commit_offsets(spark, client, group=group) as commits:
        run(topic.read(spark, "earliest"), sink, checkpoint)
    assert len(sink.numbers) == 30
    assert commits.counts.submitted == 3
    assert offsets_of(client.committed(group)) == finished.offsets
