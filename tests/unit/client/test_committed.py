"""Answers and events about commits, in whatever order they arrive."""

from __future__ import annotations

from offsetmgr.client.partitions import ClientPartition
from offsetmgr.types import OffsetAndMetadata


def test_what_is_known_to_be_committed() -> None:
    """A late answer undoes nothing, and an event counts only if it must be about the newest."""
    partition = ClientPartition(-1)

    def submit(offset: int, version: int, *, rewind: bool = False) -> None:
        partition.submit(OffsetAndMetadata(offset), version, rewind=rewind)

    def seen(offset: int) -> tuple[OffsetAndMetadata | None, int]:
        partition.commit_seen(OffsetAndMetadata(offset))
        return partition.committed, partition.committed_version

    submit(5, 1)
    submit(9, 2)
    assert seen(5) == (None, 0)
    assert seen(9) == (OffsetAndMetadata(9), 2)
    submit(5, 3, rewind=True)
    assert seen(5) == (OffsetAndMetadata(9), 2)  # it may be about the first 5
    partition.commit(OffsetAndMetadata(5), 3)
    partition.commit(OffsetAndMetadata(9), 2)
    assert seen(9) == (OffsetAndMetadata(5), 3)
