"""Checkpoints of jobs that do not use this package, followed by the command and by the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from offsetmgr.cli.app import app
from tests.spark.support import Collected, ends, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.support import Topic


def follow_once(topic: Topic, checkpoint: str, group: str) -> tuple[int, str]:
    """Run ``offsetmgr spark follow --once`` without a service; return status and output."""
    words = ["spark", "follow", "--once", "--checkpoint", checkpoint, "--group", group]
    service = ["--service", f"kafka://{topic.kafka.bootstrap_servers}"]
    done = CliRunner().invoke(app, [*words, *service])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_command_commits_what_a_query_has_finished(
    spark: SparkSession, topic: Topic, group: str, checkpoint: str
) -> None:
    """A second run, without another batch, commits nothing and is no failure."""
    topic.produce(30)
    query = run(topic.read(spark, "earliest", 10), Collected(), checkpoint)
    assert follow_once(topic, checkpoint, group)[0] == 0
    expected = {each.partition: offset for each, offset in ends(query).items()}
    assert topic.described(group) == expected
    topic.produce(5)
    assert follow_once(topic, checkpoint, group)[0] == 0
    assert topic.described(group) == expected
