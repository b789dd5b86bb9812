"""A Java job and the service that follows it are killed again and again; `make chaos` runs it."""

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

SEED = 7
KILLS = 30
"""Of each."""


@pytest.fixture
def scene(topic: Topic, group: str, tmp_path: Path) -> Iterator[Scene]:
    """Both run; the job knows neither the service nor the group."""
    (port,) = free_ports(1)
    servers, checkpoint = topic.kafka.bootstrap_servers, tmp_path / "checkpoint"
    settings = (
        "commit.commit_interval_s=0.1",
        "commit.request_timeout_s=2",
        f"follow.job.checkpoint={checkpoint}",
        f"follow.job.group={group}",
        "follow.job.interval_s=0.2",
    )
    options = {"brokers": servers, "topic": topic.name, "checkpoint": checkpoint}
    driver = Driver(tmp_path, "tests.spark.java_job", options)
    made = Scene(service(tmp_path, f"127.0.0.1:{port}", servers, settings), driver, checkpoint)
    yield made
    made.close()


@pytest.mark.chaos
@pytest.mark.timeout(3_600)
def test_a_followed_group_is_never_ahead_and_ends_with_the_checkpoint(
    scene: Scene, topic: Topic, group: str
) -> None:
    """Every record that Kafka has of the group is held against the checkpoint's own times."""
    chance = random.Random(SEED)  # noqa: S311 -- a schedule
    with Orders(topic) as produced:
        for _ in range(KILLS - 1):
            for victim in scene.both:
                in_work = chance.random() < 0.75
                scene.kill(victim, chance.uniform(0, 1), in_work=in_work)
    commits = scene.judge(topic, group, produced.count)
    assert set(scene.kills.values()) == {KILLS}
    assert len({commit.offset for commit in commits}) > KILLS
