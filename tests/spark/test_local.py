"""Spark with offsets of its own process: everything that a client of the service does for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from offsetmgr import LocalOffsets
from offsetmgr.cli.app import app
from offsetmgr.spark import commit_offsets, reconcile, starting_offsets
from tests.spark.support import WAIT_S, Collected, Topic, ends, offsets_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka


@pytest.fixture
def offsets(kafka: DevKafka) -> Iterator[LocalOffsets]:
    """Offsets of this process."""
    with LocalOffsets(kafka.bootstrap_servers) as made:
        yield made


def test_a_job_resumes_from_its_group(
    spark: SparkSession, offsets: LocalOffsets, topic: Topic, group: str, tmp_path: Path
) -> None:
    """With a new checkpoint each time it reads each record once, and Kafka shows where it is."""
    sink = Collected()
    for total in (60, 100):
        topic.produce(total - len(sink.numbers), first=len(sink.numbers))
        with commit_offsets(spark, offsets, group=group) as commits:
            start = starting_offsets(offsets, group, [topic.name])
            query = run(topic.read(spark, start, 25), sink, str(tmp_path / str(total)))
            result = commits.flush(query, WAIT_S)
            assert result.uncommitted == {}
            assert offsets_of(result.committed) == ends(query)
            assert offsets_of(offsets.committed(group)) == ends(query)
    assert sorted(sink.numbers) == list(range(100))
    assert topic.described(group) == {0: 34, 1: 33, 2: 33}


def test_a_group_is_brought_up_to_its_checkpoint(
    spark: SparkSession, offsets: LocalOffsets, topic: Topic, group: str, checkpoint: str
) -> None:
    """Of a job that never had the listener."""
    topic.produce(30)
    run(topic.read(spark, "earliest"), Collected(), checkpoint)
    found = reconcile(offsets, group, checkpoint)
    assert len(found.differences) == 3
    command = ["spark", "reconcile", "--checkpoint", checkpoint, "--group", group]
    assert CliRunner().invoke(app, [*command, "--service", offsets.url]).exit_code == 3
    found.execute(offsets)
    assert not reconcile(offsets, group, checkpoint).differences
    assert CliRunner().invoke(app, [*command, "--service", offsets.url]).exit_code == 0
    assert topic.described(group) == {0: 10, 1: 10, 2: 10}
