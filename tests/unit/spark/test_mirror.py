"""The judge of the random kills finds what a group must never do."""

from __future__ import annotations

import pytest

from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.types import ManagerKey, TopicPartition
from tests.spark.mirror import Batch, violations

BATCHES = [
    Batch(number, 100.0 + number, {TopicPartition("orders", 0): end})
    for number, end in enumerate((5, 5, 9))
]


def commit(offset: int | None, at_s: float, partition: int = 0) -> CommitRecord:
    return CommitRecord(ManagerKey("etl", "orders", partition), offset, at_s=at_s)


def test_ends_of_finished_batches_are_right() -> None:
    """Repeated, late or left out; an end that two batches share counts from the first of them."""
    commits = [commit(5, 100.0), commit(5, 101.5), commit(9, 102.0), commit(9, 500.0)]
    assert violations(BATCHES, commits) == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (commit(9, 101.9), "0.100 s before batch 2"),
        (commit(10, 500.0), "at 10 is the end of no finished batch"),
        (commit(7, 500.0), "at 7 is the end of no finished batch"),
        (commit(5, 500.0, partition=1), "orders-1 at 5 is the end of no"),
        (commit(None, 500.0), "forgotten"),
    ],
)
def test_a_commit_ahead_is_found(record: CommitRecord, words: str) -> None:
    """Before its batch is finished, between two ends, of another partition, or deleted."""
    (found,) = violations(BATCHES, [commit(5, 100.0), record])
    assert words in found
