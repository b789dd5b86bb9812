"""Driver and service are killed at random over a running query; `make chaos` runs it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka.cluster import free_ports
from tests.chaos.processes import service
from tests.spark.scene import Driver, Orders, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.support import Topic

SEED = 5
KILLS = 60
BATCH = 500


@pytest.fixture(params=["listener", "follow"])
def scene(
    request: pytest.FixtureRequest, topic: Topic, group: str, tmp_path: Path
) -> Iterator[Scene]:
    """Both run; a Java job that is followed knows neither the service nor the group."""
    (port,) = free_ports(1)
    servers, checkpoint = topic.kafka.bootstrap_servers, tmp_path / "checkpoint"
    settings = ["commit.commit_interval_s=0.1", "commit.request_timeout_s=2"]
    options: dict[str, object] = {
        "brokers": servers,
        "topic": topic.name,
        "checkpoint": checkpoint,
    }
    if request.param == "listener":
        job = "tests.spark.driver_job"
        settings.append("lease_s=4")
        address = f"http://127.0.0.1:{port}"
        options |= {"service": address, "name": group, "group": group, "batch": BATCH}
    else:
        job = "tests.spark.java_job"
        follow = {"checkpoint": checkpoint, "group": group, "interval_s": 0.2}
        settings += [f"follow.job.{name}={value}" for name, value in follow.items()]
    served = service(tmp_path, f"127.0.0.1:{port}", servers, settings)
    made = Scene(served, Driver(tmp_path, job, options), checkpoint)
    yield made
    made.close()


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
def test_the_group_is_never_ahead_of_the_checkpoint_and_ends_with_it(
    scene: Scene, topic: Topic, group: str
) -> None:
    """Every record that Kafka has of the group is held against the checkpoint's own times."""
    with Orders(topic) as produced:
        scene.kill_at_random(KILLS - 2, random.Random(SEED))  # noqa: S311 -- a schedule
    commits = scene.judge(topic, group, produced.count)
    assert scene.kills.total() == KILLS
    assert min(scene.kills.values()) > KILLS // 4
    assert len({commit.offset for commit in commits}) > KILLS
