"""Commits what Spark's streaming queries have read to consumer groups, and starts from them.

The checkpoint stays Spark's truth and the group mirrors it: at least once, never ahead of a
finished batch.  While the service is away the query goes on and notices nothing.
"""

from __future__ import annotations

from offsetmgr.spark.checkpoint import (
    OffsetPair,
    OffsetRange,
    Reconciliation,
    batch_ranges,
    reconcile,
)
from offsetmgr.spark.commits import CommitCounts, OffsetCommits, commit_offsets
from offsetmgr.spark.starting import KafkaBatch, kafka_batch, starting_offsets

__all__ = [
    "CommitCounts",
    "KafkaBatch",
    "OffsetCommits",
    "OffsetPair",
    "OffsetRange",
    "Reconciliation",
    "batch_ranges",
    "commit_offsets",
    "kafka_batch",
    "reconcile",
    "starting_offsets",
]
