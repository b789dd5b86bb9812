"""Checkpoints, written as Spark writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from offsetmgr.spark.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offsetmgr.types import TopicPartition

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def finished(checkpoint: Checkpoint) -> tuple[int, Mapping[TopicPartition, int]] | None:
    """Return the number and the offsets of the last finished batch."""
    batch = checkpoint.last_finished()
    return None if batch is None else (batch.batch_id, batch.offsets)


class WrittenCheckpoint:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = Checkpoint(str(root))
        self.write("metadata", '{"id":"7d3d4a8e-5b1f-4a0e-9a70-0c5d6b0a3f11"}')

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def batch(self, number: int, *sources: object, finished: bool = True) -> None:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
        self.write(f"offsets/{number}", "\n".join([HEAD, *lines]))
        if finished:
            self.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def began(self, source: int, position: object) -> None:
        self.write(f"sources/{source}/0", "\0v1\n" + json.dumps(position))


def orders(*offsets: int) -> dict[str, Mapping[str, int]]:
    return {"orders": {str(number): offset for number, offset in enumerate(offsets)}}
