"""Holds all that a group ever committed against the checkpoint that it mirrors; touches nothing.

The checkpoint is read here by hand, so that our own reader does not judge itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from offsetmgr.kafka.commit_log import CommitRecord


class Batch(NamedTuple):
    """A batch that Spark has finished."""

    number: int
    finished_at_s: float
    """When its commit log was written, by the wall clock."""
    ends: Mapping[TopicPartition, int]


def last_number(checkpoint: Path) -> int:
    """The newest finished batch; -1 where there is none."""
    return max(_numbers(checkpoint), default=-1)


def read_batches(checkpoint: Path) -> list[Batch]:
    """Every finished batch of a query with one Kafka source, whose checkpoint was never purged."""
    return [_batch(checkpoint, number) for number in sorted(_numbers(checkpoint))]


def records(checkpoint: Path) -> int:
    """The number of offsets up to the end of the newest finished batch."""
    number = last_number(checkpoint)
    return 0 if number < 0 else sum(_batch(checkpoint, number).ends.values())


def _numbers(checkpoint: Path) -> list[int]:
    folder = checkpoint / "commits"
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [int(name) for name in names if name.isdigit()]


def _batch(checkpoint: Path, number: int) -> Batch:
    _version, _settings, source = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    ends = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(source).items()
        for partition, offset in partitions.items()
    }
    return Batch(number, (checkpoint / "commits" / str(number)).stat().st_mtime, ends)


def violations(batches: Sequence[Batch], commits: Iterable[CommitRecord]) -> list[str]:
    """The commits that are not the end of a batch which was finished before them, in words."""
    finished: dict[tuple[TopicPartition, int], Batch] = {}
    for batch in batches:
        for where, end in batch.ends.items():
            finished.setdefault((where, end), batch)
    found: list[str] = []
    for commit in commits:
        where = TopicPartition(commit.key.topic, commit.key.partition)
        if commit.offset is None:
            found.append(f"{where} was forgotten")
            continue
        first = finished.get((where, commit.offset))
        if first is None:
            found.append(f"{where} at {commit.offset} is the end of no finished batch")
        elif commit.at_s < first.finished_at_s:
            early_s = first.finished_at_s - commit.at_s
            found.append(
                f"{where} at {commit.offset} was committed {early_s:.3f} s before batch "
                f"{first.number} was finished"
            )
    return found
