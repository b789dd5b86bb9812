"""Commits the offsets of Spark's streaming queries to consumer groups, and resumes from groups.

The group mirrors the checkpoint: it is never ahead of a finished batch.  While the service is
down, queries continue.
"""

from __future__ import annotations

from offsetmgr.spark.checkpoint import OffsetRange, batch_ranges
from offsetmgr.spark.commits import OffsetCommits, commit_offsets
from offsetmgr.spark.committer import CommitCounts
from offsetmgr.spark.reconcile import OffsetPair, Reconciliation, reconcile
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
