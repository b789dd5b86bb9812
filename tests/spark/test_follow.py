"""Checkpoints of jobs that do not use this package, followed by the command and by the service."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from offsetmgr.cli.app import app
from tests.service.support import serve_process
from tests.spark import java_job
from tests.spark.mirror import last_number
from tests.spark.support import Collected, ends, run, start
from tests.waiting import eventually, until

if TYPE_CHECKING:
    from pathlib import Path

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


def test_the_command_commits_finished_batches(
    spark: SparkSession, topic: Topic, group: str, checkpoint: str
) -> None:
    """A second run, without another batch, commits nothing and is not a failure."""
    topic.produce(30)
    query = run(topic.read(spark, "earliest", 10), Collected(), checkpoint)
    assert follow_once(topic, checkpoint, group)[0] == 0
    expected = {each.partition: offset for each, offset in ends(query).items()}
    assert topic.described(group) == expected
    topic.produce(5)
    assert follow_once(topic, checkpoint, group)[0] == 0
    assert topic.described(group) == expected


def test_jobs_of_others_are_followed_by_the_service(
    spark: SparkSession, topic: Topic, unique_name: str, tmp_path: Path
) -> None:
    """The groups of a Java and a PySpark job that do not know of it are as their checkpoints."""
    servers = topic.kafka.bootstrap_servers
    settings = {
        "checkpoint": f"{tmp_path}/checkpoints/*",
        "group": f"{unique_name}-{{name}}",
        "interval_s": 0.2,
    }
    words = [f"--set=follow.all.{name}={value}" for name, value in settings.items()]
    topic.produce(3_000)
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", servers, *words)
    with serve_process(*options) as service:
        place = {name: str(tmp_path / "checkpoints" / name) for name in ("java", "python")}
        arguments = {"brokers": servers, "topic": topic.name, "checkpoint": place["java"]}
        query = start(topic.read(spark, "earliest", 300), Collected(), place["python"])
        try:
            command = java_job.command(tmp_path, arguments, once=True)
            subprocess.run(command, env=java_job.environment(), cwd=tmp_path, check=True)
            whole = dict.fromkeys(range(topic.partitions), 1000)
            eventually(lambda: topic.described(f"{unique_name}-java"), whole)
            eventually(lambda: topic.described(f"{unique_name}-python"), whole)
            topic.produce(300)
            until(lambda: sum(ends(query).values()) == 3_300)
            expected = {each.partition: offset for each, offset in ends(query).items()}
            eventually(lambda: topic.described(f"{unique_name}-python"), expected)
        finally:
            query.stop()
        with service.http() as http:
            followed = {each["name"]: each for each in http.get("/v1/queries").json()["followed"]}
    assert followed["python"]["batch_id"] == last_number(tmp_path / "checkpoints" / "python")
    assert (followed["java"]["lag"], followed["python"]["lag"]) == (300, 0)
