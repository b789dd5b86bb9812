"""The offsets that a restart from a checkpoint would read again, or could not read any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.admin.spark_status import positions, status
from offsetmgr.errors import OffsetManagerError
from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders

if TYPE_CHECKING:
    from pathlib import Path

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGS = {P0: PartitionRange(0, 100), P1: PartitionRange(0, 100)}


def test_a_log_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    files = WrittenCheckpoint(tmp_path)
    files.batch(7, orders(30, 40))
    found = status(
        positions(files.files), None, {P0: OffsetManagerError("no leader"), P1: LOGS[P1]}
    )
    assert [(each.lag, each.note) for each in found] == [(None, "no leader"), (60, "")]


def test_a_batch_that_broke_off_is_read_again(tmp_path: Path) -> None:
    """From the end of the one before it; a first batch from where its source began.

    Nothing of a partition whose topic was recreated before the batch, which ends lower.
    """
    files = WrittenCheckpoint(tmp_path)
    files.batch(7, orders(30, 40))
    files.batch(8, orders(35, 2), finished=False)
    found = status(positions(files.files), None, LOGS)
    recreated = "beyond the end of the log: the topic was recreated, or its log cut"
    assert [each.note for each in found] == ["5 offsets are read again", recreated]
    assert [each.repeated for each in found] == [5, 0]
    first = WrittenCheckpoint(tmp_path / "first")
    first.began(0, orders(3, 4))
    first.batch(0, orders(5, 4), finished=False)
    found = status(positions(first.files), None, LOGS)
    assert [each.repeated for each in found] == [2, 0]


def test_lost_records_and_the_position_of_the_group_are_reported(tmp_path: Path) -> None:
    """Expired records, a topic that is gone, one that was recreated, a group elsewhere.

    A group without offsets, such as of a mistyped name, is not where the checkpoint is either.
    """
    files = WrittenCheckpoint(tmp_path)
    files.batch(7, {"orders": {"0": 30, "1": 40}, "gone": {"0": 9}})
    logs = {P0: PartitionRange(50, 100), P1: PartitionRange(0, 8)}
    found = status(positions(files.files), {P0: OffsetAndMetadata(45)}, logs)
    assert {str(each.partition): each.note for each in found} == {
        "gone-0": "does not exist: the query fails; group has nothing committed",
        "orders-0": "20 offsets expired unread: lost; group is 15 ahead",
        "orders-1": "beyond the end of the log: the topic was recreated, or its log cut; "
        "group has nothing committed",
    }
    assert [each.lost for each in found] == [0, 20, 0]


def test_a_query_that_never_began_has_nothing_to_tell(tmp_path: Path) -> None:
    """It will start at its startingOffsets."""
    assert status(positions(WrittenCheckpoint(tmp_path).files), {}, {}) == []
