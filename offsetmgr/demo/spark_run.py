"""One run of the demo's Spark job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.demo.child import Child
from offsetmgr.demo.errors import DemoError
from offsetmgr.devkafka import spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

    from offsetmgr.demo.stage import Stage

_BATCHES: Final = 12
"""In how many batches Spark is to read all orders."""

_STOP_S: Final = 60.0


class Finished(NamedTuple):
    """What a run of the Spark job says it did."""

    start: Mapping[int, int]
    """Where it was told to start, partition → offset; below 0: from the earliest."""
    end: Mapping[int, int]
    """The next offset to read after its last finished batch."""
    batches: int
    uncommitted: int
    """Offsets that were not acknowledged when it ended."""


class SparkRun:
    """One run of the Spark job, in a process of its own."""

    def __init__(self, stage: Stage, run: str) -> None:
        """Start it; ``run`` names its log, its checkpoint and the folder of its output."""
        folder = stage.folder
        self._result = folder / f"{run}-result.json"
        self._topic = stage.names.topic
        arguments = {
            "--brokers": stage.brokers,
            "--service": stage.service_url,
            "--topic": stage.names.topic,
            "--group": stage.names.group,
            "--jars": ",".join(map(str, spark_kafka_jars())),
            "--batch-orders": max(1, stage.orders // _BATCHES),
            "--out": sales_folder(folder, run),
            "--checkpoint": checkpoint_folder(folder, run),
            "--scratch": folder / "spark",
            "--result": self._result,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        self.child = Child(["offsetmgr.demo.job", *flat], log_path=folder / f"job-{run}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.child.close()

    def finished(self) -> Finished:
        """Wait for its end, and read what it says it did.  Raises DemoError."""
        status = self.child.finish(_STOP_S)
        if status != 0:
            message = f"the Spark job failed with exit status {status}; {self.child.log_end()}"
            raise DemoError(message)
        said: dict[str, Any] = json.loads(self._result.read_text())
        return Finished(
            self._of_topic(said["start"]),
            self._of_topic(said["end"]),
            said["batches"],
            said["uncommitted"],
        )

    def _of_topic(self, position: dict[str, dict[str, int]]) -> dict[int, int]:
        return {int(each): offset for each, offset in position.get(self._topic, {}).items()}


def sales_folder(folder: Path, run: str) -> Path:
    """Where a run of the job writes its Parquet files."""
    return folder / "sales" / run


def checkpoint_folder(folder: Path, run: str) -> Path:
    """Where a run of the job keeps its checkpoint."""
    return folder / f"{run}-checkpoint"
