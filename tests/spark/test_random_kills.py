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
KILLS = 50
BATCH = 500

SETTINGS = ("commit.commit_interval_s=0.1", "commit.request_timeout_s=2", "lease_s=4")


@pytest.fixture
def scene(topic: Topic, group: str, tmp_path: Path) -> Iterator[Scene]:
    """Both run."""
    (port,) = free_ports(1)
    servers, checkpoint = topic.kafka.bootstrap_servers, tmp_path / "checkpoint"
    options = {
        "service": f"http://127.0.0.1:{port}",
        "name": group,
        "brokers": servers,
        "topic": topic.name,
        "group": group,
        "checkpoint": checkpoint,
        "batch": BATCH,
    }
    served = service(tmp_path, f"127.0.0.1:{port}", servers, SETTINGS)
    made = Scene(served, Driver(tmp_path, "tests.spark.driver_job", options), checkpoint)
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
