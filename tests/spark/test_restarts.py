"""A query that goes on from its checkpoint: its group ends where the checkpoint is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.spark.checkpoint import Checkpoint
from tests.spark.jobs import run_job
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.service.support import ServeProcess
    from tests.spark.support import Job

DRIVER = Path(__file__).with_name("driver_job.py")


@pytest.mark.chaos
def test_a_driver_killed_between_commit_log_and_event(job: Job, sidecar: ServeProcess) -> None:
    """Started again with nothing new to read, the group gets what nobody was told of."""
    job.topic.produce(90)
    name = f"{job.group}-driver"
    options = {
        "service": sidecar.address,
        "name": name,
        "brokers": job.topic.kafka.bootstrap_servers,
        "topic": job.topic.name,
        "group": job.group,
        "checkpoint": job.checkpoint,
        "batch": 30,
        "fall": 2,
    }
    driver = run_job(DRIVER, options)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    finished = Checkpoint(job.checkpoint).last_finished()
    assert finished is not None
    assert (finished.batch_id, sum(finished.offsets.values())) == (2, 90)
    assert sum(job.committed().values()) == 60
    # By its name the next driver takes over what the dead one has left.
    with OffsetClient(sidecar.address, name=name) as client:
        again = job._replace(client=client)
        with again.commits(), again.running():
            eventually(again.committed, finished.offsets)


def test_a_run_that_finds_nothing_new(job: Job) -> None:
    """Spark reports nothing of it, and ends it at once: its checkpoint is committed all the same.

    Nobody flushes, and nobody listened when its batches were read.
    """
    job.topic.produce(30)
    job.run()
    finished = Checkpoint(job.checkpoint).last_finished()
    assert finished is not None
    with job.commits() as commits:
        again = job.run()
    assert again.lastProgress is not None
    assert again.lastProgress["numInputRows"] == 0
    assert commits.counts.submitted == 3
    assert job.committed() == finished.offsets
