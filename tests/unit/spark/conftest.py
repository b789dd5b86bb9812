"""A broker in memory without a service, and a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors import ActorSystem
from offsetmgr.coordinator.memory import MemoryCoordinator
from tests.unit.spark.broker import CLICKS, ORDERS
from tests.unit.spark.checkpoints import WrittenCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def coordinator() -> Iterator[MemoryCoordinator]:
    """Two topics of two partitions; partition 0 of each holds 0 to 1,000."""
    with ActorSystem(name="test") as system:
        made = MemoryCoordinator(call_after=system.timers.call_after)
        for partition in (ORDERS, CLICKS):
            made.broker.create_topic(partition.topic, 2)
            made.broker.set_log(partition, 0, 1_000)
        yield made


@pytest.fixture
def checkpoint(tmp_path: Path) -> WrittenCheckpoint:
    return WrittenCheckpoint(tmp_path / "checkpoint")
