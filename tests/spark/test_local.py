"""Spark with offsets of its own process: everything that a client of the service does for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from offsetmgr import LocalOffsets
from offsetmgr.cli.app import app
from offsetmgr.spark import commit_offsets, kafka_batch, reconcile, starting_offsets
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


def test_batches_go_on_where_the_last_one_ended(
    spark: SparkSession, offsets: LocalOffsets, topic: Topic, group: str
) -> None:
    """A block that fails commits nothing."""
    topic.produce(30)

    def read(most: int | None = None) -> list[int]:
        with kafka_batch(offsets, group, [topic.name], max_records=most) as batch:
            frame = spark.read.format("kafka").options(**batch.options)
            rows = frame.option("kafka.bootstrap.servers", topic.kafka.bootstrap_servers).load()
            return sorted(int(bytes(row.value)) for row in rows.select("value").collect())

    with pytest.raises(ZeroDivisionError), kafka_batch(offsets, group, [topic.name]):
        1 / 0  # noqa: B018
    first = read(12)
    assert len(first) == 12
    assert sorted(first + read()) == list(range(30))
    assert read() == []
    assert topic.described(group) == {0: 10, 1: 10, 2: 10}


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
