"""Checkpoints of jobs that do not use this package, followed by the command and by the service."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from offsetmgr.cli.app import app
from offsetmgr.spark.checkpoint import Checkpoint
from tests.service.support import serve_process
from tests.spark.support import ends, run, start
from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.support import Job, Topic


def test_the_command_commits_finished_batches(job: Job) -> None:
    """Without a service; a second run, without another batch, commits nothing and succeeds."""
    words = ["spark", "follow", "--once", "--checkpoint", job.checkpoint, "--group", job.group]
    service = ["--service", f"kafka://{job.topic.kafka.bootstrap_servers}"]
    service += ["--timeout", str(WAIT_S)]
    job.topic.produce(30)
    query = job.run(10)
    for _ in range(2):
        done = CliRunner().invoke(app, [*words, *service])
        assert done.exit_code == 0, done.output
        assert job.committed() == ends(query)
        job.topic.produce(5)


def test_jobs_of_others_are_followed_by_the_service(
    spark: SparkSession, topic: Topic, unique_name: str, tmp_path: Path
) -> None:
    """The groups of an ended and a running job that do not know of it are as their checkpoints.

    ``test_random_kills.py`` has a job in Java.
    """
    groups = f"{unique_name}-ended", f"{unique_name}-running"
    settings = {
        "checkpoint": f"{tmp_path}/*",
        "group": f"{unique_name}-{{name}}",
        "interval_s": 0.2,
    }
    words = [f"--set=follow.all.{name}={value}" for name, value in settings.items()]
    servers = topic.kafka.bootstrap_servers
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", servers, *words)
    topic.produce(30)
    run(topic.read(spark, "earliest"), str(tmp_path / "ended"))
    query = start(topic.read(spark, "earliest"), str(tmp_path / "running"))
    try:
        with serve_process(*options) as service:
            for group in groups:
                eventually(partial(topic.described, group), {0: 10, 1: 10, 2: 10})
            topic.produce(6, first=30)
            eventually(partial(topic.described, groups[1]), {0: 12, 1: 12, 2: 12})
            with service.http() as http:
                rows = {row["name"]: row for row in http.get("/v1/queries").json()["followed"]}
    finally:
        query.stop()
    finished = Checkpoint(str(tmp_path / "running")).last_finished()
    assert finished is not None
    assert rows["running"]["batch_id"] == finished.batch_id
    assert (rows["ended"]["lag"], rows["running"]["lag"]) == (6, 0)
